package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

func TestOptionsThatAreNilSayNothing(t *testing.T) {
	client := dynamodb.New(dynamodb.Options{})
	ok(t, DynamoDB(client, "t", nil).backend.check())
	a, err := New(Memory(), nil)
	ok(t, err)
	t.Cleanup(func() { ok(t, a.Close(context.Background())) })
	var clause Clause
	s, err := a.Sequence("s", nil, clause, WithSizing(nil))
	ok(t, err)
	ok(t, a.Create(t.Context(), "s", nil))
	ok(t, a.Alter(t.Context(), "s", nil, Tune(nil)))
	must(s.Next(t.Context()))
	must(a.Check(t.Context(), nil))
}

func TestWhatMakesNoSenseIsRefusedBeforeAnyCall(t *testing.T) {
	client := dynamodb.New(dynamodb.Options{})
	var none *dynamodb.Client
	for text, s := range map[string]*Store{
		"client is nil": DynamoDB(none, "t"), "DynamoDB: client is nil": DynamoDB(nil, "t"),
		`"bad name!" is no name of a table`: DynamoDB(client, "bad name!"),
	} {
		_, err := New(s)
		wantErr(t, err, ErrInvalidOptions, text)
	}
	ok(t, DynamoDB(client, "arn:aws:dynamodb:eu-west-1:123456789012:table/my_se.quen-ces").backend.check())
	_, err := New(Memory(), func(o *Options) { o.KeyPrefix = "\xff" })
	wantErr(t, err, ErrInvalidOptions, "KeyPrefix", "UTF-8")
	a := newTest(t, Memory())
	_, err = a.Sequence("orders", WithSizing(func(z *Sizing) { z.MinBlock = 0 }))
	wantErr(t, err, ErrInvalidOptions, "MinBlock", `"orders"`)
	ok(t, a.Create(t.Context(), "orders"))
	err = a.Alter(t.Context(), "orders", Tune(func(tn *Tuning) { tn.Runway = new(-time.Second) }))
	wantErr(t, err, ErrInvalidOptions, "Runway", `"orders"`, `"memory"`)
	if n := strings.Count(err.Error(), "invalid options"); n != 1 {
		t.Errorf("%v says it %d times", err, n)
	}
}

// Without credentials there is no outage to wait for the end of.
func TestOpenWithoutCredentialsFails(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", nowhere)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_REGION", "eu-west-1")
	_, err := Open(t.Context(), "sequences")
	wantErr(t, err, ErrAccessDenied, `"sequences"`, "AWS_ACCESS_KEY_ID")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	a, err := Open(t.Context(), "sequences")
	ok(t, err)
	ok(t, a.Close(t.Context()))
}

// An error that does not say what to do makes somebody read this code.
func TestErrorsSayWhereAndWhatToDo(t *testing.T) {
	p := codeServer(t)
	call := func(code string) error {
		rules(t, p, faultproxy.Rule{Action: faultproxy.Error(400, code, "said the server")})
		_, err := DynamoDB(testClient(p.URL()), "t").backend.apply(t.Context(), createOf("s"))
		return err
	}
	closed := newTest(t, Memory())
	s := sequenceOf(t, closed, "s")
	ok(t, closed.Close(t.Context()))
	a := newTest(t, Memory(), strict(1))
	ok(t, a.Create(t.Context(), "s", MaxValue(100)))
	want(t, a, "s", 1, 2, 3)
	_, nextErr := s.Next(t.Context())
	_, sequenceErr := closed.Sequence("t")
	_, advanceErr := a.Advance(t.Context(), "none", 5)
	for _, c := range []struct {
		err   error
		texts []string
	}{
		{call("AccessDeniedException"), []string{`"s"`, `"t"`, "allow dynamodb:UpdateItem"}},
		{call("UnrecognizedClientException"), []string{`"s"`, `"t"`, "check the credentials"}},
		{call("InvalidSignatureException"), []string{`"s"`, `"t"`, "check the credentials"}},
		{call("ProvisionedThroughputExceededException"), []string{`"s"`, `"t"`, "raise LeaseEvery"}},
		{nextErr, []string{`"s"`, `"memory"`, "closed"}},
		{sequenceErr, []string{`"memory"`, "closed"}},
		{advanceErr, []string{`"none"`, "Create", "StartWith beyond every ID"}},
		{a.Alter(t.Context(), "s", MaxValue(2)), []string{`"s"`, "3, the last value leased", "MAXVALUE (2)"}},
		{a.Restart(t.Context(), "s", 1000), []string{`"s"`, "1..100", "Alter"}},
		{a.Create(t.Context(), "s2", Pause()), []string{`"s2"`, "Pause", "Alter"}},
		{sequenceOf(t, a, "s").Fill(t.Context(), nil), []string{`"s"`, `"memory"`, "1 or more"}},
		{&MovedBackError{Sequence: "s", Table: "t", Reason: reasonDeleted}, []string{"Create it with a StartWith"}},
		{&MovedBackError{Sequence: "s", Table: "t", Reason: "another"}, []string{"Advance it"}},
		{&corruptError{"s", "t", "at is S"}, []string{"TableOptions.Rename"}},
		{&layoutError{"s", "t", 7}, []string{"upgrade", "TableOptions.Rename"}},
		{&LeaseError{Table: "t", kind: ErrSchema, Err: errBoom}, []string{"TableOptions.KeyAttribute"}},
	} {
		for _, text := range c.texts {
			if c.err == nil || !strings.Contains(c.err.Error(), text) {
				t.Errorf("%v does not say %q", c.err, text)
			}
		}
	}
	if !errors.Is(nextErr, ErrClosed) || !errors.Is(sequenceErr, ErrClosed) || !errors.Is(advanceErr, ErrNotFound) {
		t.Error(nextErr, sequenceErr, advanceErr)
	}
	if got := fmt.Sprint(AlertSet(1<<AlertRunway | 1<<AlertThrottled)); got != fmt.Sprint([]AlertKind{AlertThrottled, AlertRunway}) {
		t.Error(got)
	}
}
