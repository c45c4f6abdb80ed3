package faultproxy_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// holdRequests makes every request late and returns a channel that says when
// one has arrived.
func holdRequests(t *testing.T, p *faultproxy.Proxy, hold faultproxy.Span) <-chan int64 {
	t.Helper()
	seen := make(chan int64, 100)
	setRules(t, p, faultproxy.Rule{
		Match:  func(r *faultproxy.Request) bool { seen <- r.Seq; return true },
		Action: faultproxy.Late(hold),
	})
	return seen
}

// abandon sends a request for key and gives up once the proxy has it.
func abandon(t *testing.T, p *faultproxy.Proxy, seen <-chan int64, key string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-seen
		cancel()
	}()
	if _, _, err := send(ctx, p, "UpdateItem", key); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestLateRequestsAreAppliedOnRelease(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	seen := holdRequests(t, p, faultproxy.Span{})
	for _, key := range []string{"a", "b", "c"} {
		abandon(t, p, seen, key)
	}
	if err := p.Wait(t.Context()); err != nil { // does not wait for the held
		t.Fatal(err)
	}
	if held := p.Held(); len(held) != 3 || held[0].Key != "a" || held[0].Applied != faultproxy.No {
		t.Fatalf("held %+v", held)
	}
	if u.applied() != 0 {
		t.Fatal("applied before Release")
	}
	setRules(t, p)
	mustPass(t, p, "overtaking")

	if n := p.Release(2); n != 1 {
		t.Errorf("Release(2) = %d", n)
	}
	if n := p.Release(); n != 2 {
		t.Errorf("Release() = %d", n)
	}
	want := []string{bodyFor("overtaking"), bodyFor("b"), bodyFor("a"), bodyFor("c")}
	if fmt.Sprint(u.bodies) != fmt.Sprint(want) {
		t.Errorf("upstream got %q, want %q", u.bodies, want)
	}
	for _, e := range p.Log() {
		if e.Applied != faultproxy.Yes || e.UpstreamBody != replyBody(1) {
			t.Errorf("%+v", e)
		}
	}
	if n := p.Release(); n != 0 || len(p.Held()) != 0 {
		t.Errorf("something is held still: %d", n)
	}
}

func TestLateRequestsAreAppliedWhenDue(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	seen := holdRequests(t, p, faultproxy.Exactly(time.Millisecond))
	abandon(t, p, seen, "a")
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantApplied(t, p, u, faultproxy.Yes)
	holdRequests(t, p, faultproxy.Exactly(time.Hour)) // Release comes first
	seen = holdRequests(t, p, faultproxy.Exactly(time.Hour))
	abandon(t, p, seen, "b")
	if n := p.Release(); n != 1 || u.applied() != 2 {
		t.Errorf("released %d, applied %d", n, u.applied())
	}
}

func TestResetDropsWhatIsHeld(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	seen := holdRequests(t, p, faultproxy.Exactly(time.Hour))
	abandon(t, p, seen, "a")
	p.Reset()
	if n := p.Release(); n != 0 {
		t.Errorf("released %d after Reset", n)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(p.Log()) != 0 || len(p.Counts()) != 0 || len(p.Rules()) != 0 {
		t.Errorf("left after Reset: %v %v %v", p.Log(), p.Counts(), p.Rules())
	}
	mustPass(t, p, "b")
	if u.applied() != 1 || last(t, p).Seq != 2 {
		t.Errorf("applied %d, entry %+v", u.applied(), last(t, p))
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	u := newUpstream(t)
	u.gate = make(chan struct{})
	defer close(u.gate)
	p := newProxy(t, u)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _, _ = update(t, p, "a") }()
	<-u.got
	cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v", err)
	}
}

func TestDownRefusesAndUpServesAgain(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	url := p.URL()
	mustPass(t, p, "a") // leaves a connection that is kept
	for range 3 {
		p.Down()
		p.Down()
		client.CloseIdleConnections() // else the first error may be the EOF of a kept one
		if _, _, err := update(t, p, "a"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while down: %v, want connection refused", err)
		}
		if err := errors.Join(p.Up(), p.Up()); err != nil {
			t.Fatal(err)
		}
		if p.URL() != url {
			t.Fatalf("moved from %s to %s", url, p.URL())
		}
		mustPass(t, p, "a")
	}
	if got, want := u.applied(), 4; got != want {
		t.Errorf("applied %d, want %d", got, want)
	}
}

func TestDownLetsWhatWasReadReachUpstream(t *testing.T) {
	u := newUpstream(t)
	u.gate = make(chan struct{})
	p := newProxy(t, u)
	failed := make(chan error)
	go func() {
		_, _, err := update(t, p, "a")
		failed <- err
	}()
	<-u.got
	p.Down()
	if err := <-failed; err == nil {
		t.Error("a reply came through")
	}
	close(u.gate)
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantApplied(t, p, u, faultproxy.Yes)
}

