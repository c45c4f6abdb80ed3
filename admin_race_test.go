package ddbseq

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// between returns s, on which act happens once, right before the next write.
func between(s *Store, act func()) *Store {
	var once sync.Once
	out, _ := withFaults(s, func(op, _ string, _ int) fault {
		if op == "UpdateItem" {
			once.Do(act)
		}
		return fault{}
	})
	return out
}

// losing returns s, whose first write is carried out and its reply lost; then
// happens before the retry.
func losing(s *Store, then func()) *Store {
	writes := 0
	out, _ := withFaults(s, func(op, _ string, _ int) fault {
		if op != "UpdateItem" {
			return fault{}
		}
		switch writes++; writes {
		case 1:
			return fault{after: true, err: lost()}
		case 2:
			then()
		}
		return fault{}
	})
	return out
}

// writes returns s, and the number of writes to it.
func writes(s *Store) (*Store, func() int) {
	var mu sync.Mutex
	n := 0
	out, _ := withFaults(s, func(op, _ string, _ int) fault {
		mu.Lock()
		defer mu.Unlock()
		if op == "UpdateItem" {
			n++
		}
		return fault{}
	})
	return out, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// A lease that slips in between the reading and the writing of an
// administrator must not be undone without AllowReuse.
func TestALeaseBetweenReadAndWriteIsNotUndone(t *testing.T) {
	for _, c := range []struct {
		name string
		used bool // leased from before
		do   func(context.Context, *Allocator) error
		want error
	}{
		{"Restart of an unused one", false, func(ctx context.Context, a *Allocator) error { return a.Restart(ctx, "s", 60) }, ErrReuse},
		{"Restart of an unused one, far", false, func(ctx context.Context, a *Allocator) error { return a.Restart(ctx, "s", 900) }, nil},
		{"RestartAfter of an unused one", false, func(ctx context.Context, a *Allocator) error { return a.RestartAfter(ctx, "s", 60) }, ErrReuse},
		{"RESTART of an unused one", false, func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", RestartAtStart()) }, ErrReuse},
		{"turning an unused one", false, func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", IncrementBy(-1)) }, ErrReuse},
		{"turning and RESTART of an unused one", false, func(ctx context.Context, a *Allocator) error {
			return a.Alter(ctx, "s", IncrementBy(-1), RestartWith(60))
		}, ErrReuse},
		{"Restart", true, func(ctx context.Context, a *Allocator) error { return a.Restart(ctx, "s", 160) }, ErrReuse},
		{"RESTART", true, func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", RestartWith(160)) }, ErrReuse},
		{"RestartAfter", true, func(ctx context.Context, a *Allocator) error { return a.RestartAfter(ctx, "s", 160) }, ErrReuse},
		{"RestartAfter its very end", true, func(ctx context.Context, a *Allocator) error { return a.RestartAfter(ctx, "s", 1000) }, nil},
		{"Alter to a bound that the lease passes", true, func(ctx context.Context, a *Allocator) error {
			return a.Alter(ctx, "s", MaxValue(160))
		}, ErrInvalidDefinition},
		{"Alter to a bound that an unused one's lease passes", false, func(ctx context.Context, a *Allocator) error {
			return a.Alter(ctx, "s", MaxValue(100))
		}, ErrInvalidDefinition},
		{"Alter to a bound that it does not", true, func(ctx context.Context, a *Allocator) error {
			return a.Alter(ctx, "s", MaxValue(249))
		}, nil},
		{"Advance to before it", true, func(ctx context.Context, a *Allocator) error {
			if now, err := a.Advance(ctx, "s", 200); err != nil || now != 249 {
				return errors.Join(errors.New("it is not at 249"), err)
			}
			return nil
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, s := t.Context(), Memory()
			other := newTest(t, s, strict(100))
			ok(t, other.Create(ctx, "s", StartWith(50), MaxValue(1000)))
			if c.used {
				want(t, other, "s", 50)
			}
			fresh := newTest(t, s, strict(100))
			a := newTest(t, between(s, func() { _ = must(fresh.Next(ctx, "s")) }), strict(1))
			err := c.do(ctx, a)
			if c.want == nil {
				ok(t, err)
			} else {
				wantErr(t, err, c.want)
			}
			it := must(s.backend.get(ctx, "s"))
			if it.lastID != nil && *it.lastID < 149 || it.lastID == nil && it.first() < 150 {
				t.Errorf("the next one comes after %s or is %d, inside what was leased", text(it.lastID), it.first())
			}
		})
	}
}

// Each call of an administrator: applied and its reply lost, nothing else
// happening or another lease in between; or refused at first.
func TestAdministrationSurvivesLostRepliesAndConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(context.Context, *Allocator) error
		next int64 // the first ID leased after it
		// unknown: when another lease comes in between it cannot tell.
		unknown bool
	}{
		{"Create", func(ctx context.Context, a *Allocator) error { return a.Create(ctx, "s", MaxValue(1000)) }, 2, false},
		{"Alter", func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", IncrementBy(7)) }, 8, false},
		{"Alter RESTART", func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", RestartWith(1), AllowReuse()) }, 1, true},
		{"Alter round", func(ctx context.Context, a *Allocator) error {
			return a.Alter(ctx, "s", MinValue(-1000), IncrementBy(-1), AllowReuse())
		}, 0, false},
		{"Restart", func(ctx context.Context, a *Allocator) error { return a.Restart(ctx, "s", 500) }, 500, true},
		{"RestartAfter", func(ctx context.Context, a *Allocator) error { return a.RestartAfter(ctx, "s", 500) }, 501, true},
		{"Advance", func(ctx context.Context, a *Allocator) error { _, err := a.Advance(ctx, "s", 500); return err }, 501, false},
	} {
		open := func(t *testing.T) (*Store, *Allocator) {
			t.Helper()
			s := Memory()
			b := newTest(t, s, strict(1))
			if c.name != "Create" {
				ok(t, b.Create(t.Context(), "s", MaxValue(1000)))
				want(t, b, "s", 1)
			}
			return s, newTest(t, s, strict(1))
		}
		t.Run(c.name+" is lost", func(t *testing.T) {
			s, b := open(t)
			ok(t, c.do(t.Context(), newTest(t, losing(s, func() {}), strict(1))))
			if c.name == "Create" {
				want(t, b, "s", 1)
			}
			want(t, b, "s", c.next)
		})
		t.Run(c.name+" is lost and someone leases", func(t *testing.T) {
			s, b := open(t)
			var got int64
			err := c.do(t.Context(), newTest(t, losing(s, func() { got = must(b.Next(t.Context(), "s")) }), strict(1)))
			if c.unknown {
				wantErr(t, err, ErrOutcomeUnknown, "Describe")
			} else {
				ok(t, err)
			}
			step := must(b.Describe(t.Context(), "s")).Definition.Increment
			want(t, b, "s", got+step)
			if c.name != "Create" && got != c.next {
				t.Errorf("the lease in between got %d, want %d", got, c.next)
			}
		})
		t.Run(c.name+" conflicts at first", func(t *testing.T) {
			s, b := open(t)
			writes := 0
			flaky, _ := withFaults(s, func(op, _ string, _ int) fault {
				if op == "UpdateItem" {
					writes++
				}
				if writes == 1 {
					return fault{err: transient()}
				}
				return fault{}
			})
			ok(t, c.do(t.Context(), newTest(t, flaky, strict(1))))
			if c.name == "Create" {
				want(t, b, "s", 1)
			}
			want(t, b, "s", c.next)
		})
	}
}

func TestRestartAndAlterDropWhatThisProcessHolds(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a, b := newTest(t, s, strict(10)), newTest(t, s, strict(10))
			ok(t, a.Create(ctx, "s"))
			want(t, a, "s", 1, 2)
			want(t, b, "s", 11, 12)
			ok(t, a.Restart(ctx, "s", 1000))
			want(t, a, "s", 1000, 1001)
			want(t, b, "s", 13, 14) // others hand out what they hold
			ok(t, a.Alter(ctx, "s", IncrementBy(5)))
			want(t, a, "s", 1014, 1019)
			want(t, b, "s", 15, 16, 17, 18, 19, 20, 1064, 1069) // and obey with their next lease
			ok(t, b.RestartAfter(ctx, "s", 0+1, AllowReuse()))
			want(t, b, "s", 6, 11)
			want(t, a, "s", 1024, 1029)
			ok(t, a.Refresh(ctx, "s"))
			want(t, a, "s", 56)
			ok(t, a.Alter(ctx, "s", IncrementBy(-1), AllowReuse()))
			want(t, a, "s", 100, 99)
			ok(t, b.Refresh(ctx))
			want(t, b, "s", 90)
		})
	}
}

// A process that leased under an old epoch or a new one, in any mixture, must
// not take what it holds for a counter that moved back.
func TestRefreshAfterARestartElsewhereIsHealthy(t *testing.T) {
	ctx := t.Context()
	for _, part := range []int{0, 1, 5, 10} { // of the block of the new epoch
		s := Memory()
		a, b := newTest(t, s, strict(10)), newTest(t, s, strict(10))
		ok(t, a.Create(ctx, "s"))
		want(t, a, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		ok(t, b.Restart(ctx, "s", 5, AllowReuse()))
		ok(t, a.Warm(ctx, "s"))
		for i := range part {
			want(t, a, "s", int64(5+i))
		}
		ok(t, a.Refresh(ctx, "s"))
		want(t, a, "s", 15)
		ok(t, a.Refresh(ctx, "s"))
		want(t, a, "s", 25)
	}
}

func TestADefinitionChangeReachesOthersWithTheirNextLease(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(1))
			counted, count := writes(s)
			b := newTest(t, counted, strict(2))
			ok(t, a.Create(ctx, "s"))
			want(t, b, "s", 1, 2)
			ok(t, a.Alter(ctx, "s", IncrementBy(10)))
			before := count()
			want(t, b, "s", 12, 22)
			if n := count() - before; n != 2 {
				t.Errorf("learning it cost %d writes, want the refused one and the lease", n)
			}
			want(t, b, "s", 32)
			if n := count() - before; n != 3 {
				t.Errorf("%d writes, want one more", n)
			}
		})
	}
}

