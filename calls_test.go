package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestTryNextNeverWaitsAndStartsARefill(t *testing.T) {
	for _, runway := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprint(runway), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, faults := withFaults(Memory(), slow(time.Second))
				a := newTest(t, store, fixed(2), createMissing, func(o *Options) { o.Runway = runway })
				s := sequenceOf(t, a, "s")
				var ids []int64
				for range 100 {
					began := time.Now()
					for range 5 {
						if id, ok := s.TryNext(); ok {
							ids = append(ids, id)
						}
					}
					if d := time.Since(began); d != 0 {
						t.Fatalf("TryNext waited %v", d)
					}
					time.Sleep(100 * time.Millisecond)
				}
				if len(ids) < 10 {
					t.Errorf("only %d IDs in 10 s", len(ids))
				}
				allFromTo(t, 1, int64(len(ids)), ids)
				if s.Stats().Waited != 0 {
					t.Errorf("statistics: %+v", s.Stats())
				}
				time.Sleep(time.Minute) // whoever is idle asks nothing
				n := faults.count("s")
				time.Sleep(time.Hour)
				if now := faults.count("s"); now != n {
					t.Errorf("%d calls for an idle sequence", now-n)
				}
			})
		})
	}
}

func TestTryNextDoesNotWaitForTheSplayOfWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newTest(t, Memory(), fixed(10), func(o *Options) { o.WarmSplay, o.rand = time.Minute, func() float64 { return 0.9 } })
		go func() { _ = a.Warm(t.Context(), "s") }()
		synctest.Wait()
		s := sequenceOf(t, a, "s")
		if _, ok := s.TryNext(); ok {
			t.Error("an ID that was never leased")
		}
		synctest.Wait()
		if id, ok := s.TryNext(); !ok || id != 1 {
			t.Errorf("after the refill that TryNext asked for: %d, %t", id, ok)
		}
	})
}

func TestFillSpansBlocksOrReturnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, fixed(4), createMissing, func(o *Options) { o.forfeit = true })
		s := sequenceOf(t, a, "s")
		ids := make([]int64, 10)
		if err := s.Fill(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		allFromTo(t, 1, 10, ids)
		rest := s.Stats().Remaining

		faults.set(always(transient()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Fill(ctx, make([]int64, 20)); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errBoom) {
			t.Errorf("got %v", err)
		}
		st := s.Stats()
		if st.Abandoned.Caller != rest || st.Issued != 10 || st.Leased != st.Issued+st.Remaining+st.Abandoned.Total() {
			t.Errorf("statistics: %+v, %d were in memory", st, rest)
		}
		faults.set(nil)
		if id := must(s.Next(t.Context())); id != 11+rest {
			t.Errorf("got %d after the failed Fill of %d", id, rest)
		}
	})
}

func TestCountsOutOfRangeAreRefusedBeforeAnyStoreCall(t *testing.T) {
	store, faults := withFaults(Memory(), nil)
	a := newTest(t, store, fixed(4), createMissing)
	s := sequenceOf(t, a, "s", IncrementBy(1), MinValue(1), MaxValue(100))
	for _, n := range []int64{0, -1, math.MinInt64, 101, math.MaxInt64} {
		if _, err := s.Reserve(t.Context(), n); !errors.Is(err, ErrInvalidCount) {
			t.Errorf("Reserve(%d): %v", n, err)
		}
	}
	for _, n := range []int{0, 101} {
		if err := s.Fill(t.Context(), make([]int64, n)); !errors.Is(err, ErrInvalidCount) {
			t.Errorf("Fill of %d: %v", n, err)
		}
	}
	if n := faults.count("s"); n != 0 {
		t.Errorf("%d store calls", n)
	}
	if b, err := s.Reserve(t.Context(), 100); err != nil || b.N != 100 || b.First != 1 || b.Last() != 100 {
		t.Errorf("Reserve of everything: %+v, %v", b, err)
	}
}

func TestAskingForMoreThanThereIsTakesNothing(t *testing.T) {
	m := Memory()
	a, b := newTest(t, m, fixed(10)), newTest(t, m, fixed(10))
	if err := a.Create(t.Context(), "s", MaxValue(1000)); err != nil {
		t.Fatal(err)
	}
	// b does not know the bounds yet.
	if _, err := sequenceOf(t, b, "s").Reserve(t.Context(), 1001); !errors.Is(err, ErrInvalidCount) {
		t.Errorf("Reserve of more than there is: %v", err)
	}
	if err := sequenceOf(t, b, "s").Fill(t.Context(), make([]int64, 1001)); !errors.Is(err, ErrInvalidCount) {
		t.Errorf("Fill of more than there is: %v", err)
	}
	if id, err := a.Next(t.Context(), "s"); id > 100 || err != nil {
		t.Errorf("after that: %d, %v", id, err)
	}
}

func TestReserveIsContiguous(t *testing.T) {
	a := newTest(t, Memory(), fixed(10))
	s := sequenceOf(t, a, "s", IncrementBy(3))
	var ids []int64
	for _, n := range []int64{1, 10, 25, 4, 4, 4, 11} {
		b, err := s.Reserve(t.Context(), n)
		if err != nil || b.N != n || b.Step != 3 || b.Last() != b.First+3*(n-1) {
			t.Fatalf("Reserve(%d): %+v, %v", n, b, err)
		}
		for id := range b.All() {
			ids = append(ids, id)
		}
	}
	allDifferent(t, ids)
}

func TestMemoryKeepsNoBlocksThatAreUsedUp(t *testing.T) {
	for name, take := range map[string]func(*Sequence){
		"Next":                   func(s *Sequence) { must(s.Next(t.Context())) },
		"Fill":                   func(s *Sequence) { must(0, s.Fill(t.Context(), make([]int64, 7))) },
		"Reserve":                func(s *Sequence) { must(s.Reserve(t.Context(), 10)) },
		"Reserve, leaving rests": func(s *Sequence) { must(s.Reserve(t.Context(), 7)) },
	} {
		a := newTest(t, Memory(), fixed(10))
		s := sequenceOf(t, a, "s")
		for range 2000 {
			take(s)
		}
		linked := 0
		for b := s.cur.Load(); b != nil; b = b.next.Load() {
			linked++
		}
		if linked > 100 {
			t.Errorf("%s: %d blocks are still linked", name, linked)
		}
		if st := s.Stats(); st.Leased != st.Issued+st.Remaining+st.Abandoned.Total() {
			t.Errorf("%s: %+v", name, st)
		}
	}
}
