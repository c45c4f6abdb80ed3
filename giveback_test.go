package ddbseq

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"
)

// A tap is a store whose writes a test can watch, hold back and garble: on gets
// every change with what carries it out.
type tap struct {
	backend
	mu sync.Mutex
	on func(ch *change, do func() (*item, error)) (*item, error)
}

func (t *tap) apply(ctx context.Context, ch *change) (*item, error) {
	t.mu.Lock()
	on := t.on
	t.mu.Unlock()
	do := func() (*item, error) { return t.backend.apply(ctx, ch) }
	if on == nil {
		return do()
	}
	return on(ch, do)
}

func (t *tap) set(on func(ch *change, do func() (*item, error)) (*item, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
}

// another returns an Allocator of one more process on b, which gives nothing
// back unless the test closes it.
func another(t testing.TB, b backend, block int64, optFns ...func(*Options)) *Allocator {
	t.Helper()
	return newTest(t, &Store{backend: b}, append([]func(*Options){fixed(block)}, optFns...)...)
}

// takeN returns the next n IDs.
func takeN(t testing.TB, a *Allocator, key string, n int) []int64 {
	t.Helper()
	ids := make([]int64, n)
	for i := range ids {
		id, err := a.Next(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = id
	}
	return ids
}

func wantIDs(t testing.TB, got []int64, first, last int64) {
	t.Helper()
	if int64(len(got)) != last-first+1 || got[0] != first || got[len(got)-1] != last {
		t.Fatalf("got %v, want %d to %d", got, first, last)
	}
}

func lastOf(t testing.TB, b backend, key string) int64 {
	t.Helper()
	it, err := b.get(t.Context(), key)
	if err != nil || it == nil || it.lastID == nil {
		t.Fatalf("no lastID: %+v, %v", it, err)
	}
	return *it.lastID
}

func create(t testing.TB, b backend, key string, cs ...Clause) {
	t.Helper()
	a := newTest(t, &Store{backend: b})
	if err := a.Create(t.Context(), key, cs...); err != nil {
		t.Fatal(err)
	}
}

// leaseUnused has s lease a block that nobody takes anything of, although memory
// is not empty: for a Reserve of n IDs that leaves before they come.
func leaseUnused(t *testing.T, s *Sequence, tapped *tap, n int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	leases := s.Stats().Leases
	tapped.set(func(_ *change, do func() (*item, error)) (*item, error) {
		cancel()
		for waiting := 1; waiting > 0; runtime.Gosched() {
			s.mu.Lock()
			waiting = s.waiters.Len()
			s.mu.Unlock()
		}
		return do()
	})
	if b, err := s.Reserve(ctx, n); !errors.Is(err, context.Canceled) {
		t.Fatal(b, err)
	}
	for s.Stats().Leases == leases {
		runtime.Gosched()
	}
	tapped.set(nil)
}

func TestGiveBackThatIsRepeatedFindsItsBlockLeasedAgain(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		tapped := &tap{backend: b}
		a, other, third := another(t, tapped, 100), another(t, b, 50), another(t, b, 50)
		wantIDs(t, takeN(t, a, key, 50), 1, 50)
		attempts := 0
		tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
			if attempts++; attempts == 1 {
				if _, err := do(); err != nil {
					t.Error(err)
				}
				// lastID is 100 again when the repetition arrives.
				wantIDs(t, takeN(t, other, key, 50), 51, 100)
				return nil, lost()
			}
			return do()
		})
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if attempts < 2 {
			t.Fatal("a lost reply was not asked for again")
		}
		wantIDs(t, takeN(t, third, key, 50), 101, 150)
	})
}

func TestGiveBackAfterARestoreIsRefusedThoughTheNumbersAreTheSame(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		backup, err := b.get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		a, other, third := another(t, b, 100), another(t, b, 100), another(t, b, 50)
		wantIDs(t, takeN(t, a, key, 50), 1, 50)
		plant(t, b, *backup)
		wantIDs(t, takeN(t, other, key, 100), 1, 100) // as one who knows nothing of it must
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, third, key, 50), 101, 150)
	})
}

func TestGiveBackAfterALateAttemptOfTheSameLease(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		// The lease that begins a day cannot come late: the day has begun by then.
		wantIDs(t, takeN(t, another(t, b, 10), key, 10), 1, 10)
		tapped := &tap{backend: b}
		a, other, third := another(t, tapped, 10), another(t, b, 10), another(t, b, 10)
		var late *change
		tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
			if late == nil {
				late = ch
				return nil, lost() // still under way
			}
			return do()
		})
		wantIDs(t, takeN(t, a, key, 5), 11, 15)
		wantIDs(t, takeN(t, other, key, 10), 21, 30)
		if _, err := b.apply(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		it, err := b.get(t.Context(), key)
		if err != nil || it.tok != late.token || *it.lastID != 40 {
			t.Fatalf("the token must be that of A's lease, and lastID not: %+v, %v", it, err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, third, key, 10), 41, 50)
	})
}

func TestGiveBackBehindAWriterWithoutTokens(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		a, other := another(t, b, 10), another(t, b, 10)
		wantIDs(t, takeN(t, a, key, 5), 1, 5)
		it, err := b.get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		it.lastID = new(*it.lastID + 7) // 11 to 17
		plant(t, b, *it)
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, other, key, 10), 18, 27)
	})
}

