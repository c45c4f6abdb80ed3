package ddbseq

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// fakeTable answers what Check asks.
type fakeTable struct {
	table          types.TableDescription
	pitr           types.PointInTimeRecoveryStatus
	ttl            string
	describe, look error // of DescribeTable, of GetItem
	others         error // of the two between
	write          error // of UpdateItem, which otherwise refuses the condition
}

func (f *fakeTable) UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	return nil, cmp.Or(f.write, error(&types.ConditionalCheckFailedException{}))
}

func (f *fakeTable) GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	return &dynamodb.GetItemOutput{}, f.look
}

func (f *fakeTable) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return &dynamodb.DescribeTableOutput{Table: &f.table}, f.describe
}

func (f *fakeTable) DescribeContinuousBackups(context.Context, *dynamodb.DescribeContinuousBackupsInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeContinuousBackupsOutput, error) {
	return &dynamodb.DescribeContinuousBackupsOutput{ContinuousBackupsDescription: &types.ContinuousBackupsDescription{
		PointInTimeRecoveryDescription: &types.PointInTimeRecoveryDescription{PointInTimeRecoveryStatus: f.pitr}}}, f.others
}

func (f *fakeTable) DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	return &dynamodb.DescribeTimeToLiveOutput{TimeToLiveDescription: &types.TimeToLiveDescription{
		AttributeName: &f.ttl, TimeToLiveStatus: types.TimeToLiveStatusEnabled}}, f.others
}

func TestCheckSaysWhatIsWrongWithATable(t *testing.T) {
	denial := &smithy.GenericAPIError{Code: "AccessDeniedException", Message: "no"}
	restored := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	replicas := []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
	type counts [3]int
	for name, c := range map[string]struct {
		spoil func(*fakeTable)
		opts  func(*CheckOptions)
		want  counts // errors, warnings, unseen
		says  string
		class error
	}{
		"all is well":       {},
		"being altered":     {spoil: func(f *fakeTable) { f.table.TableStatus = types.TableStatusUpdating }},
		"being deleted":     {spoil: func(f *fakeTable) { f.table.TableStatus = types.TableStatusDeleting }, want: counts{1}, says: "DELETING"},
		"sort key":          {spoil: func(f *fakeTable) { f.table.KeySchema[0].AttributeName = aws.String("pk") }, want: counts{1}, says: "entityType", class: ErrSchema},
		"eventual replicas": {spoil: func(f *fakeTable) { f.table.Replicas = replicas }, want: counts{1}, says: "eu-west-1"},
		"allowed replicas":  {spoil: func(f *fakeTable) { f.table.Replicas = replicas }, opts: func(o *CheckOptions) { o.AllowEventualReplicas = true }},
		"strong replicas": {spoil: func(f *fakeTable) {
			f.table.Replicas, f.table.MultiRegionConsistency = replicas, types.MultiRegionConsistencyStrong
		}},
		"restored":               {spoil: func(f *fakeTable) { f.table.RestoreSummary = &types.RestoreSummary{RestoreDateTime: &restored} }, want: counts{1}, says: "2026-11-01T00:00:00Z"},
		"acknowledged":           {spoil: func(f *fakeTable) { f.table.RestoreSummary = &types.RestoreSummary{RestoreDateTime: &restored} }, opts: func(o *CheckOptions) { o.RestoreSeen = restored }},
		"restored once more":     {spoil: func(f *fakeTable) { f.table.RestoreSummary = &types.RestoreSummary{RestoreDateTime: &restored} }, opts: func(o *CheckOptions) { o.RestoreSeen = restored.Add(-1) }, want: counts{1}},
		"unprotected":            {spoil: func(f *fakeTable) { f.table.DeletionProtectionEnabled = nil }, want: counts{0, 1}, says: "deletion protection"},
		"no recovery":            {spoil: func(f *fakeTable) { f.pitr = types.PointInTimeRecoveryStatusDisabled }, want: counts{0, 1}, says: "point-in-time"},
		"TTL on ours":            {spoil: func(f *fakeTable) { f.ttl = "at" }, want: counts{1}, says: "TTL"},
		"TTL on another":         {spoil: func(f *fakeTable) { f.ttl = "expires" }},
		"describing is denied":   {spoil: func(f *fakeTable) { f.describe, f.others = denial, denial }, want: counts{0, 0, 3}, says: "could not see: state"},
		"all is denied":          {spoil: func(f *fakeTable) { f.describe, f.others, f.look = denial, denial, denial }, want: counts{0, 0, 4}},
		"there is no table":      {spoil: func(f *fakeTable) { f.describe = &types.ResourceNotFoundException{} }, want: counts{1}, class: ErrTableNotFound},
		"none, and no describe":  {spoil: func(f *fakeTable) { f.describe, f.look = denial, &types.ResourceNotFoundException{} }, want: counts{1, 0, 1}, class: ErrTableNotFound},
		"writing is denied":      {spoil: func(f *fakeTable) { f.write = denial }, want: counts{1}, says: "may not be written to", class: ErrAccessDenied},
		"no write could be made": {spoil: func(f *fakeTable) { f.write = &types.InternalServerError{} }, want: counts{1}, says: "could not be written"},
		"throttled":              {spoil: func(f *fakeTable) { f.look = &types.ThrottlingException{} }, want: counts{1}, class: ErrThrottled},
	} {
		f := &fakeTable{pitr: types.PointInTimeRecoveryStatusEnabled, ttl: "expires", table: types.TableDescription{
			TableStatus: types.TableStatusActive, DeletionProtectionEnabled: aws.Bool(true),
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("entityType"), AttributeType: types.ScalarAttributeTypeS}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("entityType"), KeyType: types.KeyTypeHash}},
		}}
		if c.spoil != nil {
			c.spoil(f)
		}
		a := newTest(t, DynamoDB(f, "orders-table"))
		if c.opts == nil {
			c.opts = func(*CheckOptions) {}
		}
		r, err := a.Check(t.Context(), c.opts)
		if got := (counts{len(r.Errors), len(r.Warnings), len(r.Unseen)}); got != c.want || (err != nil) != (c.want[0] > 0) || !strings.Contains(r.String(), c.says) {
			t.Errorf("%s: %v, want %v; %v\n%v", name, got, c.want, err, r)
		}
		if c.class != nil && !errors.Is(err, c.class) {
			t.Errorf("%s: %v is not %v", name, err, c.class)
		}
		if s := r.String(); s != "" && !strings.Contains(s, `"orders-table"`) {
			t.Errorf("%s: the table is not named: %s", name, s)
		}
	}
}

