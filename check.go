package ddbseq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// DescribeContinuousBackupsAPI is used by Check, if the client has it.
type DescribeContinuousBackupsAPI interface {
	DescribeContinuousBackups(context.Context, *dynamodb.DescribeContinuousBackupsInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeContinuousBackupsOutput, error)
}

// DescribeTimeToLiveAPI is used by Check, if the client has it.
type DescribeTimeToLiveAPI interface {
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
}

var _ interface {
	DescribeContinuousBackupsAPI
	DescribeTimeToLiveAPI
} = (*dynamodb.Client)(nil)

// CheckOptions are the settings of [Allocator.Check].
type CheckOptions struct {
	// AllowEventualReplicas accepts a global table with eventual consistency,
	// where processes in two regions lease the same IDs, because all processes
	// are in one region or use sequences of their own in each. Defaults to
	// false.
	AllowEventualReplicas bool

	// RestoreSeen acknowledges that the table was made by a restore from a backup
	// of this moment or an earlier one: its sequences have been advanced beyond
	// the data. Defaults to none.
	RestoreSeen time.Time

	// Sequence is the name that Check reads, writes and probes with, for
	// credentials that are limited to certain keys. Defaults to "ddbseq.check".
	Sequence string

	// Probe leases two blocks of Sequence, which it makes if there is none, and
	// looks whether they differ. It costs a few writes. Where the endpoint is not
	// AWS's it is always done: what calls itself compatible may not be. Defaults
	// to false.
	Probe bool
}

// A CheckReport is what [Allocator.Check] found, each in a sentence that says
// what to do.
type CheckReport struct {
	Errors   []string // IDs are not safe, or cannot be had
	Warnings []string // they are, and something else should be put right
	Unseen   []string // what could not be looked at, and why
}

// String lists all, errors first, one a line.
func (r CheckReport) String() string {
	var out []string
	for _, part := range []struct {
		what  string
		lines []string
	}{{"error", r.Errors}, {"warning", r.Warnings}, {"could not see", r.Unseen}} {
		for _, l := range part.lines {
			out = append(out, part.what+": "+l)
		}
	}
	return strings.Join(out, "\n")
}

// check collects a report, and the errors with their classes.
type check struct {
	CheckReport
	opts CheckOptions
	errs []error
}

func (c *check) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if !strings.HasPrefix(err.Error(), "ddbseq: ") {
		err = fmt.Errorf("ddbseq: %w", err)
	}
	c.errs = append(c.errs, err)
	c.Errors = append(c.Errors, strings.TrimPrefix(err.Error(), "ddbseq: "))
}

func (c *check) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

func (c *check) unseen(what string, err error) {
	c.Unseen = append(c.Unseen, fmt.Sprintf("%s: %v", what, err))
}

const defaultCheckSequence = "ddbseq.check"

// Check looks whether the table is as it should be: it exists and is active, its
// key fits, no other region writes to it behind our back, it was not made by a
// restore that nobody has acknowledged, TTL deletes none of our items, deletion
// protection and point-in-time recovery are on, and the credentials suffice.
// What the credentials do not let it see it says; least privilege is no error.
// The error joins the report's errors, and matches the classes of this package
// where it has one ([ErrTableNotFound], [ErrSchema], [ErrAccessDenied], ...).
//
// It makes four reads, each one attempt within AttemptTimeout and ctx; until this
// process has leased something also a write that is made to be refused, because
// only that shows whether it may write. It changes nothing unless it probes, and
// can serve as a health check; IDs in memory are handed out whatever it finds.
func (a *Allocator) Check(ctx context.Context, optFns ...func(*CheckOptions)) (CheckReport, error) {
	c := check{opts: CheckOptions{Sequence: defaultCheckSequence}}
	for _, fn := range optFns {
		if fn != nil {
			fn(&c.opts)
		}
	}
	if err := cmp.Or(a.open(), a.checkName(c.opts.Sequence)); err != nil {
		return c.CheckReport, err
	}
	key := a.opts.KeyPrefix + c.opts.Sequence
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	limit := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, a.opts.AttemptTimeout) }

	probe := c.opts.Probe
	if d, ok := a.store.(*dynamo); ok {
		probe = probe || d.elsewhere()
		for _, look := range []func(context.Context, *check) bool{d.checkTable, d.checkBackups, d.checkTTL} {
			attempt, cancel := limit()
			goOn := look(attempt, &c)
			cancel()
			if !goOn {
				return c.CheckReport, errors.Join(c.errs...)
			}
		}
	}
	attempt, cancel := limit()
	_, err := a.store.get(attempt, key)
	cancel()
	switch {
	case err == nil, errors.Is(err, ErrCorrupt), errors.Is(err, ErrLayout):
	case errors.Is(err, ErrAccessDenied), errors.Is(err, ErrUnsupported):
		c.unseen(fmt.Sprintf("whether items of table %q can be read (without GetItem a process makes one more write for each sequence)", a.store.table()), err)
	default:
		c.fail("an item of table %q could not be read: %w", a.store.table(), err)
		return c.CheckReport, errors.Join(c.errs...)
	}
	if !probe && !a.leased.Load() {
		attempt, cancel := limit()
		_, err := a.store.apply(attempt, refused(key))
		cancel()
		switch {
		case isType[*conditionError](err), errors.Is(err, ErrCorrupt), errors.Is(err, ErrLayout):
		case err == nil:
			c.fail("table %q carried out a write under a condition that cannot hold: do not use what answers there", a.store.table())
		case errors.Is(err, ErrAccessDenied):
			c.fail("table %q may not be written to with key %q (if the credentials are limited to certain keys, set Sequence to a name among them): %w", a.store.table(), key, err)
		default:
			c.fail("an item of table %q could not be written: %w", a.store.table(), err)
		}
	}
	if probe {
		attempt, cancel := limit()
		a.probe(attempt, &c)
		cancel()
	}
	return c.CheckReport, errors.Join(c.errs...)
}

