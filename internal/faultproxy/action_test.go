package faultproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

func TestNoRulePassesByteForByte(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	resp, body, err := update(t, p, "a")
	if err != nil {
		t.Fatal(err)
	}
	if body != replyBody(1) || u.bodies[0] != bodyFor("a") {
		t.Errorf("bodies changed: sent %q, received %q", u.bodies[0], body)
	}
	if got, want := resp.Header.Get("X-Amz-Crc32"), fmt.Sprint(crc32.ChecksumIEEE([]byte(body))); got != want {
		t.Errorf("X-Amz-Crc32 = %s, want %s", got, want)
	}
	if got, want := resp.Header.Get("X-Echo"), strings.TrimPrefix(p.URL(), "http://")+" signed"; got != want {
		t.Errorf("upstream saw host and signature %q, want %q", got, want)
	}
	wantApplied(t, p, u, faultproxy.Yes)
	e := last(t, p)
	want := faultproxy.Entry{
		Seq: 1, Arrived: e.Arrived, Settled: e.Settled, Op: "UpdateItem", Table: "t", Key: "a", Body: bodyFor("a"),
		Applied: faultproxy.Yes, UpstreamStatus: 200, UpstreamBody: replyBody(1),
	}
	if e != want {
		t.Errorf("entry\n%+v, want\n%+v", e, want)
	}
	if c := p.Count("", "a"); c.Faulted != 0 {
		t.Errorf("faulted: %+v", c)
	}
}

func TestErrorsAreNotApplied(t *testing.T) {
	html := "<html>down</html>"
	tests := []struct {
		action      faultproxy.Action
		status      int
		typ         string // __type; empty: the body is raw
		raw         string
		contentType string
	}{
		{action: faultproxy.Error(400, "AccessDeniedException", "no"), status: 400, typ: "com.amazonaws.dynamodb.v20120810#AccessDeniedException"},
		{action: faultproxy.Error(400, "com.amazon.coral.service#UnrecognizedClientException", "no"), status: 400, typ: "com.amazon.coral.service#UnrecognizedClientException"},
		{action: faultproxy.Error(500, "InternalServerError", ""), status: 500, typ: "com.amazonaws.dynamodb.v20120810#InternalServerError"},
		{action: faultproxy.Error(0, "ValidationException", "x"), status: 400, typ: "com.amazonaws.dynamodb.v20120810#ValidationException"},
		{action: faultproxy.Raw(503, "text/html", html), status: 503, raw: html, contentType: "text/html"},
		{action: faultproxy.Raw(429, "", "{}"), status: 429, raw: "{}"},
		{action: faultproxy.Raw(400, "text/plain", "bad"), status: 400, raw: "bad", contentType: "text/plain"},
		{action: faultproxy.Empty(), status: 200, raw: ""},
		{action: faultproxy.Raw(200, "", "{}"), status: 200, raw: "{}"},
	}
	for _, test := range tests {
		for _, apply := range []bool{false, true} {
			action, want := test.action, faultproxy.No
			if apply {
				action, want = action.AfterApply(), faultproxy.Yes
			}
			t.Run(fmt.Sprintf("%d %s %s applied %s", test.status, test.typ, test.raw, want), func(t *testing.T) {
				u := newUpstream(t)
				p := newProxy(t, u)
				always(t, p, action)
				resp, body, err := update(t, p, "a")
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != test.status {
					t.Errorf("status %d, want %d", resp.StatusCode, test.status)
				}
				contentType := "application/x-amz-json-1.0"
				if test.contentType != "" {
					contentType = test.contentType
				}
				if got := resp.Header.Get("Content-Type"); got != contentType {
					t.Errorf("Content-Type %q, want %q", got, contentType)
				}
				if test.typ == "" {
					if body != test.raw {
						t.Errorf("body %q, want %q", body, test.raw)
					}
				} else if got := decode(t, body); got["__type"] != test.typ || got["message"] != test.action.Message {
					t.Errorf("body %s, want __type %s and message %q", body, test.typ, test.action.Message)
				}
				wantApplied(t, p, u, want)
				if c := p.Count("UpdateItem", "a"); c.Faulted != 1 {
					t.Errorf("counters %+v, want 1 faulted", c)
				}
			})
		}
	}
}

func decode(t *testing.T, body string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return m
}