func TestCheckProbesWhatIsNotAWS(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			a := newTest(t, st.open(t))
			for range 2 {
				r, err := a.Check(t.Context(), func(o *CheckOptions) { o.Probe = st.name == "memory" })
				if err != nil {
					t.Fatal(err)
				}
				t.Log(r)
			}
			if d, err := a.Describe(t.Context(), defaultCheckSequence); err != nil || d.LastID < 12 {
				t.Errorf("nothing was leased: %+v, %v", d, err)
			}
		})
	}
	for endpoint, want := range map[string]bool{"": false, "http://127.0.0.1:8000": true, "https://dynamodb.eu-west-1.amazonaws.com": false,
		"https://1.ddb.eu-west-1.api.aws": false, "https://db.example.com": true} {
		o := dynamodb.Options{Region: "eu-west-1"}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		if got := (&dynamo{client: dynamodb.New(o)}).elsewhere(); got != want {
			t.Errorf("%q: %t", endpoint, got)
		}
	}
}

func TestCheckIsBoundedAndEndsWithClose(t *testing.T) {
	store, _ := withFaults(Memory(), func(string, string, int) fault { return fault{hang: true} })
	a := newTest(t, store, func(o *Options) { o.AttemptTimeout = 20 * time.Millisecond })
	if r, err := a.Check(t.Context()); err == nil || len(r.Errors) != 1 {
		t.Error(r, err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Check(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// What the message says is what has to be set: a backup's time has milliseconds.
func TestARestoreIsAcknowledgedByTheTimeThatCheckSays(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 217e6, time.UTC)
	for _, r := range []types.RestoreSummary{{RestoreDateTime: &at}, {}} {
		f := &fakeTable{table: types.TableDescription{RestoreSummary: &r}}
		d := DynamoDB(f, "t").backend.(*dynamo)
		restored := func(seen time.Time) string {
			c := check{opts: CheckOptions{RestoreSeen: seen}}
			d.checkTable(t.Context(), &c)
			for _, e := range c.Errors {
				if strings.Contains(e, "was restored") {
					return e
				}
			}
			return ""
		}
		said := restored(time.Time{})
		if said == "" {
			t.Fatalf("%+v: nothing is said", r)
		}
		seen := at
		if _, rest, ok := strings.Cut(said, "restored as of "); ok {
			text, _, _ := strings.Cut(rest, ": ")
			seen = must(time.Parse(time.RFC3339Nano, text))
		}
		if again := restored(seen); again != "" {
			t.Errorf("RestoreSeen is %v: %s", seen, again)
		}
	}
}

// emptyTable answers nothing at all, without an error.
type emptyTable struct{ fakeTable }

func (*emptyTable) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return nil, nil
}

func (*emptyTable) DescribeContinuousBackups(context.Context, *dynamodb.DescribeContinuousBackupsInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeContinuousBackupsOutput, error) {
	return nil, nil
}

func (*emptyTable) DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	return nil, nil
}

func (*emptyTable) Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error) {
	return nil, nil
}

func TestAnEmptyAnswerIsNoPanic(t *testing.T) {
	a := newTest(t, DynamoDB(&emptyTable{}, "t"))
	if r, err := a.Check(t.Context()); err != nil || len(r.Unseen) != 3 {
		t.Errorf("%v, %v", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for _, err := range a.List(ctx) {
		if err == nil {
			t.Error("listed")
		}
	}
}
