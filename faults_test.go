package ddbseq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// proxied returns a proxy in front of an emulator, and a table behind it.
func proxied(t testing.TB, optFns ...func(*dynamodb.Options)) (*faultproxy.Proxy, *Store) {
	t.Helper()
	p, err := faultproxy.New(emulator.Endpoint(t, emulator.Default()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	// Idle connections of the default client would outlive the test.
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := testClient(p.URL(), append([]func(*dynamodb.Options){func(o *dynamodb.Options) {
		o.HTTPClient = &http.Client{Transport: transport}
	}}, optFns...)...)
	return p, tableOn(t, client)
}

func rules(t testing.TB, p *faultproxy.Proxy, rs ...faultproxy.Rule) {
	t.Helper()
	if err := p.SetRules(rs...); err != nil {
		t.Fatal(err)
	}
}

// inLedger checks that each ID lies in a block that a write in the proxy's log
// leased, and in one only.
func inLedger(t testing.TB, p *faultproxy.Proxy, key string, ids []int64) {
	t.Helper()
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	owner := map[int64]int64{}
	for _, e := range p.Log() {
		if e.Op != "UpdateItem" || e.Key != key || e.UpstreamStatus != http.StatusOK {
			continue
		}
		var reply struct {
			Attributes map[string]struct{ N string }
		}
		if err := json.Unmarshal([]byte(e.UpstreamBody), &reply); err != nil {
			t.Fatalf("%v: %s", err, e.UpstreamBody)
		}
		at, err1 := strconv.ParseInt(reply.Attributes[attrAt].N, 10, 64)
		n, err2 := strconv.ParseInt(reply.Attributes[attrN].N, 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		for id := at - n + 1; id <= at; id++ {
			if other, ok := owner[id]; ok {
				t.Errorf("ID %d was leased by requests %d and %d", id, other, e.Seq)
			}
			owner[id] = e.Seq
		}
	}
	for _, id := range ids {
		if _, ok := owner[id]; !ok {
			t.Errorf("ID %d was handed out and never leased", id)
		}
	}
	allDifferent(t, ids)
}

// A wireFault is what a proxy does to a request, and what callers must see of it.
type wireFault struct {
	action    faultproxy.Action
	permanent error // what callers get, nil if they get IDs in the end
	recovered bool  // the write was made, and the retry finds it
	late      bool  // the write is made when the test releases it
}

func wireFaults() map[string]wireFault {
	return map[string]wireFault{
		"throttled (provisioned)":   {action: faultproxy.Throttle("ProvisionedThroughputExceededException")},
		"throttled with a reason":   {action: faultproxy.Throttle("ThrottlingException", "TableWriteKeyRangeThroughputExceeded")},
		"throttled (account)":       {action: faultproxy.Throttle("RequestLimitExceeded")},
		"429":                       {action: faultproxy.Error(429, "SomethingNew", "slow down")},
		"500":                       {action: faultproxy.Error(500, "InternalServerError", "oops")},
		"500 after the write":       {action: faultproxy.Error(500, "InternalServerError", "oops").AfterApply(), recovered: true},
		"503":                       {action: faultproxy.Error(503, "ServiceUnavailable", "oops")},
		"502 of a proxy":            {action: faultproxy.Raw(502, "text/html", "<html>bad gateway</html>")},
		"400 of a proxy":            {action: faultproxy.Raw(400, "text/html", "<html>bad request</html>")},
		"503 without a body":        {action: faultproxy.Raw(503, "", "")},
		"conflict":                  {action: faultproxy.Error(400, "TransactionConflictException", "oops")},
		"conflict of regions":       {action: faultproxy.Error(400, "ReplicatedWriteConflictException", "oops")},
		"expired token":             {action: faultproxy.Error(400, "ExpiredTokenException", "expired")},
		"reply lost":                {action: faultproxy.Drop(faultproxy.RST), recovered: true},
		"reply lost, end of file":   {action: faultproxy.Drop(faultproxy.FIN), recovered: true},
		"reply cut":                 {action: faultproxy.Cut(10, faultproxy.RST), recovered: true},
		"reply cut, end of file":    {action: faultproxy.Cut(10, faultproxy.FIN), recovered: true},
		"empty 200":                 {action: faultproxy.Empty()},
		"empty 200 after the write": {action: faultproxy.Empty().AfterApply(), recovered: true},
		"{}":                        {action: faultproxy.Raw(200, "application/x-amz-json-1.0", "{}")},
		"{} after the write":        {action: faultproxy.Raw(200, "application/x-amz-json-1.0", "{}").AfterApply(), recovered: true},
		"HTML after the write":      {action: faultproxy.Raw(200, "text/html", "<html>welcome</html>").AfterApply(), recovered: true},
		"reset":                     {action: faultproxy.Reset()},
		"black hole":                {action: faultproxy.Blackhole()},
		"black hole, written":       {action: faultproxy.Blackhole().AfterApply(), recovered: true},
		"late":                      {action: faultproxy.Late(faultproxy.Span{}), late: true},
		"slow":                      {action: faultproxy.Delay(faultproxy.Exactly(20*time.Millisecond), faultproxy.Exactly(20*time.Millisecond))},
		"access denied":             {action: faultproxy.Error(400, "AccessDeniedException", "not authorized"), permanent: ErrAccessDenied},
		"unknown client":            {action: faultproxy.Error(400, "UnrecognizedClientException", "invalid token"), permanent: ErrAccessDenied},
		"no table":                  {action: faultproxy.Error(400, "ResourceNotFoundException", "not found"), permanent: ErrTableNotFound},
		"validation":                {action: faultproxy.Error(400, "ValidationException", "The provided key element does not match the schema"), permanent: ErrSchema},
	}
}

func TestEveryFaultOfTheWire(t *testing.T) {
	p, store := proxied(t)
	for _, when := range []string{"first", "advisory", "mandatory"} {
		for name, f := range wireFaults() {
			t.Run(when+"/"+name, func(t *testing.T) {
				key := "faults." + when + "." + name
				a := newTest(t, store, createMissing, patient, func(o *Options) {
					o.MinBlock, o.MaxBlock, o.rand = 10, 10, func() float64 { return 0.1 }
					if f.late || f.action.Kind == faultproxy.KindBlackhole {
						o.AttemptTimeout = 150 * time.Millisecond
					}
					if when != "advisory" {
						o.Runway = 0
					}
				})
				s := sequenceOf(t, a, key)
				var ids []int64
				next := func() error {
					id, err := s.Next(t.Context())
					if err == nil {
						if n := len(ids); n > 0 && id <= ids[n-1] {
							t.Errorf("%d came after %d", id, ids[n-1])
						}
						ids = append(ids, id)
					}
					return err
				}
				if when != "first" {
					if err := next(); err != nil {
						t.Fatal(err)
					}
					have := s.Stats().Remaining
					rules(t, p, faultproxy.Rule{Op: "UpdateItem", Key: key, Count: 1, Action: f.action})
					for range have { // whatever becomes of the refill, these are in memory
						if err := next(); err != nil {
							t.Fatalf("with IDs in memory: %v", err)
						}
					}
				} else {
					rules(t, p, faultproxy.Rule{Op: "UpdateItem", Key: key, Count: 1, Action: f.action})
				}
				failed := false
				for len(ids) < 30 {
					err := next()
					if err == nil {
						continue
					}
					if failed || f.permanent == nil || !errors.Is(err, f.permanent) {
						t.Fatalf("after %d IDs: %v", len(ids), err)
					}
					failed = true
					forgive(s) // instead of a second's wait
				}
				if p.Count("UpdateItem", key).Faulted != 1 {
					t.Errorf("the fault did not happen: %+v", p.Count("UpdateItem", key))
				}
				if st := s.Stats(); f.recovered && st.Recovered == 0 {
					t.Errorf("nothing was recovered: %+v", st)
				}
				if failed != (f.permanent != nil) && when != "advisory" {
					t.Errorf("callers saw an error: %t", failed)
				}
				allFromTo(t, 1, int64(len(ids)), ids) // no fault cost an ID
				if f.late {
					if p.Release() != 1 {
						t.Error("no write was late")
					}
					for range 20 {
						if err := next(); err != nil {
							t.Fatal(err)
						}
					}
				}
				inLedger(t, p, key, ids)
			})
		}
	}
}

func TestOneRequestForEachAttemptWhateverTheClientsRetries(t *testing.T) {
	for name, optFn := range map[string]func(*dynamodb.Options){
		"default":      func(*dynamodb.Options) {},
		"seven":        func(o *dynamodb.Options) { o.RetryMaxAttempts = 7 },
		"adaptive":     func(o *dynamodb.Options) { o.RetryMode, o.RetryMaxAttempts = aws.RetryModeAdaptive, 7 },
		"own retryer":  func(o *dynamodb.Options) { o.Retryer = retry.AddWithMaxAttempts(retry.NewStandard(), 9) },
		"own adaptive": func(o *dynamodb.Options) { o.Retryer = retry.NewAdaptiveMode() },
	} {
		t.Run(name, func(t *testing.T) {
			p, store := proxied(t, optFn)
			a := newTest(t, store, fixed(5), createMissing, patient, func(o *Options) { o.rand = func() float64 { return 0 } })
			s := sequenceOf(t, a, "s")
			rules(t, p,
				faultproxy.Rule{Op: "UpdateItem", Key: "s", Count: 6, Action: faultproxy.Throttle("ThrottlingException")},
				faultproxy.Rule{Op: "UpdateItem", Key: "s", Count: 6, Action: faultproxy.Error(500, "InternalServerError", "oops")},
				faultproxy.Rule{Op: "UpdateItem", Key: "s", Count: 2, Action: faultproxy.Reset()},
				faultproxy.Rule{Op: "GetItem", Key: "s", Count: 3, Action: faultproxy.Error(503, "ServiceUnavailable", "oops")})
			if id, err := s.Next(t.Context()); id != 1 || err != nil {
				t.Fatal(id, err)
			}
			st := s.Stats()
			if wire := p.Count("", "s").Requests; int64(wire) != st.Attempts || wire != 3+1+6+6+2+1 {
				t.Errorf("%d requests on the wire, %d attempts, want %d", wire, st.Attempts, 3+1+6+6+2+1)
			}
			if st.Throttled.Total() != 6 {
				t.Errorf("statistics: %+v", st)
			}
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	p, store := proxied(t)
	a := newTest(t, store, fixed(5), createMissing, func(o *Options) { o.rand = func() float64 { return 0 } })
	throttle := faultproxy.Throttle("ThrottlingException")
	throttle.RetryAfter = faultproxy.Exactly(300 * time.Millisecond)
	rules(t, p, faultproxy.Rule{Op: "UpdateItem", Count: 1, Action: throttle})
	must(a.Next(t.Context(), "s"))
	var at []time.Time
	for _, e := range p.Log() {
		if e.Op == "UpdateItem" {
			at = append(at, e.Arrived)
		}
	}
	if len(at) != 2 || at[1].Sub(at[0]) < 300*time.Millisecond {
		t.Errorf("requests at %v, want two, 300 ms apart", at)
	}
}

// The codes of DYNAMODB's "Error handling" page and what they mean to a lease.
func TestEveryErrorCodeHasItsClass(t *testing.T) {
	const no, maybe = false, true
	for _, c := range []struct {
		status    int
		code      string
		permanent bool
		maybe     bool
		kind      error
	}{
		{400, "ProvisionedThroughputExceededException", no, no, ErrThrottled},
		{400, "ThrottlingException", no, no, ErrThrottled},
		{400, "com.amazon.coral.service#ThrottlingException", no, no, ErrThrottled},
		{400, "RequestLimitExceeded", no, no, ErrThrottled},
		{400, "LimitExceededException", no, no, ErrThrottled},
		{429, "Unheard", no, no, ErrThrottled},
		{500, "InternalServerError", no, maybe, nil},
		{500, "InternalFailure", no, maybe, nil},
		{500, "Unheard", no, maybe, nil},
		{503, "ServiceUnavailable", no, maybe, nil},
		{504, "Unheard", no, maybe, nil},
		{400, "RequestTimeout", no, maybe, nil},
		{400, "RequestTimeoutException", no, maybe, nil},
		{400, "ReplicatedWriteConflictException", no, no, nil},
		{400, "TransactionConflictException", no, no, nil},
		{400, "TransactionInProgressException", no, no, ErrThrottled},
		{400, "ExpiredTokenException", no, no, nil},
		{400, "IdempotentParameterMismatchException", true, no, nil},
		{400, "ItemCollectionSizeLimitExceededException", true, no, nil},
		{400, "ResourceNotFoundException", true, no, ErrTableNotFound},
		{400, "ResourceInUseException", true, no, nil},
		{400, "ValidationException", true, no, nil},
		{400, "com.amazon.coral.validate#ValidationException", true, no, nil},
		{400, "SerializationException", true, no, nil},
		{400, "AccessDeniedException", true, no, ErrAccessDenied},
		{400, "com.amazon.coral.service#AccessDeniedException", true, no, ErrAccessDenied},
		{400, "UnrecognizedClientException", true, no, ErrAccessDenied},
		{400, "InvalidSignatureException", true, no, ErrAccessDenied},
		{400, "MissingAuthenticationToken", true, no, ErrAccessDenied},
		{421, "InvalidEndpointException", true, no, nil},
		{400, "Unheard", true, no, nil},
	} {
		t.Run(fmt.Sprint(c.status, " ", c.code), func(t *testing.T) {
			p := codeServer(t)
			rules(t, p, faultproxy.Rule{Op: "UpdateItem", Action: faultproxy.Error(c.status, c.code, "said the server")})
			_, err := DynamoDB(testClient(p.URL()), "t").backend.apply(t.Context(), createOf("s"))
			le, ok := asLeaseError(err)
			if !ok || le.Permanent != c.permanent || le.MaybeApplied != c.maybe || le.kind != c.kind || le.Throttled != (c.kind == ErrThrottled) {
				t.Fatalf("got %+v", le)
			}
			if permanent(err) != c.permanent || c.kind != nil && !errors.Is(err, c.kind) || le.Op != "UpdateItem" || le.Table != "t" || le.Sequence != "s" {
				t.Errorf("got %v", err)
			}
			if n := p.Count("UpdateItem", "").Requests; n != 1 {
				t.Errorf("%d requests", n)
			}
			rules(t, p, faultproxy.Rule{Op: "GetItem", Action: faultproxy.Error(c.status, c.code, "said the server")})
			_, err = DynamoDB(testClient(p.URL()), "t").backend.get(t.Context(), "s")
			if le, ok := asLeaseError(err); !ok || le.Permanent != c.permanent || le.MaybeApplied {
				t.Errorf("reading got %+v", le)
			}
		})
	}
}

// codeServer is a proxy to nowhere that all subtests of a test share.
func codeServer(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestReasonsOfThrottlesAreTold(t *testing.T) {
	for _, code := range []string{"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"} {
		p := codeServer(t)
		rules(t, p, faultproxy.Rule{Op: "UpdateItem", Action: faultproxy.Throttle(code, "TableWriteKeyRangeThroughputExceeded")})
		_, err := DynamoDB(testClient(p.URL()), "t").backend.apply(t.Context(), createOf("s"))
		if le, ok := asLeaseError(err); !ok || len(le.Reasons) != 1 || le.Reasons[0] != "TableWriteKeyRangeThroughputExceeded" {
			t.Errorf("%s: %+v", code, err)
		}
	}
}

func TestRefusedConnectionsAreTransientAndNotApplied(t *testing.T) {
	p := codeServer(t)
	url := p.URL()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := DynamoDB(testClient(url), "t").backend.apply(t.Context(), createOf("s"))
	if le, ok := asLeaseError(err); !ok || le.Permanent || le.MaybeApplied {
		t.Errorf("got %+v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = DynamoDB(testClient(url), "t").backend.apply(ctx, createOf("s"))
	if le, ok := asLeaseError(err); !ok || le.Permanent || le.MaybeApplied || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that had ended: %+v", err)
	}
}

func TestOurRetriesDoNotDrainTheQuotaOfASharedClient(t *testing.T) {
	p, store := proxied(t, func(o *dynamodb.Options) {
		o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = 10 * time.Millisecond })
	})
	client := store.backend.(*dynamo).client.(*dynamodb.Client)
	a := newTest(t, store, fixed(5), createMissing, patient, func(o *Options) { o.rand = func() float64 { return 0 } })
	// 500 tokens at 5 for each retry would be gone after 100.
	rules(t, p, faultproxy.Rule{Op: "UpdateItem", Key: "s", Count: 150, Action: faultproxy.Error(500, "InternalServerError", "oops")},
		faultproxy.Rule{Op: "GetItem", Key: "theirs", Count: 2, Action: faultproxy.Error(500, "InternalServerError", "oops")})
	if id, err := a.Next(t.Context(), "s"); id != 1 || err != nil {
		t.Fatal(id, err)
	}
	_, err := client.GetItem(t.Context(), &dynamodb.GetItemInput{
		TableName: &store.backend.(*dynamo).name, Key: map[string]types.AttributeValue{"entityType": str("theirs")},
	})
	if err != nil {
		t.Errorf("a call of the user's own: %v", err)
	}
	if n := p.Count("GetItem", "theirs").Requests; n != 3 {
		t.Errorf("the user's own call made %d requests, want 3", n)
	}
}
