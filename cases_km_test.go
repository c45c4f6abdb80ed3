package ddbseq

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCase113AClockThatJumpsMovesTheDayAndNothingElse is bwmarrin/snowflake#20
// and twitter-archive/snowflake#6. Planning goes by the monotonic clock, which
// does not jump; only the day follows the store's, and never goes back.
func TestCase113AClockThatJumpsMovesTheDayAndNothingElse(t *testing.T) {
	run := func(jump func(minute int) time.Duration) (leases int64, rate float64, days map[string]bool) {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			store, clock := withClock(Memory())
			a := newTest(t, store, func(o *Options) { o.rand = func() float64 { return 0.5 } })
			if err := a.Create(ctx, "s", DailyLimit(1_000_000)); err != nil {
				t.Fatal(err)
			}
			s := sequenceOf(t, a, "s")
			days = map[string]bool{}
			latest := ""
			for i := range int64(6 * 60 * 10) {
				if id, err := s.Next(ctx); err != nil || id != i+1 {
					t.Fatal(id, err)
				}
				time.Sleep(100 * time.Millisecond)
				if i%600 == 599 {
					clock.advance(jump(int(i / 600)))
				}
				if d := must(a.Describe(ctx, "s")).Day; d != "" {
					days[d] = true
					if d < latest {
						t.Errorf("day %s came again after %s", d, latest)
					}
					latest = d
				}
			}
			st := s.Stats()
			leases, rate = st.Leases, st.Rate
		})
		return leases, rate, days
	}
	leases, rate, days := run(func(int) time.Duration { return 0 })
	if len(days) != 1 {
		t.Errorf("days %v", days)
	}
	l, r, days := run(func(minute int) time.Duration {
		return []time.Duration{-time.Hour, time.Hour, 24 * time.Hour, -time.Hour, -23 * time.Hour, 0}[minute]
	})
	if l != leases || r < 0.99*rate || r > 1.01*rate || len(days) > 3 {
		t.Errorf("with jumps %d leases at %v/s, without %d at %v/s; days %v", l, r, leases, rate, days)
	}
}

// TestCase125TheThousandAndFirstOfADay is dgraph PR 7568.
func TestCase125TheThousandAndFirstOfADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a := newTest(t, Memory(), fixed(100))
		if err := a.Create(ctx, "s", DailyLimit(1000)); err != nil {
			t.Fatal(err)
		}
		s := sequenceOf(t, a, "s")
		for range 995 {
			must(s.Next(ctx))
		}
		if _, err := s.Reserve(ctx, 10); !errors.Is(err, ErrDailyLimit) {
			t.Errorf("10 of 5: %v", err)
		}
		for range 5 {
			must(s.Next(ctx))
		}
		_, err := s.Next(ctx)
		le, ok := errors.AsType[*DailyLimitError](err)
		if !ok || le.Limit != 1000 || !le.ResetAt.Equal(time.Now().UTC().Truncate(24*time.Hour).Add(24*time.Hour)) {
			t.Errorf("the 1,001st: %v", err)
		}
		if d := must(a.Describe(ctx, "s")); d.Used != 1000 {
			t.Errorf("%d used", d.Used)
		}
	})
}

// TestCase128HardlyUsedIsNotExhausted is check_pgactivity#145.
func TestCase128HardlyUsedIsNotExhausted(t *testing.T) {
	ctx := t.Context()
	a := newTest(t, Memory(), fixed(123))
	if err := a.Create(ctx, "s", StartWith(111110000000000001), MinValue(111110000000000001), MaxValue(111119999999999999)); err != nil {
		t.Fatal(err)
	}
	must(a.Next(ctx, "s"))
	st := sequenceOf(t, a, "s").Stats()
	if share := st.Fleet.Share; share < 1.2e-11 || share > 1.3e-11 || st.Alerts != 0 {
		t.Errorf("share %v, alerts %v", share, st.Alerts.Kinds())
	}
}

// TestCase133LookingNeitherLeasesNorLies is tidb#37848 and others: Describe shows
// what is stored, Stats what this process holds.
func TestCase133LookingNeitherLeasesNorLies(t *testing.T) {
	ctx := t.Context()
	store, faults := withFaults(Memory(), nil)
	a := newTest(t, store, fixed(10), createMissing)
	for range 3 {
		must(a.Next(ctx, "s"))
	}
	faults.set(func(op, _ string, _ int) fault {
		if op == "UpdateItem" {
			t.Error("it wrote")
		}
		return fault{}
	})
	for range 3 {
		if d := must(a.Describe(ctx, "s")); d.LastID != 10 || d.Next != 11 {
			t.Errorf("stored: %+v", d)
		}
		if st := sequenceOf(t, a, "s").Stats(); st.Next != 4 || st.Remaining != 7 || st.Fleet.LastID != 10 {
			t.Errorf("here: %+v", st)
		}
	}
	faults.set(nil)
	if id := must(a.Next(ctx, "s")); id != 4 {
		t.Errorf("then %d was handed out", id)
	}
}

// TestCase136TheDocsSayFirstThatThereAreGaps is dgraph-io/badger#1071. Even blocks
// of one leave a gap where a reply is lost and another process leases before the
// retry: the block is not to be told from one that its process has used.
func TestCase136TheDocsSayFirstThatThereAreGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := Memory()
		store, faults := withFaults(mem, nil)
		one := func(o *Options) { o.MinBlock, o.MaxBlock, o.Runway, o.forfeit = 1, 1, 0, true }
		a, b := newTest(t, store, one, createMissing), newTest(t, mem, one)
		if id := must(a.Next(ctx, "s")); id != 1 {
			t.Fatal(id)
		}
		failed := false
		faults.set(func(op, _ string, _ int) fault {
			if op != "UpdateItem" || failed {
				return fault{}
			}
			failed = true
			return fault{err: lost(), after: true}
		})
		got := make(chan int64)
		go func() { got <- must(a.Next(ctx, "s")) }()
		synctest.Wait() // the write of 2 is done, and its reply is lost
		if id := must(b.Next(ctx, "s")); id != 3 {
			t.Errorf("the other process got %d, want 3", id)
		}
		if id := <-got; id != 4 {
			t.Errorf("after the lost reply %d, want 4 and 2 a gap", id)
		}
	})
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(readme), "```")
	if !strings.Contains(head, "They have gaps") {
		t.Error("README.md does not say before its first command that there are gaps")
	}
}
