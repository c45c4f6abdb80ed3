package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeniedReadsAreNoObstacle(t *testing.T) {
	// A policy without GetItem: a refused write teaches the item.
	for _, st := range []string{"missing", "there"} {
		t.Run(st, func(t *testing.T) {
			store, _ := withFaults(Memory(), func(op, _ string, _ int) fault {
				if op == "GetItem" {
					return fault{err: denied()}
				}
				return fault{}
			})
			if st == "there" {
				other := newTest(t, &Store{backend: store.backend.(*faultStore).backend}, fixed(10), func(o *Options) { o.forfeit = true })
				must(other.Next(t.Context(), "s"))
			}
			a := newTest(t, store, fixed(10), createMissing)
			want := map[string]int64{"missing": 1, "there": 11}[st]
			if id, err := a.Next(t.Context(), "s"); id != want || err != nil {
				t.Errorf("got %d, %v, want %d", id, err, want)
			}
		})
	}
}

func TestNobodyWaitsWhileABlockIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), slow(time.Second)) // a lease after the first one: 1 s; the first: 2 s
		a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 100, 100 })
		s := sequenceOf(t, a, "s")
		if err := a.Warm(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		faults.set(slow(2 * time.Second))
		for i := range int64(1000) { // 20 a second: 40 in the time of a lease
			began := time.Now()
			id, err := s.Next(t.Context())
			if err != nil || id != i+1 {
				t.Fatalf("got %d, %v, want %d", id, err, i+1)
			}
			if d := time.Since(began); d != 0 {
				t.Fatalf("Next waited %v for ID %d", d, id)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if st := s.Stats(); st.Waited != 0 || faults.mostAtOnce("s") != 1 {
			t.Errorf("%+v, %d at once", st, faults.mostAtOnce("s"))
		}
	})
}

func TestMemoryIsServedWhateverStateTheStoreIsIn(t *testing.T) {
	for name, err := range map[string]error{"transient": transient(), "permanent": denied()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, faults := withFaults(Memory(), nil)
				a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 100, 100 })
				s := sequenceOf(t, a, "s")
				must(s.Next(t.Context()))
				time.Sleep(time.Minute)
				faults.set(always(err))
				have := s.Stats().Remaining
				for range have {
					if _, err := s.Next(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := s.Next(ctx); !errors.Is(err, errBoom) {
					t.Errorf("with memory empty: %v", err)
				}
				faults.set(nil)
				time.Sleep(2 * time.Second)
				if id, err := s.Next(t.Context()); id != 2+have || err != nil {
					t.Errorf("after the outage: %d, %v", id, err)
				}
			})
		})
	}
}

func TestLostRepliesCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(op, _ string, call int) fault {
			if op == "UpdateItem" && call%2 == 0 { // every lease is applied once and answered never
				return fault{after: true, err: lost()}
			}
			return fault{}
		})
		a := newTest(t, store, fixed(3), createMissing)
		s := sequenceOf(t, a, "s")
		for want := int64(1); want <= 60; want++ {
			if id, err := s.Next(t.Context()); id != want || err != nil {
				t.Fatalf("got %d, %v, want %d", id, err, want)
			}
		}
		if st := s.Stats(); st.Recovered < 10 || st.Leased != st.Issued+st.Remaining {
			t.Errorf("statistics: %+v", st)
		}
	})
}

func TestLateAttemptsDuplicateNothing(t *testing.T) {
	// An attempt that was given up is applied after the retry, and after another
	// process has leased.
	synctest.Test(t, func(t *testing.T) {
		m := Memory()
		store, faults := withFaults(m, nil)
		a := newTest(t, store, fixed(5), createMissing, func(o *Options) { o.AttemptTimeout = time.Second })
		b := newTest(t, m, fixed(5))
		var ids []int64
		late := &lateStore{backend: m.backend}
		faults.backend = late
		for round := range 40 {
			late.hold = round%4 == 1
			if round%4 == 3 {
				late.deliver()
			}
			ids = append(ids, must(a.Next(t.Context(), "s")), must(b.Next(t.Context(), "s")))
			for range 4 {
				ids = append(ids, must(a.Next(t.Context(), "s")))
			}
		}
		allDifferent(t, ids)
	})
}

