package ddbseq

import (
	"errors"
	"fmt"
	"testing"
)

// retake is takeN by a process that asks the table again although an error is
// fresh in its memory.
func retake(t testing.TB, a *Allocator, key string, n int) []int64 {
	t.Helper()
	a.nudge(key)
	return takeN(t, a, key, n)
}

// refusedAsMovedBack checks that the next ID is refused with both numbers.
func refusedAsMovedBack(t testing.TB, a *Allocator, key string, stored, known int64) {
	t.Helper()
	a.nudge(key)
	id, err := a.Next(t.Context(), key)
	moved, ok := errors.AsType[*MovedBackError](err)
	if !ok || !errors.Is(err, ErrCounterMovedBack) {
		t.Fatalf("got %d, %v; want ErrCounterMovedBack", id, err)
	}
	if moved.Stored == nil || *moved.Stored != stored || moved.Known == nil || *moved.Known != known {
		t.Errorf("%v: stored %s, known %s; want %d and %d", err, text(moved.Stored), text(moved.Known), stored, known)
	}
}

// CASES 36: yugabyte/yugabyte-db#16137, and the way on, CASES 39.
func TestARestoreUnderARunningProcessIsRefused(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		create(t, b, key+"x")
		a := another(t, b, 10)
		wantIDs(t, takeN(t, a, key, 4), 1, 4)
		backup, err := b.get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, a, key, 16), 5, 20)
		plant(t, b, *backup)
		for range 2 {
			refusedAsMovedBack(t, a, key, 10, 20)
		}
		if got := lastOf(t, b, key); got != 10 {
			t.Errorf("the refused lease moved the counter to %d", got)
		}
		wantIDs(t, takeN(t, a, key+"x", 3), 1, 3) // other sequences go on
		if _, err := a.Advance(t.Context(), key, 250); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, retake(t, a, key, 3), 251, 253)
	})
}

func TestIDsInMemoryAreServedFromBeforeARestore(t *testing.T) {
	b := Memory().backend
	create(t, b, "s")
	backup, _ := b.get(t.Context(), "s")
	a := another(t, b, 10)
	wantIDs(t, takeN(t, a, "s", 1), 1, 1)
	plant(t, b, *backup)
	wantIDs(t, takeN(t, a, "s", 9), 2, 10)
	if id, err := a.Next(t.Context(), "s"); !errors.Is(err, ErrCounterMovedBack) {
		t.Errorf("got %d, %v", id, err)
	}
}

// A number lowered by hand is behind `at`, which everybody sees.
func TestALoweredCounterIsSeenByThoseWhoNeverHeldTheIDs(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		a, stranger := another(t, b, 10), another(t, b, 10)
		wantIDs(t, takeN(t, a, key, 10), 1, 10)
		it, err := b.get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		it.lastID = new(int64(4))
		plant(t, b, *it)
		refusedAsMovedBack(t, stranger, key, 4, 10)
		if _, err := stranger.Advance(t.Context(), key, 9); !errors.Is(err, ErrCounterMovedBack) {
			t.Errorf("Advance to less than it was: %v", err)
		}
		if _, err := stranger.Advance(t.Context(), key, 10); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, retake(t, stranger, key, 1), 11, 11)
	})
}

// CASES 42: an item that was seen and is gone is an error, even with
// CreateMissing; one that was never there is made only with it.
func TestADeletedItemIsNotMadeAnew(t *testing.T) {
	b := Memory().backend
	if id, err := another(t, b, 10, func(o *Options) { o.CreateMissing = false }).Next(t.Context(), "s"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %d, %v", id, err)
	}
	a := another(t, b, 10, createMissing)
	wantIDs(t, takeN(t, a, "s", 10), 1, 10)
	delete(b.(*memory).items, "s")
	for range 2 {
		a.nudge("s")
		id, err := a.Next(t.Context(), "s")
		if !errors.Is(err, ErrCounterMovedBack) || !errors.Is(err, ErrNotFound) {
			t.Fatalf("got %d, %v", id, err)
		}
	}
	if it, _ := b.get(t.Context(), "s"); it != nil {
		t.Errorf("it was made anew: %+v", it)
	}
}

