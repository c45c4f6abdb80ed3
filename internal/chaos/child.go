package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq"
)

// childEnv holds the plan of a child process.
const childEnv = "DDBSEQ_CHAOS_CHILD"

// The ways a child ends, other than well.
const (
	exitPlan   = 3
	exitRecord = 4
	exitStuck  = 5
)

// A plan is what a child process is to do.
type plan struct {
	Process  int
	Endpoint string
	File     string
	Seed     uint64
	Length   time.Duration // of the run: it makes the definitions
	Life     time.Duration // until it closes by itself; stdin's end closes it as well
}

// childMain is a child's life. A child whose parent is gone finds its stdin
// closed.
func childMain(text string, stderr io.Writer) int {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitPlan
	}
	file, err := os.OpenFile(p.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitPlan
	}
	signal.Ignore(os.Interrupt) // Ctrl-C is for the parent, who then closes stdin
	rec := recorder{file}
	time.AfterFunc(p.Life+3*closePatience, func() {
		rec.line("x stuck: neither Close nor a caller returned in time")
		panic("stuck") // with all stacks
	})
	if err := live(p, rec); err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitPlan
	}
	return 0
}

// child is the state of a child process.
type child struct {
	rec  recorder
	rng  *rand.Rand // of the main goroutine
	seqs []*sequence
	busy []int // how often each is asked, summed up
	all  *ddbseq.Allocator

	closing atomic.Bool // Close has been called, or is about to be
	told    sync.Map    // problems that are written down
}

// sequence is a Sequence under test.
type sequence struct {
	*ddbseq.Sequence
	spec

	index int
	// front is the furthest position that a Next has returned, -1 at first. The
	// increment has a sign, so that it only rises.
	front atomic.Int64
}

func (s *sequence) returned(id int64) {
	p, err := s.position(id)
	if err != nil {
		return // the check will say so
	}
	for {
		old := s.front.Load()
		if p <= old || s.front.CompareAndSwap(old, p) {
			return
		}
	}
}

func live(p plan, rec recorder) error {
	c := &child{rec: rec, rng: rand.New(rand.NewPCG(p.Seed, uint64(p.Process)))}
	list := specs(p.Length)
	if err := c.open(p, list); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it, or is gone
		close(ended)
	}()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var callers sync.WaitGroup
	for i := range 3 + c.rng.IntN(3) {
		w := &worker{child: c, number: i, rng: rand.New(rand.NewPCG(p.Seed^uint64(p.Process), uint64(i)))}
		callers.Go(func() { w.work(ctx) })
	}
	refresher := rand.New(rand.NewPCG(p.Seed^uint64(p.Process), 1000))
	callers.Go(func() { c.refresh(ctx, refresher) })

	select {
	case <-time.After(p.Life):
	case <-ended:
	}
	if c.rng.IntN(2) == 0 { // quietly; otherwise under the callers' hands
		cancel()
		callers.Wait()
	}
	c.closing.Store(true)
	closeCtx, stop := context.WithTimeout(context.Background(), closePatience)
	defer stop()
	c.check("Close", c.all.Close(closeCtx))
	cancel()
	callers.Wait()
	for _, s := range c.seqs {
		text, err := json.Marshal(s.Stats())
		if err != nil {
			return err
		}
		rec.line("s %d %s", s.index, text)
	}
	rec.line("e")
	return nil
}

// closePatience bounds a Close. It is much more than CloseTimeout, and reaching
// it is an error.
const closePatience = 15 * time.Second

func (c *child) open(p plan, list []spec) error {
	one := func(ds ...time.Duration) time.Duration { return ds[c.rng.IntN(len(ds))] }
	client := dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: &p.Endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: &listener{process: strconv.Itoa(p.Process), rec: c.rec, keys: keys(list), transport: &http.Transport{MaxIdleConnsPerHost: 8}},
	})
	sizing := func(z *ddbseq.Sizing) {
		z.Runway = one(0, 0, 200*time.Millisecond, time.Second, 5*time.Second)
		z.LeaseEvery = one(100*time.Millisecond, 500*time.Millisecond, 2*time.Second)
		z.RateWindow = one(time.Second, 5*time.Second)
		z.MinBlock = []int64{1, 5, 20, 100, 400}[c.rng.IntN(5)]
		z.MaxBlock = z.MinBlock * []int64{1, 2, 10, 1000}[c.rng.IntN(4)]
	}
	var err error
	c.all, err = ddbseq.New(ddbseq.DynamoDB(client, table), func(o *ddbseq.Options) {
		sizing(&o.Sizing)
		o.KeyPrefix = keyPrefix
		o.AttemptTimeout = one(150*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond)
		o.CloseTimeout = one(500*time.Millisecond, 2*time.Second, 5*time.Second)
		o.MaxParallel = []int{1, 4, 32}[c.rng.IntN(3)]
	})
	if err != nil {
		return err
	}
	for i, sp := range list {
		opts := []ddbseq.SequenceOption{ddbseq.WithSizing(func(z *ddbseq.Sizing) {
			sizing(z)
			if sp.quiet { // the same in all processes, so that blocks repeat
				z.Runway, z.MinBlock, z.MaxBlock = 0, 20, 20
			}
		})}
		if c.rng.IntN(2) == 0 {
			for _, clause := range sp.clauses {
				opts = append(opts, clause)
			}
		}
		s, err := c.all.Sequence(sp.name, opts...)
		if err != nil {
			return err
		}
		c.seqs = append(c.seqs, &sequence{Sequence: s, spec: sp, index: i})
		c.seqs[i].front.Store(-1)
		weight := []int{1, 1, 5, 40}[c.rng.IntN(4)]
		if !sp.quiet {
			weight *= 10
		}
		if i > 0 {
			weight += c.busy[i-1]
		}
		c.busy = append(c.busy, weight)
	}
	return nil
}

