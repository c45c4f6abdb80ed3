package ddbseq

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// remove deletes an item, as an operator would.
func remove(t testing.TB, s *Store, key string) {
	t.Helper()
	m, isMemory := s.backend.(*memory)
	if !isMemory {
		t.Fatalf("remove does not know %T", s.backend)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.items, key)
}

func TestARestoredCounterServesNothingUntilItIsPutRight(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a, admin := newTest(t, s, strict(10)), newTest(t, s, strict(1))
			ok(t, a.Create(ctx, "s"))
			want(t, a, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
			byHand(t, s, "s", map[string]*int64{attrLast: new(int64(4)), attrAt: new(int64(4))})
			want(t, a, "s", 13, 14, 15, 16, 17, 18, 19, 20) // it holds them
			for range 2 {
				_, err := next1(t, a, "s")
				wantErr(t, err, ErrCounterMovedBack, `"s"`, "table: 4", "20", "Advance")
			}
			// Not far enough, then far enough.
			if now, err := admin.Advance(ctx, "s", 19); now != 19 || err != nil {
				t.Fatal(now, err)
			}
			_, err := next1(t, a, "s")
			wantErr(t, err, ErrCounterMovedBack)
			if now, err := admin.Advance(ctx, "s", 20); now != 20 || err != nil {
				t.Fatal(now, err)
			}
			want(t, a, "s", 21)
			// Or a Restart, which says that repeating them is meant.
			byHand(t, s, "s", map[string]*int64{attrLast: new(int64(4)), attrAt: new(int64(4))})
			ok(t, admin.Restart(ctx, "s", 5))
			want(t, a, "s", 22, 23, 24, 25, 26, 27, 28, 29, 30, 5, 6)
		})
	}
}

func TestAnItemMadeAnewIsTakenOnlyBeyondWhatWasGivenOut(t *testing.T) {
	ctx := t.Context()
	type step = func(*Allocator) error
	create := func(cs ...Clause) step { return func(a *Allocator) error { return a.Create(ctx, "s", cs...) } }
	restart := func(v int64) step { return func(a *Allocator) error { return a.Restart(ctx, "s", v) } }
	advance := func(v int64) step {
		return func(a *Allocator) error {
			_, err := a.Advance(ctx, "s", v)
			return err
		}
	}
	then := func(one, two step) step { return func(a *Allocator) error { return errors.Join(one(a), two(a)) } }
	for _, c := range []struct {
		name   string
		anew   step
		healed int64 // 0: it is not
	}{
		{"not at all", func(*Allocator) error { return nil }, 0},
		{"from its start", create(), 0},
		{"with a start beyond", create(StartWith(11)), 11},
		{"with a start before", create(StartWith(10)), 0},
		{"and advanced", then(create(), advance(10)), 11},
		{"and advanced too little", then(create(), advance(9)), 0},
		{"and restarted beyond", then(create(), restart(500)), 500},
		{"and restarted on purpose", then(create(), restart(3)), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Memory()
			a, admin := newTest(t, s, strict(10), createMissing), newTest(t, s, strict(1))
			ok(t, a.Create(ctx, "s"))
			want(t, a, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			remove(t, s, "s")
			ok(t, c.anew(admin))
			if c.healed != 0 {
				want(t, a, "s", c.healed)
				return
			}
			_, err := a.Next(ctx, "s")
			wantErr(t, err, ErrCounterMovedBack, `"s"`, "10")
		})
	}
}

func TestReserveLearnsOfARaisedBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), Memory()
		a, b := newTest(t, s, strict(5)), newTest(t, s, strict(5))
		ok(t, a.Create(ctx, "s", MaxValue(10)))
		want(t, a, "s", 1)
		want(t, b, "s", 6)
		qa, qb := sequenceOf(t, a, "s"), sequenceOf(t, b, "s")
		for _, q := range []*Sequence{qa, qb} {
			if _, err := q.Reserve(ctx, 50); !errors.Is(err, ErrInvalidCount) && !errors.Is(err, ErrExhausted) {
				t.Fatal(err)
			}
		}
		ok(t, a.Alter(ctx, "s", MaxValue(1000)))
		if blk, err := qa.Reserve(ctx, 50); err != nil || blk.First != 11 || blk.N != 50 {
			t.Error(blk, err)
		}
		time.Sleep(defaultErrorHold)
		if blk, err := qb.Reserve(ctx, 50); err != nil || blk.First != 61 || blk.N != 50 {
			t.Error(blk, err)
		}
	})
}