// A lateStore keeps the first write after hold was set for deliver, and lets its
// caller believe that it was never answered.
type lateStore struct {
	backend
	hold bool
	held []*change
}

func (l *lateStore) apply(ctx context.Context, ch *change) (*item, error) {
	if l.hold {
		l.hold = false
		l.held = append(l.held, ch)
		<-ctx.Done()
		return nil, &LeaseError{Sequence: ch.key, Op: "UpdateItem", MaybeApplied: true, Err: ctx.Err()}
	}
	return l.backend.apply(ctx, ch)
}

func (l *lateStore) deliver() {
	for _, ch := range l.held {
		_, _ = l.backend.apply(context.Background(), ch)
	}
	l.held = nil
}

func TestABrokenSequenceNeverDelaysAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), func(_, key string, _ int) fault {
			switch key {
			case "black hole":
				return fault{hang: true}
			case "throttled":
				return fault{err: &LeaseError{Op: "UpdateItem", Throttled: true, kind: ErrThrottled, Err: errBoom}}
			case "denied":
				return fault{err: denied()}
			}
			return fault{delay: 5 * time.Millisecond}
		})
		a := newTest(t, store, fixed(10), createMissing, func(o *Options) { o.MaxParallel = 2 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for _, name := range []string{"black hole", "throttled", "denied"} {
			for range 20 {
				wg.Go(func() {
					if _, err := a.Next(ctx, name); err == nil {
						t.Errorf("%s returned an ID", name)
					}
				})
			}
		}
		synctest.Wait()
		wantNoDelay(ctx, t, a, 200)
		if n := faults.mostAtOnce("black hole"); n != 1 {
			t.Errorf("%d leases were in flight at once", n)
		}
		cancel()
		wg.Wait()
	})
}

// wantNoDelay takes n IDs from sequences whose leases succeed, ten a second.
func wantNoDelay(ctx context.Context, t *testing.T, a *Allocator, n int) {
	t.Helper()
	for i := range n {
		began := time.Now()
		if _, err := a.Next(ctx, fmt.Sprint("good ", i%20)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 50*time.Millisecond {
			t.Fatalf("a good sequence waited %v", d)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// However many get no answer, they leave places to those that do.
func TestManyBrokenSequencesDoNotDelayAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(_, key string, _ int) fault {
			return fault{hang: strings.HasPrefix(key, "black hole"), delay: 5 * time.Millisecond}
		})
		a := newTest(t, store, fixed(10), createMissing, func(o *Options) { o.MaxParallel = 4 })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				if _, err := a.Next(ctx, fmt.Sprint("black hole ", i)); err == nil {
					t.Error("an ID from nowhere")
				}
			})
		}
		time.Sleep(3 * a.opts.AttemptTimeout) // each has had its first attempt
		wantNoDelay(ctx, t, a, 1000)
		cancel()
		wg.Wait()
	})
}

func TestMaxParallelBoundsLeasesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), nil)
		var now, most atomic.Int64
		store.backend.(*faultStore).backend = &gauge{backend: Memory().backend, now: &now, most: &most}
		a := newTest(t, store, fixed(10), createMissing, func(o *Options) { o.MaxParallel = 7 })
		names := make([]string, 100)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		if err := a.Warm(t.Context(), names...); err != nil {
			t.Fatal(err)
		}
		if most.Load() != 7 {
			t.Errorf("%d calls at once, want 7", most.Load())
		}
	})
}

type gauge struct {
	backend
	now, most *atomic.Int64
}

func (g *gauge) apply(ctx context.Context, ch *change) (*item, error) {
	n := g.now.Add(1)
	defer g.now.Add(-1)
	for old := g.most.Load(); n > old && !g.most.CompareAndSwap(old, n); old = g.most.Load() {
	}
	time.Sleep(10 * time.Millisecond)
	return g.backend.apply(ctx, ch)
}

func TestWarmIsNotHeldUpByBrokenSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(_, key string, _ int) fault {
			if key[0] == 'b' {
				return fault{err: transient()}
			}
			return fault{}
		})
		a := newTest(t, store, fixed(10), createMissing, func(o *Options) { o.MaxParallel = 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := a.Warm(ctx, "b1", "b2", "b3", "b4", "good", "")
		if !errors.Is(err, errBoom) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrInvalidName) {
			t.Errorf("got %v", err)
		}
		if id, ok := sequenceOf(t, a, "good").TryNext(); !ok || id != 1 {
			t.Errorf("the good sequence was not warmed: %d, %t", id, ok)
		}
		if err := a.Warm(t.Context(), "good"); err != nil {
			t.Error(err)
		}
	})
}

func TestTenThousandNamesAreMadeQuickly(t *testing.T) {
	a := newTest(t, Memory(), fixed(2), func(o *Options) { o.forfeit = true })
	began := time.Now()
	for i := range 10_000 {
		if id, err := a.Next(t.Context(), fmt.Sprint("tenant-", i)); id != 1 || err != nil {
			t.Fatal(id, err)
		}
	}
	for i := range 10_000 {
		if id, err := a.Next(t.Context(), fmt.Sprint("tenant-", i)); id != 2 || err != nil {
			t.Fatal(id, err)
		}
	}
	// It is not quadratic: that would be minutes.
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	if s := sequenceOf(t, a, "tenant-7"); s != sequenceOf(t, a, "tenant-7") {
		t.Error("two sequences of one name")
	}
}

