package ddbseq

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestFirstWaiterCancelsAndTheOthersAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), slow(50*time.Millisecond)) // a read and a write: 100 ms
		a := newTest(t, store, fixed(1000), createMissing)
		s := sequenceOf(t, a, "s")
		first, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := s.Next(first)
			gone <- err
		}()
		synctest.Wait()
		type result struct {
			id  int64
			err error
		}
		results := make(chan result, 99)
		for range 99 {
			go func() {
				id, err := s.Next(t.Context())
				results <- result{id, err}
			}()
		}
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		because := errors.New("the user left")
		cancel(because)
		if err := <-gone; !errors.Is(err, context.Canceled) || !errors.Is(err, because) {
			t.Errorf("the caller that left got %v", err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("the caller that left waited %v longer", d)
		}
		var ids []int64
		for range 99 {
			r := <-results
			if r.err != nil {
				t.Fatalf("another caller got %v", r.err)
			}
			ids = append(ids, r.id)
		}
		allFromTo(t, 1, 99, ids) // nothing was lost with the one that left
		if d := time.Since(began); d != 90*time.Millisecond {
			t.Errorf("the others waited %v, the lease took another 90 ms", d)
		}
		if n := faults.count("s"); n != 2 {
			t.Errorf("%d store calls, want a read and a write", n)
		}
		if s.Stats().Waited != 100 {
			t.Errorf("statistics: %+v", s.Stats())
		}
	})
}

// A lease may arrive in the very moment in which a caller gives up. Then the ID
// is that caller's or nobody has taken it: it is not lost between them.
func TestNoIDIsLostBetweenAGrantAndACancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), slow(50*time.Millisecond))
		a := newTest(t, store, fixed(1), createMissing)
		s := sequenceOf(t, a, "s")
		must(s.Next(t.Context()))
		ids := []int64{1}
		served := 0
		for range 300 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			id, err := s.Next(ctx)
			cancel()
			if err == nil {
				served++
			} else if id, err = s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		allFromTo(t, 1, 301, ids)
		if st := s.Stats(); st.Issued != 301 || st.Leased != 301+st.Remaining {
			t.Errorf("statistics: %+v", st)
		}
		t.Logf("%d of 300 were served in the moment of their deadline", served)
	})
}

func TestOutageIsMetWithOneBoundedRetryLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), always(transient()))
		a := newTest(t, store, fixed(100), createMissing)
		s := sequenceOf(t, a, "s")
		const waiters, outage = 1000, 10 * time.Second
		var wg sync.WaitGroup
		ids := make([]int64, waiters)
		errs := make([]error, waiters)
		ended := make([]time.Duration, waiters)
		began := time.Now()
		for i := range waiters {
			wg.Go(func() {
				ids[i], errs[i] = s.Next(t.Context())
				ended[i] = time.Since(began)
			})
		}
		time.Sleep(outage)
		// Full jitter between 0 and 50 ms doubling to 2 s: about 1 s on average
		// from the seventh attempt on. Polling or one loop for each caller would
		// be hundreds.
		if n := faults.count("s"); n < 5 || n > 40 {
			t.Errorf("%d attempts in an outage of %v", n, outage)
		}
		before := faults.count("s")
		faults.set(nil)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		allFromTo(t, 1, waiters, ids)
		for _, d := range ended {
			if d < outage || d > outage+backoffCap {
				t.Fatalf("a caller was served after %v", d)
			}
		}
		if n := faults.count("s") - before; n > 1+waiters/100 {
			t.Errorf("%d calls after the outage for %d callers of blocks of 100", n, waiters)
		}
		if n := faults.mostAtOnce("s"); n != 1 {
			t.Errorf("%d leases were in flight at once", n)
		}
	})
}

func TestCallerGetsItsOwnErrorAndTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), always(transient()))
		a := newTest(t, store, fixed(10), createMissing)
		s := sequenceOf(t, a, "s")
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.Next(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errBoom) {
			t.Errorf("got %v, want both the deadline and the store's error", err)
		}
		if _, ok := errors.AsType[*LeaseError](err); !ok {
			t.Errorf("no *LeaseError in %v", err)
		}
		if d := time.Since(began); d != 7*time.Second {
			t.Errorf("returned after %v, at a deadline of 7 s", d)
		}
		// A context that has ended already: no wait, and the same answer.
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := s.Next(ended); !errors.Is(err, context.Canceled) || !errors.Is(err, errBoom) {
			t.Errorf("got %v", err)
		}
		// It recovers by itself, and then memory is served whatever ctx says.
		faults.set(nil)
		if id, err := s.Next(t.Context()); id != 1 || err != nil {
			t.Errorf("after the outage: %d, %v", id, err)
		}
		if id, err := s.Next(ended); id != 2 || err != nil {
			t.Errorf("from memory: %d, %v", id, err)
		}
	})
}