func TestCloseReturnsAtOnceWhateverClientsWaitFor(t *testing.T) {
	hour := faultproxy.Exactly(time.Hour)
	u := newUpstream(t)
	seen := make(chan struct{}, 10)
	p := newProxy(t, u)
	arrived := func(*faultproxy.Request) bool { seen <- struct{}{}; return true }
	actions := []faultproxy.Action{
		faultproxy.Blackhole(), faultproxy.Late(hour), faultproxy.Late(faultproxy.Span{}),
		faultproxy.Delay(hour, faultproxy.Span{}), faultproxy.Delay(faultproxy.Span{}, hour),
	}
	var rules []faultproxy.Rule
	for _, a := range actions {
		rules = append(rules, faultproxy.Rule{Count: 1, Match: arrived, Action: a})
	}
	setRules(t, p, rules...)
	var clients sync.WaitGroup
	for range actions {
		clients.Go(func() {
			if _, _, err := update(t, p, "a"); err == nil {
				t.Error("a client was answered")
			}
		})
		<-seen // each rule's Match, in order, until one fires
	}
	<-u.got // the one that is delayed afterwards
	began := time.Now()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
	clients.Wait()
	for _, e := range p.Log() {
		if e.Settled.IsZero() || e.Applied == faultproxy.Unknown {
			t.Errorf("not settled: %+v", e)
		}
	}
	if err := p.Up(); err == nil {
		t.Error("Up after Close")
	}
}

func TestCloseWaitsABoundedTimeForUpstream(t *testing.T) {
	u := newUpstream(t)
	u.gate = make(chan struct{})
	defer close(u.gate)
	p := newProxy(t, u)
	done := make(chan error)
	go func() {
		_, _, err := update(t, p, "a")
		done <- err
	}()
	<-u.got
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	if e := last(t, p); e.Applied != faultproxy.Unknown || e.UpstreamError == "" {
		t.Errorf("upstream never answered, and the log says %+v", e)
	}
}

func TestUpstreamThatIsGone(t *testing.T) {
	u := newUpstream(t)
	p := newProxy(t, u)
	u.Server.Close()
	if _, _, err := update(t, p, "a"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("error %v, want a reset", err)
	}
	if e := last(t, p); e.Applied != faultproxy.No || e.UpstreamError == "" {
		t.Errorf("%+v", e)
	}
}

func TestUpstreamThatFails(t *testing.T) {
	for status, want := range map[int]faultproxy.Applied{400: faultproxy.No, 500: faultproxy.Unknown, 201: faultproxy.Yes} {
		u := newUpstream(t)
		u.status = status
		p := newProxy(t, u)
		resp, _, err := update(t, p, "a")
		if err != nil || resp.StatusCode != status {
			t.Errorf("%d became %v, %v", status, resp, err)
		}
		if e := last(t, p); e.Applied != want || e.UpstreamStatus != status {
			t.Errorf("%d: %+v, want applied %s", status, e, want)
		}
	}
}

// TestStress mixes all that may happen to a proxy and checks that its log and
// upstream agree in the end.
func TestStress(t *testing.T) {
	u := newUpstream(t)
	u.got = make(chan string, 10000)
	p := newProxy(t, u, func(o *faultproxy.Options) { o.Seed = 7 })
	ms := faultproxy.Between(0, 2*time.Millisecond)
	rules := []faultproxy.Rule{
		{Action: faultproxy.Drop(faultproxy.RST)}, {Action: faultproxy.Drop(faultproxy.FIN)},
		{Action: faultproxy.Reset()}, {Action: faultproxy.Cut(3, faultproxy.RST)}, {Action: faultproxy.Late(ms)},
		{Action: faultproxy.Late(faultproxy.Span{})}, {Action: faultproxy.Blackhole().AfterApply()},
		{Action: faultproxy.Delay(ms, ms)}, {Action: faultproxy.Limit(50, 0)}, {Action: faultproxy.Empty().AfterApply()},
	}
	for i := range rules {
		rules[i].Probability = 0.08
	}
	setRules(t, p, rules...)
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				_, _, _ = send(ctx, p, "UpdateItem", fmt.Sprint("key", c))
				cancel()
			}
		})
	}
	for range 5 {
		p.Down()
		if err := p.Up(); err != nil {
			t.Error(err)
		}
		p.Release()
		p.Log()
	}
	clients.Wait()
	p.Release()
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	applied := 0
	for i, e := range p.Log() {
		if e.Seq != int64(i+1) || e.Applied == faultproxy.Unknown || e.Settled.IsZero() {
			t.Errorf("entry %d: %+v", i, e)
		}
		if e.Applied == faultproxy.Yes {
			applied++
		}
	}
	if applied != u.applied() || applied != p.Count("", "").Applied {
		t.Errorf("log says %d applied, counters %d, upstream %d", applied, p.Count("", "").Applied, u.applied())
	}
}
