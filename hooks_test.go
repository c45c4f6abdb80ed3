package ddbseq

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// witness keeps what hooks are told.
type witness struct {
	mu     sync.Mutex
	leases []LeaseEvent
	waits  []WaitEvent
	alerts []Alert
}

func (w *witness) hooks(o *Options) {
	o.Hooks = Hooks{
		Lease: func(e LeaseEvent) { w.mu.Lock(); defer w.mu.Unlock(); w.leases = append(w.leases, e) },
		Wait:  func(e WaitEvent) { w.mu.Lock(); defer w.mu.Unlock(); w.waits = append(w.waits, e) },
		Alert: func(e Alert) { w.mu.Lock(); defer w.mu.Unlock(); w.alerts = append(w.alerts, e) },
	}
}

// edges lists the beginnings ("+") and ends ("-") of alerts.
func (w *witness) edges() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.alerts {
		out = append(out, map[bool]string{true: "+", false: "-"}[a.Firing]+a.Kind.String())
	}
	return out
}

func (w *witness) outcomes() (out []Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.leases {
		out = append(out, e.Outcome)
	}
	return out
}

func TestHooksTellEveryOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var w witness
		store, faults := withFaults(Memory(), func(op, _ string, call int) fault {
			switch call {
			case 1: // the GetItem
				return fault{delay: time.Second}
			case 2:
				return fault{err: throttled()}
			case 3:
				return fault{err: transient()}
			case 4:
				return fault{err: lost(), after: true}
			}
			return fault{}
		})
		a := newTest(t, store, fixed(10), createMissing, w.hooks)
		if id, err := a.Next(ctx, "s"); err != nil || id != 1 {
			t.Fatal(id, err)
		}
		synctest.Wait()
		if got, want := w.outcomes(), []Outcome{OutcomeThrottled, OutcomeFailed, OutcomeFailed, OutcomeRecovered}; !slices.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		last := w.leases[3]
		if last.Sequence != "s" || last.Table != "memory" || !last.Mandatory || last.Block != (Block{1, 1, 10}) || last.Err != nil || last.Calls != 1 {
			t.Errorf("%+v", last)
		}
		if first := w.leases[0]; first.Took < time.Second || !errors.Is(first.Err, ErrThrottled) || first.Block.N != 0 || first.Calls != 2 {
			t.Errorf("%+v", first)
		}
		if len(w.waits) != 1 || w.waits[0].Waited < time.Second || w.waits[0].Want != 1 || w.waits[0].Err != nil {
			t.Errorf("waits %+v", w.waits)
		}
		st := a.Stats()
		if st.Mandatory != (Outcomes{Throttled: 1, Failed: 2, Recovered: 1}) || st.WaitTime != w.waits[0].Waited || st.LastError != "" || st.BlockSize != 10 {
			t.Errorf("%+v", st)
		}

		// A caller who gives up, and one who is refused.
		faults.set(always(transient()))
		must(sequenceOf(t, a, "s").Reserve(ctx, 9))
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := a.Next(short, "s"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if e := w.waits[len(w.waits)-1]; e.Waited != time.Minute || !errors.Is(e.Err, context.DeadlineExceeded) {
			t.Errorf("%+v", e)
		}
		if st := a.Stats(); st.LastError == "" || st.Mandatory.Failed < 10 {
			t.Errorf("%+v", st)
		}
		faults.set(always(denied()))
		if _, err := a.Next(ctx, "s"); !errors.Is(err, ErrAccessDenied) {
			t.Error(err)
		}
		synctest.Wait()
		if got := w.outcomes(); got[len(got)-1] != OutcomeRefused {
			t.Errorf("%v", got)
		}
		faults.set(nil)
	})
}

func TestHooksMayAskForStatsAndCloseWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a *Allocator
		done := false
		a, err := New(Memory(), fixed(10), func(o *Options) {
			o.Hooks.Lease = func(LeaseEvent) {
				a.Stats()
				time.Sleep(time.Second)
				a.Stats()
				done = true
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Next(t.Context(), "s"); err != nil || done {
			t.Error("the caller waited for the hook", err)
		}
		if err := a.Close(t.Context()); err != nil || !done {
			t.Error("Close did not wait for the hook", err)
		}
	})
}

func TestEventsOfASequenceComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w witness
		a := newTest(t, Memory(), fixed(1), w.hooks, func(o *Options) {
			inner := o.Hooks.Lease
			n := 0
			o.Hooks.Lease = func(e LeaseEvent) {
				if n++; n%3 == 0 {
					time.Sleep(time.Second) // others pass us
				}
				inner(e)
			}
		})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					must(a.Next(t.Context(), "s"))
				}
			})
		}
		wg.Wait()
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		var firsts []int64
		for _, e := range w.leases {
			firsts = append(firsts, e.Block.First)
		}
		if len(firsts) != 160 || !slices.IsSorted(firsts) {
			t.Errorf("%d leases, %v", len(firsts), firsts)
		}
	})
}

// A hook that is slower than its sequence's leases for good must not make memory
// grow for ever, and must miss no alert.
func TestAHookThatNeverReturnsKeepsABoundedNumberOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var leases, alerts int
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, fixed(1), createMissing, func(o *Options) {
			o.errorHold = 0
			o.Hooks = Hooks{
				Lease: func(LeaseEvent) { <-release; leases++ },
				Alert: func(Alert) { alerts++ },
			}
		})
		for range 3 * maxEvents {
			must(a.Next(t.Context(), "s"))
		}
		f.set(always(throttled()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := a.Next(ctx, "s"); err == nil {
			t.Fatal("an ID from nowhere")
		}
		f.set(nil)
		must(a.Next(t.Context(), "s"))
		s := sequenceOf(t, a, "s")
		s.mu.Lock()
		kept := len(s.events)
		s.mu.Unlock()
		if kept < maxEvents || kept > maxEvents+16 {
			t.Errorf("%d events are kept", kept)
		}
		fired := a.Stats().Alerts
		close(release)
		synctest.Wait()
		if leases < maxEvents || leases > maxEvents+2 || alerts == 0 || !fired.Has(AlertThrottled) {
			t.Errorf("told of %d leases and %d alerts; firing: %v", leases, alerts, fired.Kinds())
		}
	})
}