// probe leases twice, and looks whether a condition is heeded.
func (a *Allocator) probe(ctx context.Context, c *check) {
	const n = 3
	opts := func(o *Options) {
		*o = a.opts
		o.Hooks, o.Logger, o.ConfigPoll, o.CreateMissing, o.forfeit = Hooks{}, nil, 0, true, true
		o.Sizing = Sizing{MinBlock: n, MaxBlock: n, LeaseEvery: time.Minute, RateWindow: time.Minute}
	}
	p, err := New(&Store{backend: a.store}, opts)
	if err != nil {
		c.fail("probing table %q: %w", a.store.table(), err)
		return
	}
	defer func() { _ = p.Close(ctx) }() // it gives nothing back
	s, err := p.Sequence(c.opts.Sequence)
	var first, second Block
	if err == nil {
		first, err = s.Reserve(ctx, n)
	}
	if err == nil {
		second, err = s.Reserve(ctx, n)
	}
	switch {
	case errors.Is(err, ErrAccessDenied):
		c.fail("sequence %q of table %q cannot be leased from (if the credentials are limited to certain keys, set Sequence to a name among them): %w", c.opts.Sequence, a.store.table(), err)
		return
	case err != nil:
		c.fail("leasing sequence %q of table %q: %w", c.opts.Sequence, a.store.table(), err)
		return
	case second.Step > 0 && second.First <= first.Last() || second.Step < 0 && second.First >= first.Last():
		// More than the count apart is fine: somebody else probes as well.
		c.fail("table %q gave the IDs %d to %d and then %d to %d: what answers there does not keep the counter, do not use it",
			a.store.table(), first.First, first.Last(), second.First, second.Last())
		return
	}
	key := a.opts.KeyPrefix + c.opts.Sequence
	again := &change{key: key, token: randomID(), base: &item{key: key}, create: true, def: &clauses{}, ver: randomID(), born: randomID()}
	if _, err = a.store.apply(ctx, again); err == nil {
		c.fail("table %q made sequence %q a second time: what answers there does not heed conditions, do not use it", a.store.table(), c.opts.Sequence)
	} else if !isType[*conditionError](err) {
		c.fail("a conditional write to table %q failed: %w", a.store.table(), err)
	}
}

// elsewhere reports whether the client talks to something that is not AWS.
func (d *dynamo) elsewhere() bool {
	c, ok := d.client.(interface{ Options() dynamodb.Options })
	if !ok {
		return false
	}
	endpoint := aws.ToString(c.Options().BaseEndpoint)
	u, err := url.Parse(endpoint)
	if endpoint == "" || err != nil {
		return false
	}
	host := u.Hostname()
	return !slices.ContainsFunc([]string{".amazonaws.com", ".amazonaws.com.cn", ".api.aws"}, func(s string) bool { return strings.HasSuffix(host, s) })
}