func TestAnItemMadeAnewIsRefusedUntilItIsBeyond(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		a, other := another(t, b, 10), another(t, b, 5)
		wantIDs(t, takeN(t, a, key, 10), 1, 10)
		plant(t, b, item{key: key, born: "again", ver: "again", v: layoutVersion})
		wantIDs(t, takeN(t, other, key, 5), 1, 5) // who knows nothing is served
		refusedAsMovedBack(t, a, key, 5, 10)
		if _, err := other.Advance(t.Context(), key, 30); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, retake(t, a, key, 1), 31, 31)
	})
}

// A change of the definition (another ver), or of the tuning, is no excuse.
func TestAnAlterSwitchesNoFenceOff(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		a, other := another(t, b, 10), another(t, b, 10)
		wantIDs(t, takeN(t, a, key, 4), 1, 4)
		backup, err := b.get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, a, key, 16), 5, 20)
		plant(t, b, *backup)
		if err := other.Alter(t.Context(), key, MaxValue(1_000_000)); err != nil {
			t.Fatal(err)
		}
		refusedAsMovedBack(t, a, key, 10, 20)
	})
}

func TestARestoreToBeforeARestartIsRefusedWhereItIsBehind(t *testing.T) {
	b := Memory().backend
	create(t, b, "s")
	backup, _ := b.get(t.Context(), "s")
	a := another(t, b, 10)
	if err := a.Restart(t.Context(), "s", 500); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, takeN(t, a, "s", 10), 500, 509)
	plant(t, b, *backup)
	if id, err := a.Next(t.Context(), "s"); !errors.Is(err, ErrCounterMovedBack) {
		t.Errorf("got %d, %v", id, err)
	}
}

// A Restart lets go of the fence, but not of what was issued before it: an item
// of a lower epoch was rolled back for sure.
func TestARestoreToBeforeARestartIsHeldAgainstAllThatWasIssued(t *testing.T) {
	for how, rolledBack := range map[string]func(item) item{
		"restored":  func(it item) item { return it },
		"made anew": func(it item) item { it.born = "again"; return it },
		"turned too": func(it item) item {
			it.def, it.lastID, it.at = &clauses{increment: new(int64(-1))}, new(int64(30)), new(int64(30)) // down through 20 to 11
			return it
		},
	} {
		t.Run(how, func(t *testing.T) {
			b := Memory().backend
			create(t, b, "s", MaxValue(1000), MinValue(-1000), StartWith(1))
			a, other := another(t, b, 10), another(t, b, 10)
			wantIDs(t, takeN(t, other, "s", 1), 1, 1)
			backup, _ := b.get(t.Context(), "s")
			wantIDs(t, takeN(t, a, "s", 10), 11, 20)
			if err := other.Restart(t.Context(), "s", 500); err != nil {
				t.Fatal(err)
			}
			// It learns of the Restart, and issues nothing.
			if err := errors.Join(a.Warm(t.Context(), "s"), a.Refresh(t.Context(), "s")); err != nil {
				t.Fatal(err)
			}
			plant(t, b, rolledBack(*backup))
			a.nudge("s")
			if id, err := a.Next(t.Context(), "s"); !errors.Is(err, ErrCounterMovedBack) {
				t.Fatalf("got %d, %v", id, err)
			}
			beyond := int64(600)
			if how == "turned too" {
				beyond = -600
			}
			if _, err := a.Advance(t.Context(), "s", beyond); err != nil {
				t.Fatal(err)
			}
			if id := retake(t, a, "s", 1)[0]; id != beyond+1 && id != beyond-1 {
				t.Errorf("%d follows", id)
			}
		})
	}
}