// A lease that is under way when this process restarts the sequence is refused
// by the table and made again under the new epoch: it is what was asked for.
func TestARestartDuringARefillLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), Memory()
		slowed, f := withFaults(s, nil)
		a := newTest(t, slowed, strict(10))
		ok(t, a.Create(ctx, "s"))
		want(t, a, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		f.set(slow(time.Second))
		got := make(chan int64)
		go func() {
			id, err := a.Next(ctx, "s")
			if err != nil {
				t.Error(err)
			}
			got <- id
		}()
		time.Sleep(100 * time.Millisecond) // its lease is under way
		f.set(nil)
		ok(t, a.Restart(ctx, "s", 500))
		if id := <-got; id != 500 {
			t.Errorf("the call that waited got %d, want 500", id)
		}
		want(t, a, "s", 501)
	})
}

func TestHugeBlocksAreDroppedWhole(t *testing.T) {
	for _, forfeit := range []bool{false, true} {
		for _, block := range []int64{1 << 61, 1<<61 + 1, 1 << 62, 1<<62 + 1, maxInt - 99, maxInt} {
			ctx := t.Context()
			a := newTest(t, Memory(), fixed(block), func(o *Options) { o.forfeit = forfeit })
			ok(t, a.Create(ctx, "s", MinValue(math.MinInt64), MaxValue(maxInt-99)))
			next := int64(math.MinInt64)
			for range 4 {
				id, err := a.Next(ctx, "s")
				if err != nil {
					wantErr(t, err, ErrExhausted)
					if !forfeit {
						t.Errorf("block %d: all was given back, and %v", block, err)
					}
					break
				}
				if id != next {
					t.Errorf("block %d: %d, want %d", block, id, next)
				}
				d := must(a.Describe(ctx, "s"))
				ok(t, a.Refresh(ctx, "s"))
				if next = id + 1; forfeit {
					next = d.Next
				}
			}
		}
	}
}

// stockUp has a lease one more block, of which nothing is handed out: who asked
// for it has left when it comes.
func stockUp(t testing.TB, a *Allocator, f *faultStore, name string, n int64) {
	t.Helper()
	f.set(slow(time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err := sequenceOf(t, a, name).Reserve(ctx, n)
	wantErr(t, err, context.DeadlineExceeded)
	time.Sleep(10 * time.Second)
	f.set(nil)
}

// What is held of two epochs, the newer one untouched, must neither look like a
// counter that moved back nor be given back as one, even where it joins.
func TestBlocksOfTwoEpochsAreKeptApart(t *testing.T) {
	for _, c := range []struct {
		name string
		back int64 // where the other process restarts
		take int64 // how many it takes then
		left int64 // what comes next when all is dropped
	}{
		{"joining", 5, 6, 11},   // ours 5..10 of old, theirs 5..10, ours 11..20
		{"going back", 2, 6, 8}, // ours 5..10 of old, theirs 2..7, ours 8..17
		{"going far back", 1, 1, 2},
		{"ahead", 500, 6, 506},
	} {
		for _, end := range []string{"Close", "Refresh"} {
			t.Run(c.name+", then "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, s := t.Context(), Memory()
					slowed, f := withFaults(s, nil)
					a, b := newTest(t, slowed, fixed(10)), newTest(t, s, strict(c.take))
					ok(t, b.Create(ctx, "s"))
					want(t, a, "s", 1, 2, 3, 4)
					ok(t, b.Restart(ctx, "s", c.back, AllowReuse()))
					for i := range c.take {
						want(t, b, "s", c.back+i)
					}
					stockUp(t, a, f, "s", 10)
					if end == "Close" {
						ok(t, a.Close(ctx))
						a = newTest(t, s, strict(1))
					} else {
						ok(t, a.Refresh(ctx, "s"))
					}
					want(t, a, "s", c.left)
				})
			})
		}
	}
}

// The same of a CYCLE sequence whose others have gone round in between.
func TestBlocksOfTwoLapsAreNotGivenBackAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), Memory()
		slowed, f := withFaults(s, nil)
		a, b := newTest(t, slowed, fixed(5)), newTest(t, s, strict(5))
		ok(t, b.Create(ctx, "s", MaxValue(10), Cycle()))
		want(t, a, "s", 1, 2) // holds 3 to 5
		want(t, b, "s", 6, 7, 8, 9, 10, 1, 2, 3, 4, 5)
		stockUp(t, a, f, "s", 5) // 6 to 10
		ok(t, a.Close(ctx))
		want(t, b, "s", 6)
	})
}