// The checks report whether it makes sense to go on.

func (d *dynamo) checkTable(ctx context.Context, c *check) bool {
	what := fmt.Sprintf("state, key, replicas, origin and deletion protection of table %q", d.name)
	client, ok := d.client.(DescribeTableAPI)
	if !ok {
		c.unseen(what, d.unsupported("DescribeTable", ""))
		return true
	}
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &d.name}, d.perCall)
	if err != nil {
		err = d.failure(ctx, "DescribeTable", "", err)
		if errors.Is(err, ErrAccessDenied) {
			c.unseen(what, err)
			return true
		}
		c.fail("table %q could not be described: %w", d.name, err)
		return false
	}
	if out == nil || out.Table == nil {
		c.unseen(what, errors.New("an empty answer"))
		return true
	}
	t := out.Table
	if t.TableStatus != types.TableStatusActive && t.TableStatus != types.TableStatusUpdating {
		c.fail("table %q is %s, not ACTIVE: wait until it is, or put right what it says", d.name, t.TableStatus)
	}
	if have, want := schema(t), d.wantedSchema(); have != want {
		c.fail("%w", d.schemaError(have, nil))
	}
	if len(t.Replicas) > 0 && t.MultiRegionConsistency != types.MultiRegionConsistencyStrong && !c.opts.AllowEventualReplicas {
		var regions []string
		for _, r := range t.Replicas {
			regions = append(regions, aws.ToString(r.RegionName))
		}
		c.fail("table %q is replicated (%s) with eventual consistency: processes in two regions lease the same IDs. Use one region, a table with strong consistency, or a sequence for each region, and then AllowEventualReplicas",
			d.name, strings.Join(regions, ", "))
	}
	if r := t.RestoreSummary; r != nil {
		switch at := aws.ToTime(r.RestoreDateTime); {
		case at.IsZero() && c.opts.RestoreSeen.IsZero():
			c.fail("table %q was restored, as of a time that is not said: IDs leased after that come again. Advance its sequences beyond the highest IDs in your data, then set RestoreSeen to the present time", d.name)
		case at.After(c.opts.RestoreSeen):
			c.fail("table %q was restored as of %s: IDs leased after that come again. Advance its sequences beyond the highest IDs in your data, then set RestoreSeen to that time",
				d.name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if !aws.ToBool(t.DeletionProtectionEnabled) {
		c.warn("table %q has no deletion protection: switch it on", d.name)
	}
	return true
}

func (d *dynamo) checkBackups(ctx context.Context, c *check) bool {
	what := fmt.Sprintf("point-in-time recovery of table %q", d.name)
	client, ok := d.client.(DescribeContinuousBackupsAPI)
	if !ok {
		c.unseen(what, d.unsupported("DescribeContinuousBackups", ""))
		return true
	}
	out, err := client.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &d.name}, d.perCall)
	switch {
	case err != nil:
		c.unseen(what, d.failure(ctx, "DescribeContinuousBackups", "", err))
	case out == nil || out.ContinuousBackupsDescription == nil:
		c.unseen(what, errors.New("an empty answer"))
	default:
		p := out.ContinuousBackupsDescription.PointInTimeRecoveryDescription
		if p == nil || p.PointInTimeRecoveryStatus != types.PointInTimeRecoveryStatusEnabled {
			c.warn("table %q has no point-in-time recovery: switch it on", d.name)
		}
	}
	return true
}

func (d *dynamo) checkTTL(ctx context.Context, c *check) bool {
	what := fmt.Sprintf("TTL of table %q", d.name)
	client, ok := d.client.(DescribeTimeToLiveAPI)
	if !ok {
		c.unseen(what, d.unsupported("DescribeTimeToLive", ""))
		return true
	}
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &d.name}, d.perCall)
	if err != nil {
		c.unseen(what, d.failure(ctx, "DescribeTimeToLive", "", err))
		return true
	}
	if out == nil || out.TimeToLiveDescription == nil {
		c.unseen(what, errors.New("an empty answer"))
		return true
	}
	t := out.TimeToLiveDescription
	on := t.TimeToLiveStatus == types.TimeToLiveStatusEnabled || t.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	for _, name := range d.attrs {
		if on && name == aws.ToString(t.AttributeName) {
			c.fail("table %q has TTL on attribute %s, which is ours: its items would be deleted, and the sequences begin again. Switch it off", d.name, name)
		}
	}
	return true
}