func TestThrottleSpellsItsReasonsAsDynamoDBDoes(t *testing.T) {
	const reason = "TableWriteKeyRangeThroughputExceeded"
	for code, key := range map[string]string{
		"ProvisionedThroughputExceededException":            "ThrottlingReasons",
		"RequestLimitExceeded":                              "ThrottlingReasons",
		"ThrottlingException":                               "throttlingReasons",
		"com.amazon.coral.availability#ThrottlingException": "throttlingReasons",
	} {
		t.Run(code, func(t *testing.T) {
			u := newUpstream(t)
			p := newProxy(t, u)
			action := faultproxy.Throttle(code, reason)
			action.RetryAfter = faultproxy.Exactly(1500 * time.Millisecond)
			always(t, p, action)
			resp, body, err := update(t, p, "a")
			if err != nil {
				t.Fatal(err)
			}
			reasons, _ := decode(t, body)[key].([]any)
			if resp.StatusCode != http.StatusBadRequest || len(reasons) != 1 || !strings.Contains(body, reason) || !strings.Contains(body, ":table/t") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if got := resp.Header.Get("X-Amz-Retry-After"); got != "1500" {
				t.Errorf("X-Amz-Retry-After = %q", got)
			}

			action.ReasonsKey = "other"
			always(t, p, action)
			if _, body, _ = update(t, p, "a"); !strings.Contains(body, `"other":[`) {
				t.Errorf("ReasonsKey is not obeyed: %s", body)
			}
			always(t, p, faultproxy.Throttle(code))
			if _, body, _ = update(t, p, "a"); strings.Contains(strings.ToLower(body), "reasons") {
				t.Errorf("reasons where none were asked for: %s", body)
			}
		})
	}
}

func TestErrorCarriesFurtherFields(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	action := faultproxy.Error(400, "ConditionalCheckFailedException", "failed")
	action.Fields = map[string]any{"Item": map[string]any{"lastID": map[string]any{"N": "7"}}}
	always(t, p, action)
	_, body, err := update(t, p, "a")
	if err != nil || !strings.Contains(body, `"Item":{"lastID":{"N":"7"}}`) {
		t.Errorf("%v %s", err, body)
	}
}

func TestDateIsSkewed(t *testing.T) {
	u := newUpstream(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	p := newProxy(t, u, func(o *faultproxy.Options) { o.Now = func() time.Time { return now } })
	for _, action := range []faultproxy.Action{faultproxy.Pass(), faultproxy.Error(400, "AccessDeniedException", "")} {
		action.DateSkew = faultproxy.Exactly(-10 * time.Minute)
		always(t, p, action)
		resp, _, err := update(t, p, "a")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := resp.Header.Get("Date"), now.Add(-10*time.Minute).Format(http.TimeFormat); got != want {
			t.Errorf("Date = %q, want %q", got, want)
		}
	}
}

func TestBrokenConnections(t *testing.T) {
	half := len(replyBody(1)) / 2
	tests := []struct {
		name    string
		action  faultproxy.Action
		applied faultproxy.Applied
		status  int // of the headers that come through; 0: none do
		body    string
		err     func(error) bool
	}{
		{"drop, FIN", faultproxy.Drop(faultproxy.FIN), faultproxy.Yes, 0, "", is(io.EOF)},
		{"drop, RST", faultproxy.Drop(faultproxy.RST), faultproxy.Yes, 0, "", is(syscall.ECONNRESET)},
		{"reset before forwarding", faultproxy.Reset(), faultproxy.No, 0, "", is(syscall.ECONNRESET)},
		{"close before forwarding", faultproxy.Action{Kind: faultproxy.KindClose}, faultproxy.No, 0, "", is(io.EOF)},
		{"cut in the body, FIN", faultproxy.Cut(half, faultproxy.FIN), faultproxy.Yes, 200, replyBody(1)[:half], is(io.ErrUnexpectedEOF)},
		{"cut in the body, RST", faultproxy.Cut(half, faultproxy.RST), faultproxy.Yes, 200, replyBody(1)[:half], isReset},
		{"cut after the headers", faultproxy.Cut(0, faultproxy.FIN), faultproxy.Yes, 200, "", is(io.ErrUnexpectedEOF)},
		{"cut is never whole", faultproxy.Cut(9999, faultproxy.FIN), faultproxy.Yes, 200, strings.TrimSuffix(replyBody(1), "\n"), is(io.ErrUnexpectedEOF)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u := newUpstream(t)
			p := newProxy(t, u)
			always(t, p, test.action)
			resp, body, err := update(t, p, "a")
			if !test.err(err) {
				t.Errorf("unexpected error %v", err)
			}
			switch {
			case test.status == 0 && resp != nil:
				t.Errorf("a reply came through: %d %q", resp.StatusCode, body)
			case test.status == 0:
			case resp == nil:
				t.Errorf("no headers came through: %v", err)
			default:
				if resp.StatusCode != test.status || body != test.body {
					t.Errorf("%d %q, want %d %q", resp.StatusCode, body, test.status, test.body)
				}
				if resp.ContentLength != int64(len(replyBody(1))) {
					t.Errorf("Content-Length %d, want that of the whole", resp.ContentLength)
				}
			}
			wantApplied(t, p, u, test.applied)

			setRules(t, p) // the proxy is as good as new
			mustPass(t, p, "b")
		})
	}
}