func TestCodeThatDisagreesWithTheTableIsToldBoth(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a, b := newTest(t, s, strict(2)), newTest(t, s, strict(2), createMissing)
			ok(t, a.Create(ctx, "s", IncrementBy(5)))
			q, err := b.Sequence("s", IncrementBy(2), MaxValue(100))
			ok(t, err)
			_, err = q.Next(ctx)
			wantErr(t, err, ErrDefinitionMismatch, `"s"`, s.backend.table(),
				"INCREMENT is 2 in the code and 5 in the table", "MAXVALUE is 100 in the code and 9223372036854775807 in the table")
			// The code is right, and the table follows.
			ok(t, a.Alter(ctx, "s", IncrementBy(2), MaxValue(100)))
			unhold(b, "s")
			if id, err := q.Next(ctx); id != 1 || err != nil {
				t.Error(id, err)
			}
			// Code that says nothing takes what is stored.
			want(t, newTest(t, s, strict(1)), "s", 5)
			// What is found out while leasing is the same.
			ok(t, a.Alter(ctx, "s", IncrementBy(3)))
			if id, err := q.Next(ctx); id != 3 || err != nil {
				t.Error("what is held is handed out:", id, err)
			}
			_, err = q.Next(ctx)
			wantErr(t, err, ErrDefinitionMismatch, "INCREMENT is 2 in the code and 3 in the table")
		})
	}
}