func keys(list []spec) map[string]int {
	m := map[string]int{}
	for i, s := range list {
		m[s.key()] = i
	}
	return m
}

// refresh calls Refresh now and then.
func (c *child) refresh(ctx context.Context, rng *rand.Rand) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(200+rng.IntN(2500)) * time.Millisecond):
		}
		some, cancel := context.WithTimeout(ctx, time.Duration(50+rng.IntN(2000))*time.Millisecond)
		seq := rng.IntN(len(c.seqs))
		if rng.IntN(4) == 0 {
			seq = -1
		}
		c.refreshOne(some, seq)
		cancel()
	}
}

// refreshOne calls Refresh for a sequence, or for all.
func (c *child) refreshOne(ctx context.Context, seq int) {
	var names []string
	if seq >= 0 {
		names = append(names, c.seqs[seq].name)
	}
	c.rec.line("u %d true", seq)
	c.check("Refresh", c.all.Refresh(ctx, names...))
	c.rec.line("u %d false", seq)
}

// check writes down an error that no fault can excuse. In a run nobody moves a
// counter back, and the table and its items are there.
func (c *child) check(what string, err error) {
	if err == nil {
		return
	}
	for _, never := range []error{
		ddbseq.ErrCounterMovedBack, ddbseq.ErrCorrupt, ddbseq.ErrLayout, ddbseq.ErrDefinitionMismatch,
		ddbseq.ErrNotFound, ddbseq.ErrTableNotFound, ddbseq.ErrSchema, ddbseq.ErrAccessDenied, ddbseq.ErrUnsupported,
		ddbseq.ErrPaused, ddbseq.ErrReuse, ddbseq.ErrOutOfBounds, ddbseq.ErrInvalidCount, ddbseq.ErrInvalidName,
		ddbseq.ErrInvalidDefinition,
	} {
		if errors.Is(err, never) {
			c.problem(what, err)
			return
		}
	}
	if le, ok := errors.AsType[*ddbseq.LeaseError](err); ok && le.Permanent {
		c.problem(what, err)
	}
}

// problem writes down an error, once: one that is kept is returned many times.
func (c *child) problem(what string, err error) {
	line := fmt.Sprintf("x %s: %q", what, err)
	if _, known := c.told.LoadOrStore(line, true); !known {
		c.rec.write([]byte(line))
	}
}

// listener is the HTTP client of a child's SDK client. It names the process to
// the gate, and writes down which replies to leases have arrived whole: what
// the library must know of by then, told by the wire and not by the library.
type listener struct {
	process   string
	rec       recorder
	keys      map[string]int
	transport *http.Transport
}

// Do implements aws.HTTPClient.
func (l *listener) Do(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body.Close()
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	req.Header.Set(processHeader, l.process)
	client := http.Client{Transport: l.transport}
	resp, err := client.Do(req)
	if err != nil {
		return resp, err
	}
	reply, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = &replay{bytes.NewReader(reply), err}
	if err == nil && operation(req.Header.Get("X-Amz-Target")) == "UpdateItem" {
		l.listen(body, resp.StatusCode, reply)
	}
	return resp, nil
}

// listen writes down an answer that holds what the request's own token did. The
// answers to give-backs are among them; the check tells them apart.
func (l *listener) listen(body []byte, status int, reply []byte) {
	asked, err := decode(body)
	if err != nil || asked.Key["entityType"].S == nil {
		return
	}
	told, err := decode(reply)
	if err != nil {
		return
	}
	attrs := told.Attributes
	if status != http.StatusOK {
		attrs = told.Item
	}
	st, err := parseState(attrs)
	token := asked.ExpressionAttributeValues[":tok"].S
	if err != nil || st.At == nil || token == nil || st.Tok != *token {
		return
	}
	l.rec.line("h %d %s %d %t", l.keys[*asked.Key["entityType"].S], st.Tok, *st.At, status != http.StatusOK)
}

// replay is a body that was read before, with the error that ended it.
type replay struct {
	*bytes.Reader
	err error
}

func (r *replay) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if errors.Is(err, io.EOF) && r.err != nil {
		err = r.err
	}
	return n, err
}

func (r *replay) Close() error { return nil }