func TestMutateChangesRepliesAndNothingElse(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	always(t, p, faultproxy.Mutate(func(reply map[string]any) {
		reply["Attributes"].(map[string]any)["lastID"] = map[string]any{"N": "1.5"}
	}))
	resp, body, err := update(t, p, "a")
	if err != nil || body != `{"Attributes":{"lastID":{"N":"1.5"}}}` {
		t.Fatalf("%v %q", err, body)
	}
	if got, want := resp.Header.Get("X-Amz-Crc32"), fmt.Sprint(crc32.ChecksumIEEE([]byte(body))); got != want {
		t.Errorf("X-Amz-Crc32 = %s, want %s", got, want)
	}
	wantApplied(t, p, u, faultproxy.Yes)
	if e := last(t, p); e.UpstreamBody != replyBody(1) {
		t.Errorf("the log has %q, want what upstream said", e.UpstreamBody)
	}
	u.status = 400
	if _, body, err = update(t, p, "a"); err != nil || body != replyBody(2) {
		t.Errorf("an error was changed: %v %q", err, body)
	}
}

func TestDelays(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	const d = 30 * time.Millisecond
	for name, action := range map[string]faultproxy.Action{
		"before": faultproxy.Delay(faultproxy.Between(d, 2*d), faultproxy.Span{}),
		"after":  faultproxy.Delay(faultproxy.Span{}, faultproxy.Exactly(d)),
	} {
		always(t, p, action)
		began := time.Now()
		mustPass(t, p, "a")
		if took := time.Since(began); took < d {
			t.Errorf("%s: took %v, want %v at least", name, took, d)
		}
		e := last(t, p)
		if e.Fault != "delay" {
			t.Errorf("%s: fault %q", name, e.Fault)
		}
		if early := e.Settled.Sub(e.Arrived) < d; early != (name == "after") {
			t.Errorf("%s: settled %v after arrival", name, e.Settled.Sub(e.Arrived))
		}
	}
}

func TestADelayedRequestIsAppliedAfterItsClientGaveUp(t *testing.T) {
	u := newUpstream(t)
	u.gate = make(chan struct{})
	p := newProxy(t, u)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-u.got // upstream has it
		cancel()
	}()
	if _, _, err := send(ctx, p, "UpdateItem", "a"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if e := last(t, p); e.Applied != faultproxy.Unknown || !e.Settled.IsZero() {
		t.Errorf("settled before upstream answered: %+v", e)
	}
	close(u.gate)
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantApplied(t, p, u, faultproxy.Yes)
}

func TestBlackhole(t *testing.T) {
	for _, action := range []faultproxy.Action{faultproxy.Blackhole(), faultproxy.Blackhole().AfterApply()} {
		u := newUpstream(t)
		settled := make(chan faultproxy.Entry, 1)
		p := newProxy(t, u, func(o *faultproxy.Options) { o.OnEntry = func(e faultproxy.Entry) { settled <- e } })
		always(t, p, action)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-settled
			cancel()
		}()
		if _, _, err := send(ctx, p, "UpdateItem", "a"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		want := faultproxy.No
		if action.Apply {
			want = faultproxy.Yes
		}
		wantApplied(t, p, u, want)
	}
}