// Reserve uses blocks up out of order: one that is used up and forgotten counts
// as well, wherever it was.
func TestTheFenceRemembersWhatReserveTook(t *testing.T) {
	for name, after := range map[string]bool{"it is the newest": false, "another one follows": true} {
		t.Run(name, func(t *testing.T) {
			b := Memory().backend
			create(t, b, "s")
			tapped := &tap{backend: b}
			a := another(t, tapped, 10)
			s := sequenceOf(t, a, "s")
			wantIDs(t, takeN(t, a, "s", 4), 1, 4)
			if blk, err := s.Reserve(t.Context(), 10); err != nil || blk.First != 11 {
				t.Fatal(blk, err)
			}
			if after {
				leaseUnused(t, s, tapped, 10)
			}
			if err := a.Refresh(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			it, _ := b.get(t.Context(), "s")
			it.lastID, it.at = new(int64(10)), new(int64(10))
			plant(t, b, *it)
			refusedAsMovedBack(t, a, "s", 10, 20)
		})
	}
}

// What lowers the counter by the rules raises no fence, in the process itself or
// in another that saw the counter further on.
func TestHealthyMovesRaiseNoFence(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		t.Run("Refresh", func(t *testing.T) {
			key := key + "refresh"
			create(t, b, key)
			a := another(t, b, 10)
			var ids []int64
			for range 4 {
				ids = append(ids, takeN(t, a, key, 3)...)
				if err := a.Refresh(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			wantIDs(t, ids, 1, 12)
		})
		t.Run("give-back by another", func(t *testing.T) {
			key := key + "other"
			create(t, b, key)
			a, other := another(t, b, 10), another(t, b, 10)
			wantIDs(t, takeN(t, a, key, 10), 1, 10)
			wantIDs(t, takeN(t, other, key, 1), 11, 11)
			if d, err := a.Describe(t.Context(), key); err != nil || d.LastID != 20 {
				t.Fatal(d, err)
			}
			if err := other.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantIDs(t, takeN(t, a, key, 1), 12, 12)
		})
		t.Run("CYCLE", func(t *testing.T) {
			key := key + "cycle"
			create(t, b, key, MaxValue(4), Cycle())
			a, other := another(t, b, 3), another(t, b, 3)
			for i := range 20 {
				if want := int64(i%4) + 1; i < 4 {
					wantIDs(t, takeN(t, a, key, 1), want, want)
				} else if id := takeN(t, []*Allocator{a, other}[i%2], key, 1)[0]; id < 1 || id > 4 {
					t.Fatal(id)
				}
			}
		})
		t.Run("Restart", func(t *testing.T) {
			key := key + "restart"
			create(t, b, key)
			a, other := another(t, b, 10), another(t, b, 10)
			wantIDs(t, takeN(t, a, key, 10), 1, 10)
			if err := other.Restart(t.Context(), key, 3, AllowReuse()); err != nil {
				t.Fatal(err)
			}
			wantIDs(t, takeN(t, a, key, 1), 3, 3)
		})
		t.Run("Alter", func(t *testing.T) {
			key := key + "alter"
			create(t, b, key)
			a, other := another(t, b, 10), another(t, b, 10)
			wantIDs(t, takeN(t, a, key, 10), 1, 10)
			if err := other.Alter(t.Context(), key, IncrementBy(-1), MinValue(-100), AllowReuse()); err != nil {
				t.Fatal(err)
			}
			if ids := takeN(t, a, key, 2); ids[0] != 9 || ids[1] != 8 {
				t.Fatal(ids)
			}
		})
	})
}

// A process that slept through two turns finds the counter before what it issued.
func TestTurningTwiceRaisesNoFence(t *testing.T) {
	b := Memory().backend
	create(t, b, "s", MinValue(-100), StartWith(1))
	a, other := another(t, b, 10), another(t, b, 5)
	wantIDs(t, takeN(t, a, "s", 10), 1, 10)
	if err := other.Alter(t.Context(), "s", IncrementBy(-1), AllowReuse()); err != nil {
		t.Fatal(err)
	}
	if ids := takeN(t, other, "s", 5); ids[0] != 9 || ids[4] != 5 {
		t.Fatal(ids)
	}
	if err := other.Alter(t.Context(), "s", IncrementBy(1), AllowReuse()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, takeN(t, a, "s", 3), 6, 8)
}

// The ceiling is in the condition: a process that does not know how far others
// are must not push the number beyond it.
func TestTheStoredNumberNeverPassesTheEnd(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		for i, cs := range [][]Clause{{MaxValue(10)}, {IncrementBy(-1), MinValue(1), MaxValue(10)}} {
			key := fmt.Sprint(key, i)
			create(t, b, key, cs...)
			a, other := another(t, b, 4), another(t, b, 4)
			ids := [][]int64{takeN(t, a, key, 4), takeN(t, other, key, 4), takeN(t, a, key, 2)}
			allFromTo(t, 1, 10, ids...)
			if id, err := a.Next(t.Context(), key); !errors.Is(err, ErrExhausted) {
				t.Errorf("got %d, %v", id, err)
			}
			if last := lastOf(t, b, key); last != []int64{10, 1}[i] {
				t.Errorf("lastID is %d", last)
			}
		}
	})
}