func TestContradictingClausesAreRefused(t *testing.T) {
	for name, c := range map[string][2]SequenceOption{
		"start": {StartWith(5), StartWith(6)}, "increment": {IncrementBy(2), IncrementBy(3)},
		"min": {MinValue(0), MinValue(1)}, "max": {MaxValue(10), MaxValue(11)},
		"no max": {MaxValue(10), NoMaxValue()}, "cycle": {Cycle(), NoCycle()}, "width": {Int32(), SafeInteger()},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTest(t, Memory(), fixed(2))
			s := sequenceOf(t, a, "s", c[0])
			if s != sequenceOf(t, a, "s", c[0]) || s != sequenceOf(t, a, "s") {
				t.Error("another Sequence for the same name")
			}
			if _, err := a.Sequence("s", c[1]); !errors.Is(err, ErrDefinitionMismatch) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Whoever says something wrong of a sequence in use is told so, and nobody else.
func TestAWrongClauseGivenLateHurtsNobodyElse(t *testing.T) {
	m := Memory()
	a := newTest(t, m, fixed(2))
	ctx := t.Context()
	ok(t, a.Create(ctx, "s", MaxValue(1000)))
	s := sequenceOf(t, a, "s")
	must(s.Next(ctx))
	for text, cs := range map[string][]SequenceOption{
		"START is 77 in the code and 1 in the table":           {StartWith(77)},
		"MAXVALUE is 5 in the code and 1000 in the table":      {MaxValue(5)},
		"the daily limit is 9":                                 {DailyLimit(9)},
		"INCREMENT is 2 in the code and 1 in the table, CYCLE": {IncrementBy(2), Cycle()},
	} {
		_, err := a.Sequence("s", cs...)
		wantErr(t, err, ErrDefinitionMismatch, `"s"`, m.backend.table(), text, "Alter")
	}
	sequenceOf(t, a, "s", StartWith(1), MaxValue(1000))
	for range 10 {
		must(s.Next(ctx))
	}
	ok(t, a.Alter(ctx, "s", DailyLimit(100)))
	sequenceOf(t, a, "s", DailyLimit(100)) // as this process has just set it
	b := newTest(t, m, fixed(2))
	for i, look := range []func() error{
		func() error { return a.Refresh(ctx, "s") }, func() error { return a.Create(ctx, "s", MinValue(1)) },
		func() error { _, err := a.Describe(ctx, "s"); return err },
	} {
		// What was altered elsewhere does not agree until this process has looked.
		c := newTest(t, m, fixed(2))
		other := sequenceOf(t, c, "s")
		must(other.Next(ctx))
		ok(t, b.Alter(ctx, "s", MaxValue(int64(1001+i))))
		_, err := c.Sequence("s", MaxValue(int64(1001+i)))
		wantErr(t, err, ErrDefinitionMismatch, "Refresh looks again")
		a, c = c, a // look is of the one that has not seen it
		ok(t, look())
		a, c = c, a
		_, err = c.Sequence("s", MaxValue(int64(1001+i)))
		ok(t, err)
	}
	ok(t, b.Alter(ctx, "s", NoMaxValue()))
	must(s.Next(ctx)) // the block it has
	_, err := s.Next(ctx)
	wantErr(t, err, ErrDefinitionMismatch, "MAXVALUE is 1000 in the code")
}

func TestRefreshAndAdvanceNeverRepeatAnID(t *testing.T) {
	m := Memory()
	all := []*Allocator{newTest(t, m, fixed(7)), newTest(t, m, fixed(5))}
	if err := all[0].Create(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	const workers = 4
	ids := make([][]int64, workers)
	done := make(chan struct{})
	var wg, admin sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range 2_000 {
				id, err := all[w%2].Next(t.Context(), "s")
				if err != nil {
					t.Error(err)
					return
				}
				if n := len(ids[w]); n > 0 && id <= ids[w][n-1] {
					t.Errorf("%d came after %d", id, ids[w][n-1])
				}
				ids[w] = append(ids[w], id)
			}
		})
	}
	for i, do := range []func(n int64) error{
		func(int64) error { return all[0].Refresh(t.Context()) },
		func(n int64) error {
			_, err := all[1].Advance(t.Context(), "s", n)
			return err
		},
	} {
		admin.Go(func() {
			for n := int64(1); ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if err := do(n); err != nil {
					t.Errorf("operator %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(done)
	admin.Wait()
	allDifferent(t, ids...)
	for _, a := range all {
		if st := a.Stats(); st.Leased != st.Issued+st.Remaining+st.Returned+st.Abandoned.Total() {
			t.Errorf("statistics: %+v", st)
		}
	}
}

// Names may share a place in the table of hints; each still is its own sequence.
func TestNamesThatShareAHint(t *testing.T) {
	a := newTest(t, Memory(), createMissing)
	var names []string
	for i := 0; len(names) < 3; i++ {
		if name := fmt.Sprintf("x%d!", i); len(names) == 0 || hint(name) == hint(names[0]) {
			names = append(names, name)
		}
	}
	for want := int64(1); want <= 300; want++ {
		for _, name := range names {
			if id, err := a.Next(t.Context(), name); err != nil || id != want {
				t.Fatalf("Next of %q: %d, %v, want %d", name, id, err, want)
			}
		}
	}
	if len(a.sequences()) != len(names) {
		t.Errorf("there are %d sequences, want %d", len(a.sequences()), len(names))
	}
	if _, err := a.Next(t.Context(), ""); !errors.Is(err, ErrInvalidName) {
		t.Errorf("Next of no name: %v, want ErrInvalidName", err)
	}
}

// Warm promises IDs in memory, also to those who do not wait for any.
func TestAfterWarmTheIDsAreThere(t *testing.T) {
	for range 100 {
		a := newTest(t, Memory(), createMissing, func(o *Options) { o.forfeit = true })
		var wg sync.WaitGroup
		for range 8 { // all wait for one block
			wg.Go(func() {
				if err := a.Warm(t.Context(), "s"); err != nil {
					t.Error(err)
				} else if s, err := a.Sequence("s"); err != nil {
					t.Error(err)
				} else if _, ok := s.TryNext(); !ok {
					t.Error("no ID after Warm")
				}
			})
		}
		wg.Wait()
	}
}