// TestAlertsComeAndGo goes through the life of each alert that a process finds
// by itself.
func TestAlertsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var w witness
		mem := Memory()
		store, faults := withFaults(mem, nil)
		a := newTest(t, store, w.hooks, createMissing, patient, func(o *Options) { o.Runway, o.MinBlock, o.errorHold = time.Minute, 10, time.Second })
		draw := func(n int) {
			for range n {
				if _, err := a.Next(ctx, "s"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		lease := func(n int) {
			for range n {
				if err := a.Refresh(ctx, "s"); err != nil {
					t.Fatal(err)
				}
				draw(1)
			}
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := w.edges(); !slices.Equal(got, want) {
				t.Errorf("edges %v, want %v", got, want)
			}
			w.mu.Lock()
			w.alerts = nil
			w.mu.Unlock()
		}
		draw(3000)
		expect()

		faults.set(always(throttled()))
		for range 1800 { // as long as memory lasts
			_, ok := sequenceOf(t, a, "s").TryNext()
			if st := a.Stats(); !ok || st.Alerts.Has(AlertRunway) && st.Alerts.Has(AlertThrottled) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := a.Stats().Alerts; !got.Has(AlertThrottled) || !got.Has(AlertRunway) {
			t.Errorf("firing: %v", got.Kinds())
		}
		faults.set(nil)
		lease(12)
		expect("+throttled", "+runway", "-runway", "-throttled")

		m := mem.backend.(*memory)
		edit := func(fn func(*item)) {
			m.mu.Lock()
			defer m.mu.Unlock()
			it := m.items["s"]
			fn(&it)
			m.items["s"] = it
		}
		edit(func(it *item) { it.tune = &tuning{bad: "runway is N 5"} })
		lease(2)
		edit(func(it *item) { it.tune = nil })
		lease(1)
		expect("+bad_tuning", "-bad_tuning")

		var was int64
		edit(func(it *item) { was = *it.lastID; it.lastID = new(was - 5) })
		for range 10_000 {
			if _, err := a.Next(ctx, "s"); errors.Is(err, ErrCounterMovedBack) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if _, err := a.Advance(ctx, "s", was+1000); err != nil {
			t.Fatal(err)
		}
		draw(3000)
		if got := w.edges(); !slices.Contains(got, "+counter_moved_back") || !slices.Contains(got, "-counter_moved_back") {
			t.Errorf("edges %v", got)
		}
	})
}

// An outage is not over when memory is empty and nobody gets an ID any more.
func TestAlertRunwayLastsAsLongAsTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var w witness
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, w.hooks, createMissing, func(o *Options) { o.MinBlock, o.forfeit = 10, true })
		draw := func(n int) {
			for range n {
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				if _, err := a.Next(short, "s"); err == nil {
					time.Sleep(100 * time.Millisecond)
				}
				cancel()
			}
		}
		draw(3000)
		faults.set(always(transient()))
		draw(6000)
		if got := w.edges(); !slices.Equal(got, []string{"+runway"}) {
			t.Errorf("edges in the outage %v", got)
		}
		faults.set(nil)
		draw(3000)
		if got := w.edges(); !slices.Equal(got, []string{"+runway", "-runway"}) {
			t.Errorf("edges %v", got)
		}
	})
}

// A store that does not answer does not say that the counter is right again.
func TestAlertMovedBackOutlastsOtherErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var w witness
		mem := Memory()
		store, faults := withFaults(mem, nil)
		a := newTest(t, store, w.hooks, createMissing, fixed(10), func(o *Options) { o.forfeit = true })
		for range 20 {
			must(a.Next(ctx, "s"))
		}
		m := mem.backend.(*memory)
		m.mu.Lock()
		it := m.items["s"]
		it.lastID = new(int64(3))
		m.items["s"] = it
		m.mu.Unlock()
		for i := range 10 {
			time.Sleep(2 * time.Second)
			fail := i%2 == 1
			faults.set(func(_, _ string, _ int) (f fault) {
				if fail {
					f.err = transient()
				}
				fail = false
				return f
			})
			if _, err := a.Next(ctx, "s"); !errors.Is(err, ErrCounterMovedBack) {
				t.Error(err)
			}
		}
		if _, err := a.Advance(ctx, "s", 30); err != nil {
			t.Fatal(err)
		}
		must(a.Next(ctx, "s"))
		synctest.Wait()
		if got := w.edges(); !slices.Equal(got, []string{"+counter_moved_back", "-counter_moved_back"}) {
			t.Errorf("edges %v", got)
		}
	})
}

// As t.Fatal does. A panic takes the same way, and what it says must be seen.
func TestAHookMayEndItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		a := newTest(t, Memory(), fixed(1), func(o *Options) {
			o.MaxParallel = 1
			o.Hooks.Lease = func(LeaseEvent) { told++; runtime.Goexit() }
		})
		for range 5 {
			must(a.Next(t.Context(), "s"))
			synctest.Wait()
		}
		if told != 5 {
			t.Errorf("told of %d leases, want 5", told)
		}
	})
}