func TestAnExhaustedSequenceCostsNoWritesAndRecoversByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), Memory()
		counted, count := writes(s)
		admin := newTest(t, s)
		a := newTest(t, counted, fixed(4))
		ok(t, admin.Create(ctx, "s", MaxValue(6)))
		want(t, a, "s", 1, 2, 3, 4, 5, 6)
		before := count()
		for range 1000 {
			_, err := a.Next(ctx, "s")
			wantErr(t, err, ErrExhausted, "maximum 6", "last leased 6", `"s"`, "memory")
			if ex, _ := errors.AsType[*ExhaustedError](err); ex.Bound != "max" || ex.Limit != 6 || ex.LastID != 6 {
				t.Fatalf("%+v", ex)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := count() - before; n != 0 {
			t.Errorf("%d writes for 1000 calls", n)
		}
		_, err := a.Next(ctx, "s")
		wantErr(t, err, ErrExhausted)
		ok(t, admin.Alter(ctx, "s", MaxValue(8)))
		time.Sleep(defaultErrorHold)
		if id, err := a.Next(ctx, "s"); id != 7 || err != nil {
			t.Fatal(id, err)
		}
		want(t, a, "s", 8)
		_, err = a.Next(ctx, "s")
		wantErr(t, err, ErrExhausted, "maximum 8")
		ok(t, a.Alter(ctx, "s", MaxValue(9))) // one's own change is known at once
		if id, err := a.Next(ctx, "s"); id != 9 || err != nil {
			t.Fatal(id, err)
		}
	})
}