// CASES 14 and 60: an answer that cannot be is an error, and nothing of it is
// served.
func TestWrongNumbersInAnAnswerAreRefused(t *testing.T) {
	for how, garbled := range map[string]func(*item){
		"no at":                func(it *item) { it.at = nil },
		"no number":            func(it *item) { it.at, it.lastID = nil, nil },
		"0":                    func(it *item) { it.at, it.lastID = new(int64), new(int64) },
		"another count":        func(it *item) { it.n++ },
		"another's token":      func(it *item) { it.tok = "another" },
		"a block handed out":   func(it *item) { it.at, it.lastID = new(int64(10)), new(int64(10)) },
		"partly handed out":    func(it *item) { it.at, it.lastID = new(int64(13)), new(int64(13)) },
		"beyond the maximum":   func(it *item) { it.at, it.lastID = new(int64(1001)), new(int64(1001)) },
		"before the minimum":   func(it *item) { it.at, it.lastID = new(int64(-20)), new(int64(-20)) },
		"below and overflowed": func(it *item) { it.at, it.lastID = new(int64(-1<<63)), new(int64(-1<<63)) },
	} {
		t.Run(how, func(t *testing.T) {
			tapped := &tap{backend: Memory().backend}
			create(t, tapped, "s", MaxValue(1000))
			a := another(t, tapped, 10)
			wantIDs(t, takeN(t, a, "s", 10), 1, 10)
			tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
				it, err := do()
				if ch.n > 0 && err == nil {
					garbled(it)
				}
				return it, err
			})
			for range 3 {
				a.nudge("s")
				id, err := a.Next(t.Context(), "s")
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrCounterMovedBack) {
					t.Fatalf("got %d, %v", id, err)
				}
			}
			tapped.set(nil)
			if id := retake(t, a, "s", 1)[0]; id != 41 { // three blocks are lost
				t.Errorf("%d follows", id)
			}
		})
	}
}

// CASES 62: nobody sees an ID of a block before the answer has come.
func TestNoIDIsSeenBeforeTheAnswer(t *testing.T) {
	tapped := &tap{backend: Memory().backend}
	create(t, tapped, "s")
	a := another(t, tapped, 10)
	s := sequenceOf(t, a, "s")
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		if ch.n == 0 {
			return do()
		}
		for _, when := range []string{"before", "after"} {
			for range 3 {
				if id, ok := s.TryNext(); ok {
					t.Errorf("%d was seen %s the write", id, when)
				}
			}
			if when == "before" {
				if _, err := do(); err != nil {
					t.Error(err)
				}
			}
		}
		return nil, lost()
	})
	attempts := 0
	inner := tapped.on
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		if attempts++; attempts > 1 {
			return do()
		}
		return inner(ch, do)
	})
	wantIDs(t, takeN(t, a, "s", 3), 1, 3)
}

// The fence is on what was issued or is held, not on every block ever held.
func TestTheFenceForgetsWhatWasGivenBack(t *testing.T) {
	for _, issued := range []int{0, 1, 9} {
		t.Run(fmt.Sprint(issued), func(t *testing.T) {
			b := Memory().backend
			create(t, b, "s")
			a, other := another(t, b, 10), another(t, b, 4)
			if err := a.Warm(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			ids := takeN(t, a, "s", issued)
			if err := a.Refresh(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, takeN(t, other, "s", 1)...) // and this goes on inside of it
			if err := other.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, takeN(t, a, "s", 5)...)
			wantIDs(t, ids, 1, int64(issued)+6)
		})
	}
}