// The bound on one attempt is ours, and so is the context of all refills: a
// caller must not take their end for that of its own.
func TestATimeOutOfTheStoreIsNotTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(string, string, int) fault { return fault{hang: true} })
		a := newTest(t, store, fixed(10), createMissing)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		_, err := a.Next(ctx, "s")
		if !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that cancelled got %v", err)
		}
		if _, ok := errors.AsType[*LeaseError](err); !ok {
			t.Errorf("no *LeaseError in %v", err)
		}
	})
}

func TestPermanentErrorsReachWaitersAtOnceAndEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), func(string, string, int) fault {
			return fault{delay: 100 * time.Millisecond, err: &LeaseError{Op: "GetItem", Table: "t", Permanent: true, kind: ErrTableNotFound, Err: errBoom}}
		})
		a := newTest(t, store, fixed(10), createMissing)
		s := sequenceOf(t, a, "s")
		began := time.Now()
		errs := make(chan error, 50)
		for range 50 {
			go func() {
				_, err := s.Next(t.Context())
				errs <- err
			}()
		}
		for range 50 {
			if err := <-errs; !errors.Is(err, ErrTableNotFound) || !errors.Is(err, errBoom) || errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
		}
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		calls := faults.count("s")
		if calls != 1 {
			t.Errorf("%d calls for 50 callers", calls)
		}
		// For a while callers are told without asking again, and when nobody
		// asks nothing is polled.
		for range 100 {
			if _, err := s.Next(t.Context()); !errors.Is(err, ErrTableNotFound) {
				t.Fatal(err)
			}
		}
		if _, ok := s.TryNext(); ok {
			t.Error("TryNext returned an ID that was never leased")
		}
		time.Sleep(time.Hour)
		if n := faults.count("s"); n > calls+1 {
			t.Errorf("%d calls while nobody asked", n-calls)
		}
		faults.set(nil)
		if id, err := s.Next(t.Context()); id != 1 || err != nil {
			t.Errorf("got %d, %v", id, err)
		}
	})
}

// A context is the caller's code: whatever it does must not keep others out.
func TestNoContextIsAskedUnderTheLock(t *testing.T) {
	t.Run("nil", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newTest(t, Memory(), createMissing, fixed(1))
			s := sequenceOf(t, a, "s")
			func() {
				defer func() {
					if recover() == nil {
						t.Error("a nil context waited")
					}
				}()
				var none context.Context
				_, _ = s.Next(none)
			}()
			if id, err := s.Next(t.Context()); id != 1 || err != nil {
				t.Errorf("the next caller got %d, %v", id, err)
			}
		})
	})
	t.Run("one that asks", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, faults := withFaults(Memory(), always(transient()))
			a := newTest(t, store, createMissing)
			s := sequenceOf(t, a, "s")
			for range 2 { // one ends while it waits, and the other has ended before
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				asks := curious{ctx, func() { s.Stats() }}
				_, err := s.Next(asks)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if _, err = s.Next(asks); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				cancel()
			}
			faults.set(nil)
		})
	})
}

// curious is a context that looks around whenever it is asked.
type curious struct {
	context.Context
	look func()
}

func (c curious) Value(key any) any { c.look(); return c.Context.Value(key) }
func (c curious) Err() error        { c.look(); return c.Context.Err() }

func TestWarmReturnsWhenThereAreIDsAlsoBehindAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), slow(50*time.Millisecond))
		a := newTest(t, store, createMissing, fixed(10))
		s := sequenceOf(t, a, "s")
		go func() { must(s.Reserve(t.Context(), 10)) }()
		synctest.Wait()
		ok(t, a.Warm(t.Context(), "s"))
		if id, ok := s.TryNext(); !ok {
			t.Errorf("got %d, %v", id, ok)
		}
	})
}