// A lease that arrives while Close waits for it has an outcome, and is told of.
func TestALeaseThatArrivesDuringCloseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var w witness
		mem := &tap{backend: Memory().backend}
		a := newTest(t, &Store{backend: mem}, w.hooks, createMissing, fixed(10), func(o *Options) { o.forfeit = true })
		s := sequenceOf(t, a, "s")
		mem.set(func(_ *change, do func() (*item, error)) (*item, error) {
			it, err := do()
			time.Sleep(time.Second) // the reply is under way
			return it, err
		})
		go func() { _, _ = s.Next(ctx) }()
		synctest.Wait()
		if err := a.Close(ctx); err != nil {
			t.Fatal(err)
		}
		st := s.Stats()
		if st.Leases != 1 || st.Mandatory.OK+st.Advisory.OK != 1 || !slices.Equal(w.outcomes(), []Outcome{OutcomeOK}) {
			t.Errorf("%d leases, outcomes %+v and %+v, told %v", st.Leases, st.Advisory, st.Mandatory, w.outcomes())
		}
	})
}

func TestTheLoggerIsSilentUnlessAskedAndNamesWhatItIsAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var out bytes.Buffer
		run := func(level slog.Level) string {
			out.Reset()
			store, faults := withFaults(Memory(), nil)
			faults.set(func(_, _ string, call int) fault {
				if call > 2 && call < 9 {
					return fault{err: transient()}
				}
				return fault{}
			})
			a, err := New(store, fixed(5), createMissing, func(o *Options) {
				o.forfeit, o.Logger = true, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				must(a.Next(ctx, "orders"))
			}
			if err := a.Close(ctx); err != nil {
				t.Error(err)
			}
			return out.String()
		}
		if got := run(slog.LevelWarn); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN msg=\"ddbseq: lease failed\" sequence=orders table=memory") || !strings.Contains(got, "boom") {
			t.Errorf("warnings:\n%s", got)
		}
		if got := run(slog.LevelDebug); strings.Count(got, "ddbseq: leased") != 4 || strings.Count(got, "ddbseq: lease failed") != 6 || !strings.Contains(got, "first=6 step=1 ids=5") {
			t.Errorf("all:\n%s", got)
		}
	})
}

func TestAnAlertIsLogged(t *testing.T) {
	var out bytes.Buffer
	store, faults := withFaults(Memory(), nil)
	_ = faults
	a := newTest(t, store, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&out, nil)) })
	a.tell(event{alert: &Alert{Sequence: "orders", Table: "memory", Kind: AlertWaste, Firing: true, Level: 2, Text: "of 9"}})
	a.tell(event{alert: &Alert{Sequence: "orders", Table: "memory", Kind: AlertWaste}})
	for _, want := range []string{`"level":"WARN","msg":"ddbseq: alert","sequence":"orders","table":"memory","alert":"waste","level":2,"text":"of 9"`, `"level":"INFO","msg":"ddbseq: alert is over"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s\nlacks %s", out.String(), want)
		}
	}
}

func benchmarkNext(b *testing.B, optFns ...func(*Options)) {
	b.Helper()
	a := newTest(b, Memory(), append(optFns, func(o *Options) { o.MinBlock, o.forfeit = 1<<20, true })...)
	s := sequenceOf(b, a, "s")
	ctx := b.Context()
	must(s.Next(ctx))
	for b.Loop() {
		if _, err := s.Next(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNextSilent and BenchmarkNextObserved, run together with -count, show
// what hooks, a logger and a reader of Stats cost a call of Next.
func BenchmarkNextSilent(b *testing.B) { benchmarkNext(b) }

func BenchmarkNextObserved(b *testing.B) {
	var w witness
	var a *Allocator
	stop, done := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-done }()
	ready := make(chan struct{})
	go func() {
		defer close(done)
		<-ready
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = a.Stats()
			case <-stop:
				return
			}
		}
	}()
	a = newTest(b, Memory(), w.hooks, func(o *Options) {
		o.MinBlock, o.forfeit = 1<<20, true
		o.Logger = slog.New(slog.NewTextHandler(&bytes.Buffer{}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	close(ready)
	s := sequenceOf(b, a, "s")
	ctx := b.Context()
	must(s.Next(ctx))
	for b.Loop() {
		if _, err := s.Next(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
