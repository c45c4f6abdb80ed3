package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseWakesWaitersAndReturnsWhenAllIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(_, key string, _ int) fault {
			if key == "black hole" {
				return fault{hang: true}
			}
			return fault{err: transient()}
		})
		a := must(New(store, fixed(10), createMissing))
		errs := make(chan error, 40)
		for i := range 40 {
			go func() {
				_, err := a.Next(t.Context(), []string{"black hole", "failing"}[i%2])
				errs <- err
			}()
		}
		time.Sleep(time.Second)
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for range 40 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Errorf("a waiter got %v", err)
			}
		}
		synctest.Wait()
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("the second Close: %v", err)
		}
	}) // synctest fails if a goroutine or a timer of ours is left
}

func TestAfterCloseEverythingIsRefused(t *testing.T) {
	a := must(New(Memory(), fixed(10)))
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, next := s.Next(t.Context())
	_, byName := a.Next(t.Context(), "s")
	_, other := a.Next(t.Context(), "other")
	_, reserve := s.Reserve(t.Context(), 1)
	_, made := a.Sequence("new")
	for name, err := range map[string]error{
		"Next": next, "Allocator.Next": byName, "another name": other, "Reserve": reserve, "Sequence": made,
		"Fill": s.Fill(t.Context(), make([]int64, 3)), "Warm": a.Warm(t.Context(), "s"),
		"Create": a.Create(t.Context(), "x"), "CreateTable": a.CreateTable(t.Context()),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if id, ok := s.TryNext(); ok {
		t.Errorf("TryNext returned %d", id)
	}
	checkLeaks(t)
}

func TestCloseRacesWithEverything(t *testing.T) {
	for round := range 50 {
		store, _ := withFaults(Memory(), func(_, _ string, call int) fault {
			if call%3 == 0 {
				return fault{err: transient()}
			}
			return fault{}
		})
		a := must(New(store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 3, 3 }))
		const workers = 8
		ids := make([][]int64, workers)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for {
					id, err := a.Next(context.Background(), fmt.Sprint(w%2))
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Errorf("got %v", err)
						return
					}
					ids[w] = append(ids[w], id)
				}
			})
		}
		for range 1 + round%3 { // concurrent Closes
			wg.Go(func() {
				for range round * 10 {
					runtime.Gosched()
				}
				if err := a.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for seq := range 2 {
			allDifferent(t, ids[seq], ids[seq+2], ids[seq+4], ids[seq+6])
			s, ok := (*a.names.Load())[fmt.Sprint(seq)]
			if !ok {
				s = a.fresh[fmt.Sprint(seq)]
			}
			if s == nil {
				continue
			}
			if st := s.Stats(); st.Leased != st.Issued+st.Returned+st.Abandoned.Total() || st.Remaining != 0 {
				t.Errorf("round %d: %+v", round, st)
			}
		}
		checkLeaks(t)
	}
}

func TestCloseOfAHangingStoreReturnsAtItsContext(t *testing.T) {
	deaf := func(string, string, int) fault { return fault{deaf: true} }
	closes := func(t *testing.T, a *Allocator, faults *faultStore) {
		t.Helper()
		// A deaf store does not even end with its context.
		go func() {
			time.Sleep(time.Minute)
			close(faults.release)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(began); d < 2*time.Second || d > 2200*time.Millisecond {
			t.Errorf("Close returned after %v, its context ends after 2 s", d)
		}
		if err := a.Close(t.Context()); err != nil || time.Since(began) != time.Minute {
			t.Errorf("the second Close: %v after %v", err, time.Since(began))
		}
	}
	t.Run("a lease in flight", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, faults := withFaults(Memory(), deaf)
			a := must(New(store, fixed(10), createMissing))
			got := make(chan error, 1)
			go func() {
				_, err := a.Next(t.Context(), "s")
				got <- err
			}()
			synctest.Wait()
			closes(t, a, faults)
			if err := <-got; !errors.Is(err, ErrClosed) {
				t.Errorf("the waiter got %v", err)
			}
		})
	})
	t.Run("something to give back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, faults := withFaults(Memory(), nil)
			a := must(New(store, fixed(10), createMissing))
			must(a.Next(t.Context(), "s"))
			faults.set(deaf)
			closes(t, a, faults)
		})
	})
}

func TestCloseTakesAContextThatHasEnded(t *testing.T) {
	a := must(New(Memory(), fixed(10)))
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = a.Close(ctx) // whether it says so or not
	if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	checkLeaks(t)
}

func TestAThousandAllocatorsLeaveNothingBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	store, _ := withFaults(Memory(), func(op, key string, call int) fault {
		switch key {
		case "denied":
			return fault{err: denied()}
		case "failing":
			return fault{err: transient()}
		case "black hole":
			return fault{hang: true}
		}
		return fault{}
	})
	for range 1000 {
		a := must(New(store, fixed(5), createMissing, func(o *Options) { o.forfeit = true }))
		var wg sync.WaitGroup
		for _, name := range []string{"good", "denied", "failing", "black hole"} {
			wg.Go(func() {
				_, err := a.Next(t.Context(), name)
				if (err == nil) != (name == "good") && !errors.Is(err, ErrClosed) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		must(a.Next(t.Context(), "good"))
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	checkLeaks(t)
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestAnIdleAllocatorHasNoGoroutineAndAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing)
		for i := range 100 {
			must(a.Next(t.Context(), fmt.Sprint(i)))
		}
		time.Sleep(time.Hour)
		calls := 0
		for i := range 100 {
			calls += faults.count(fmt.Sprint(i))
		}
		if left := ours(); len(left) > 0 {
			t.Errorf("%d goroutines for idle sequences:\n%s", len(left), left[0])
		}
		time.Sleep(24 * time.Hour)
		for i := range 100 {
			calls -= faults.count(fmt.Sprint(i))
		}
		if calls != 0 {
			t.Errorf("%d store calls for idle sequences", -calls)
		}
	})
}