// CASES 49: dgraph-io/badger#1280, in its order.
func TestTwoClosersInTheOrderOfTheirLeasesAndTheOther(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		for _, order := range [][2]int{{1, 0}, {0, 1}} {
			key := key + string(rune('a'+order[0]))
			create(t, b, key)
			both := []*Allocator{another(t, b, 2), another(t, b, 2)}
			first, second := takeN(t, both[0], key, 1), takeN(t, both[1], key, 1)
			for _, i := range order {
				if err := both[i].Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			allDifferent(t, first, second, takeN(t, another(t, b, 2), key, 6))
		}
	})
}

func TestTwoClosersAtOnce(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		for range 5 {
			var ids [][]int64
			var wg sync.WaitGroup
			for range 4 {
				a := another(t, b, 10)
				ids = append(ids, takeN(t, a, key, 3))
				wg.Go(func() {
					if err := a.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			ids = append(ids, takeN(t, another(t, b, 5), key, 10))
			wg.Wait()
			allDifferent(t, append(ids, takeN(t, another(t, b, 5), key, 30))...)
		}
	})
}

func TestATailIsNotServedOnceItsGiveBackIsSent(t *testing.T) {
	tapped := &tap{backend: Memory().backend}
	a := another(t, tapped, 10, createMissing)
	s := sequenceOf(t, a, "s")
	wantIDs(t, takeN(t, a, "s", 3), 1, 3)
	sent := false
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		if ch.holds != "" {
			sent = true
			if id, ok := s.TryNext(); ok {
				t.Errorf("%d was served while it was given back", id)
			}
			return nil, denied() // the worst that can be known of it
		}
		return do()
	})
	if err := a.Refresh(t.Context(), "s"); !errors.Is(err, ErrAccessDenied) {
		t.Errorf("Refresh: %v", err)
	}
	wantIDs(t, takeN(t, a, "s", 1), 11, 11)
	if !sent {
		t.Error("nothing was given back")
	}
	tapped.set(nil)
	if st := a.Stats(); st.Returned != 0 || st.Abandoned.Refresh != 7 {
		t.Errorf("what became of the tail: %+v", st)
	}
}

func TestGiveBackTakesTheBlocksThatFollowEachOther(t *testing.T) {
	b := Memory().backend
	a := another(t, b, 10, createMissing)
	s := sequenceOf(t, a, "s")
	wantIDs(t, takeN(t, a, "s", 4), 1, 4)
	// A piece of 10 does not fit into what is left, and leaves 5 to 10 behind.
	if blk, err := s.Reserve(t.Context(), 10); err != nil || blk.First != 11 {
		t.Fatal(blk, err)
	}
	if err := a.Warm(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := a.Refresh(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := lastOf(t, b, "s"); got != 20 {
		t.Errorf("lastID is %d, want 20: 11 to 20 were handed out", got)
	}
	wantIDs(t, takeN(t, a, "s", 2), 21, 22)
}

// What follows by number does not follow in the table when a Restart lies
// between: others have leased the same numbers since.
func TestTailsAreNotJoinedOverALap(t *testing.T) {
	b := Memory().backend
	create(t, b, "s")
	tapped := &tap{backend: b}
	a, other, third := another(t, tapped, 10), another(t, b, 6), another(t, b, 5)
	s := sequenceOf(t, a, "s")
	wantIDs(t, takeN(t, a, "s", 4), 1, 4)
	if err := other.Restart(t.Context(), "s", 5, AllowReuse()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, takeN(t, other, "s", 6), 5, 10)

	// A gets 11 to 20, unused, behind 5 to 10 of its former life.
	leaseUnused(t, s, tapped, 8)
	if got := lastOf(t, b, "s"); got != 20 {
		t.Fatal(got)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, takeN(t, third, "s", 5), 11, 15)
}

// What goes back to the daily limit is what was leased on the day that is
// stored, though the IDs of the day before go back as well.
func TestGiveBackCountsForTheDayThatIsStored(t *testing.T) {
	b := Memory().backend
	create(t, b, "s", DailyLimit(30))
	clock := &clockStore{backend: b}
	clock.advance(time.Until(time.Now().UTC().Truncate(24 * time.Hour).Add(23 * time.Hour)))
	tapped := &tap{backend: clock}
	a := another(t, tapped, 10)
	wantIDs(t, takeN(t, a, "s", 4), 1, 4)
	clock.advance(2 * time.Hour)
	leaseUnused(t, sequenceOf(t, a, "s"), tapped, 8)
	if it, _ := b.get(t.Context(), "s"); it.used != 10 || *it.lastID != 20 {
		t.Fatalf("%+v", it)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if it, _ := b.get(t.Context(), "s"); it.used != 0 || *it.lastID != 4 {
		t.Errorf("used %d, lastID %d", it.used, *it.lastID)
	}
}

func TestGiveBackOfAllMakesASequenceAsNew(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key, StartWith(5))
		a := another(t, b, 10)
		if err := a.Warm(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		d, err := another(t, b, 10).Describe(t.Context(), key)
		if err != nil || d.Called && d.LastID != 4 || d.Next != 5 {
			t.Errorf("%+v, %v", d, err)
		}
		wantIDs(t, takeN(t, another(t, b, 10), key, 1), 5, 5)
	})
}

// An Advance to where the counter is already writes nothing, and so stops no
// give-back: those who hold IDs in memory are refreshed first.
func TestAdvanceAfterRefreshHolds(t *testing.T) {
	b := Memory().backend
	a, other := another(t, b, 10, createMissing), another(t, b, 10)
	wantIDs(t, takeN(t, a, "s", 5), 1, 5)
	if err := a.Refresh(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if at, err := a.Advance(t.Context(), "s", 10); err != nil || at != 10 {
		t.Fatal(at, err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, takeN(t, other, "s", 1), 11, 11)
}