// Who asks for more than there is in all is sent away; who waits beside is not.
func TestOnlyThoseWhoWantTooMuchAreSentAway(t *testing.T) {
	t.Run("of a sequence that is not there yet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, _ := withFaults(Memory(), func(_, _ string, call int) fault {
				if call == 1 { // so that all of them wait when the next one is made
					return fault{err: transient()}
				}
				return fault{}
			})
			a := newTest(t, store, createMissing, fixed(10))
			s := sequenceOf(t, a, "s", MaxValue(100))
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, s.Fill(t.Context(), make([]int64, 5))) })
			wg.Go(func() { must(s.Reserve(t.Context(), 3)) })
			synctest.Wait()
			_, err := s.Reserve(t.Context(), 200)
			wantErr(t, err, ErrInvalidCount, "100 in all")
			wg.Wait()
		})
	})
	t.Run("of one that is made anew", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem := Memory()
			store, faults := withFaults(mem, nil)
			a := newTest(t, store, createMissing, fixed(10))
			ok(t, a.Create(t.Context(), "s", MaxValue(100)))
			s := sequenceOf(t, a, "s", MaxValue(10))
			_, err := s.Next(t.Context())
			wantErr(t, err, ErrDefinitionMismatch)
			m := mem.backend.(*memory)
			m.mu.Lock()
			delete(m.items, "s")
			m.mu.Unlock()
			time.Sleep(time.Minute)
			before := faults.count("s")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = s.Reserve(ctx, 50)
			wantErr(t, err, ErrInvalidCount, "10 in all")
			if n := faults.count("s") - before; n > 4 {
				t.Errorf("%d calls", n)
			}
		})
	})
}

// Who wants more than is left of a day or of a sequence cannot have it: nothing
// may be used up for them, and who waits beside gets what there is.
func TestNothingIsUsedUpForWhoCannotBeServed(t *testing.T) {
	for name, c := range map[string]struct {
		clause Clause
		kind   error
	}{"a day": {DailyLimit(100), ErrDailyLimit}, "a sequence": {MaxValue(100), ErrExhausted}} {
		for what, call := range map[string]func(*Sequence, int) error{
			"reserve": func(s *Sequence, n int) error { _, err := s.Reserve(context.Background(), int64(n)); return err },
			"fill":    func(s *Sequence, n int) error { return s.Fill(context.Background(), make([]int64, n)) },
		} {
			for _, st := range stores() {
				t.Run(name+" "+what+" "+st.name, func(t *testing.T) {
					store := st.open(t)
					a := newTest(t, store, fixed(10))
					ok(t, a.Create(t.Context(), "s", c.clause))
					s, leased := sequenceOf(t, a, "s"), func() int64 { return must(a.Describe(t.Context(), "s")).Leased }
					if c.kind == ErrDailyLimit {
						err := call(s, 101)
						wantErr(t, err, ErrDailyLimit, `"s"`, "100 are left and 101 were wanted")
						if e, ok := errors.AsType[*DailyLimitError](err); !ok || e.Limit != 100 || e.Sequence != "s" || e.ResetAt.IsZero() {
							t.Errorf("%+v", e)
						}
					}
					if n := leased(); n != 0 {
						t.Fatalf("%d were leased for nothing", n)
					}
					ok(t, call(s, 90))
					if n := leased(); n != 90 {
						t.Fatalf("leased %d, want 90", n)
					}
					wantErr(t, call(s, 11), c.kind, `"s"`, "10", "11")
					if n := leased(); n != 90 {
						t.Errorf("leased %d for nothing", n-90)
					}
					for id := int64(91); id <= 100; id++ {
						if got := must(s.Next(t.Context())); got != id {
							t.Fatalf("got %d, want %d", got, id)
						}
					}
					_, err := s.Next(t.Context())
					wantErr(t, err, c.kind, `"s"`)
				})
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), slow(time.Second))
		a := newTest(t, store, createMissing, fixed(10))
		s := sequenceOf(t, a, "s", DailyLimit(100))
		must(s.Next(t.Context())) // the item is known
		ok(t, s.Fill(t.Context(), make([]int64, 9)))
		var wg sync.WaitGroup
		wg.Go(func() { must(s.Reserve(t.Context(), 40)) })
		wg.Go(func() { ok(t, s.Fill(t.Context(), make([]int64, 40))) })
		synctest.Wait()
		_, err := s.Reserve(t.Context(), 95)
		wantErr(t, err, ErrDailyLimit)
		wg.Wait()
	})
}