func TestEightProcessesShareTheLastFive(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			ok(t, newTest(t, s).Create(ctx, "s", MaxValue(1000)))
			byHand(t, s, "s", map[string]*int64{attrLast: new(int64(995))})
			ids := make([][]int64, 8)
			var wg sync.WaitGroup
			for i := range ids {
				a := newTest(t, s, strict(10))
				wg.Go(func() {
					for {
						id, err := a.Next(ctx, "s")
						if err != nil {
							if !errors.Is(err, ErrExhausted) {
								t.Error(err)
							}
							return
						}
						ids[i] = append(ids[i], id)
					}
				})
			}
			wg.Wait()
			allFromTo(t, 996, 1000, ids...)
		})
	}
}

func TestAHundredProcessesOpenAMissingSequence(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			const n, block = 100, 10
			ids := make([][]int64, n)
			var wg sync.WaitGroup
			for i := range n {
				a := newTest(t, s, strict(block), createMissing, func(o *Options) { o.rand = rand.Float64 })
				wg.Go(func() {
					q, err := a.Sequence("s", StartWith(500))
					if err == nil {
						ids[i] = make([]int64, block)
						err = q.Fill(ctx, ids[i])
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			allFromTo(t, 500, 500+n*block-1, ids...)
			for _, b := range ids {
				if b[block-1]-b[0] != block-1 {
					t.Errorf("block %v is not of one lease", b)
				}
			}
		})
	}
}

func TestAdvanceRacingWithRefillersNeverLowersTheCounter(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			admin := newTest(t, s, strict(1), func(o *Options) { o.rand = rand.Float64 })
			ok(t, admin.Create(ctx, "s"))
			ids := make([][]int64, 10)
			var wg sync.WaitGroup
			for i := range ids {
				a := newTest(t, s, strict(3), func(o *Options) { o.rand = rand.Float64 })
				wg.Go(func() {
					for range 30 {
						id, err := a.Next(ctx, "s")
						if err != nil {
							t.Error(err)
							return
						}
						ids[i] = append(ids[i], id)
					}
				})
			}
			defer wg.Wait()
			last := int64(0)
			for i := range 20 {
				to := last + int64(i%3)*20 - 15 // at times behind
				now, err := admin.Advance(ctx, "s", to)
				if err != nil || now < to || now < last && to > 0 {
					t.Fatalf("Advance to %d from %d: %d, %v", to, last, now, err)
				}
				last = max(last, now)
				d := must(admin.Describe(ctx, "s"))
				if d.Called && d.LastID < last {
					t.Fatalf("the counter is at %d after an Advance to %d", d.LastID, now)
				}
			}
			wg.Wait()
			allDifferent(t, ids...)
		})
	}
}

// A program without tokens, as an old generator is, counts on beside us.
func TestAForeignProgramThatAddsOneOverlapsWithNothing(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			ok(t, newTest(t, s).Create(ctx, "s"))
			rng := rand.New(rand.NewPCG(1, 1))
			all := make([][]int64, 4)
			as := []*Allocator{newTest(t, s, strict(3)), newTest(t, s, strict(1)), newTest(t, s, fixed(5), atOnce)}
			for range 200 {
				p := rng.IntN(len(all))
				if p == len(as) {
					it := must(s.backend.get(ctx, "s"))
					if it.lastID == nil {
						continue
					}
					byHand(t, s, "s", map[string]*int64{attrLast: new(*it.lastID + 1)})
					all[p] = append(all[p], *it.lastID+1)
					continue
				}
				if p == 2 && rng.IntN(8) == 0 {
					ok(t, as[p].Refresh(ctx, "s")) // gives back, if nobody was there
				}
				all[p] = append(all[p], must(as[p].Next(ctx, "s")))
			}
			allDifferent(t, all...)
		})
	}
}

// A lease that was under way does not make this process forget what it has
// altered meanwhile.
func TestALeaseUnderWayDoesNotHideAnAlter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, fixed(10), func(o *Options) { o.Runway = 0 })
		s := sequenceOf(t, a, "s")
		for range 10 {
			must(s.Next(t.Context()))
		}
		n := f.count("s")
		f.set(func(_, _ string, call int) fault {
			if call == n+1 {
				return fault{delay: time.Second, err: transient()}
			}
			return fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		go func() { _, _ = s.Next(ctx) }()
		synctest.Wait()
		ok(t, a.Alter(t.Context(), "s", MaxValue(500)))
		time.Sleep(10 * time.Second)
		_, err := a.Sequence("s", MaxValue(500))
		ok(t, err)
	})
}
