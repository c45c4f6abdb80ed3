package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// seeded makes an Allocator's jitter the same in each run of a test.
func seeded(seed uint64) func(*Options) {
	r := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	return func(o *Options) {
		o.rand = func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return r.Float64()
		}
	}
}

// consume takes rate IDs every second for d, and stops when memory is empty, but
// for a second at the least. It returns how many it took.
func consume(s *Sequence, rate int64, d time.Duration) (taken int64) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		got := s.take(rate, func(_, _, _ int64) {})
		time.Sleep(time.Second)
		if taken += got; got < rate {
			break
		}
	}
	return taken
}

func TestThrottledLeasesAskForMoreAndComeLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, seeded(1))
		s := sequenceOf(t, a, "s")
		ok(t, a.Warm(t.Context(), "s"))
		const rate = 10
		// interval returns how long a block lasts now.
		interval := func(d time.Duration) time.Duration {
			before := s.Stats()
			if want := rate * int64(d/time.Second); consume(s, rate, d) != want {
				t.Fatal("memory ran empty")
			}
			leases := s.Stats().Sub(before).Leases
			if leases == 0 {
				return d
			}
			return d / time.Duration(leases)
		}
		interval(10 * time.Minute)
		if d := interval(time.Hour); d < 50*time.Second || d > 80*time.Second {
			t.Errorf("before: a lease every %v, want about every minute", d)
		}

		before := s.Stats()
		f.set(func(op, _ string, call int) fault { // each lease is throttled once
			if op == "UpdateItem" && call%2 == 0 {
				return fault{err: throttled()}
			}
			return fault{}
		})
		for s.Stats().Sub(before).Throttled.Total() < 8 {
			consume(s, rate, time.Minute)
		}
		last := s.Stats()
		consume(s, rate, 3*time.Hour)
		delta := s.Stats().Sub(last)
		block := time.Duration(delta.Leased/delta.Leases) * time.Second / rate
		if most := maxStretch * defaultLeaseEvery; block < most/2 || block > 2*most*(jitterPart+1)/jitterPart {
			t.Errorf("while throttled: blocks of %v, want more, up to the bound of %v", block, most)
		}
		// One may have been throttled before this time began, and one at its end.
		if n := delta.Attempts - 2*delta.Leases; n < -1 || n > 1 {
			t.Errorf("%d attempts for %d leases, each throttled once", delta.Attempts, delta.Leases)
		}

		// It halves in an hour: 4 times as long after two hours, 2 times after three.
		f.set(nil)
		interval(2 * time.Hour)
		if d := interval(time.Hour); d < 100*time.Second || d > 6*time.Minute {
			t.Errorf("in the third hour: a lease every %v, want 2 to 4 times as long as without a throttle", d)
		}
		interval(5 * time.Hour)
		if d := interval(time.Hour); d < 50*time.Second || d > 80*time.Second {
			t.Errorf("hours later: a lease every %v, want about every minute again", d)
		}
	})
}

func TestTheNextLeaseAfterAThrottleIsLarger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := func(throttles int) int64 {
			store, f := withFaults(Memory(), nil)
			s := sequenceOf(t, newTest(t, store, createMissing, seeded(1)), "s")
			must(s.Next(t.Context()))
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
				consume(s, 100, time.Until(end)) // the first blocks are too small
			}
			f.set(func(string, string, int) fault {
				if throttles--; throttles >= 0 {
					return fault{err: throttled()}
				}
				return fault{}
			})
			before := s.Stats()
			for s.Stats().Leases == before.Leases {
				consume(s, 100, time.Second)
			}
			return s.Stats().Leased - before.Leased
		}
		plain, after, more := next(0), next(1), next(6)
		if after < plain*3/2 {
			t.Errorf("leased %d IDs after a throttle, and %d without one", after, plain)
		}
		// The spread after a failure makes up to 2 of it, 5 doublings too many 10.
		// A herd at a start would stretch all of its members to the bound.
		if more > 3*after {
			t.Errorf("leased %d IDs after 6 throttles of one lease, and %d after 1", more, after)
		}
	})
}

func TestDelaysAreFullJitterUpToACap(t *testing.T) {
	for _, random := range []float64{0.01, 0.5, 0.999} {
		t.Run(fmt.Sprint(random), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				store, f := withFaults(Memory(), func(string, string, int) fault {
					at = append(at, time.Now())
					return fault{err: throttled()}
				})
				a := newTest(t, store, createMissing, func(o *Options) { o.rand = func() float64 { return random } })
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if id, err := a.Next(ctx, "s"); err == nil {
					t.Fatal(id)
				}
				f.set(nil)
				if len(at) < 15 {
					t.Fatalf("%d attempts in 20 s", len(at))
				}
				for i := range 14 {
					want := time.Duration(random * float64(min(backoffBase<<i, backoffCap)))
					if d := at[i+1].Sub(at[i]); d != want {
						t.Errorf("after attempt %d: %v, want %v", i+1, d, want)
					}
				}
			})
		})
	}
}

func TestRefillsThatNobodyWaitsForArePatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, seeded(1), func(o *Options) { o.Runway = 15 * time.Minute })
		s := sequenceOf(t, a, "s")
		ok(t, a.Warm(t.Context(), "s"))
		consume(s, 10, 10*time.Minute)
		var at []time.Time
		f.set(func(string, string, int) fault {
			at = append(at, time.Now())
			return fault{err: throttled()}
		})
		consume(s, 10, 10*time.Minute)
		f.set(nil)
		// Up to 10 s, and 5 s in the mean.
		if n := len(at); n < 60 || n > 160 {
			t.Errorf("%d attempts in 10 minutes", n)
		}
		var longest time.Duration
		for i := 1; i < len(at); i++ {
			if at[i-1].Sub(at[0]) > time.Minute { // before that it may find that it is not due after all
				longest = max(longest, at[i].Sub(at[i-1]))
			}
		}
		if longest <= backoffCap || longest > advisoryBackoffCap {
			t.Errorf("the longest pause is %v, want it between %v and %v", longest, backoffCap, advisoryBackoffCap)
		}
	})
}

// Calls that hang until they time out find out that the store is back only then:
// they must not take too long, nor be followed by a whole pause.
func TestRefillsThatHangAreBackSoon(t *testing.T) {
	for _, random := range []float64{0, 0.5, 0.999} {
		t.Run(fmt.Sprint(random), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, f := withFaults(Memory(), nil)
				a := newTest(t, store, createMissing, func(o *Options) {
					o.Runway, o.rand = time.Hour, func() float64 { return random }
				})
				s := sequenceOf(t, a, "s")
				ok(t, a.Warm(t.Context(), "s"))
				consume(s, 10, 10*time.Minute)
				var at []time.Time
				f.set(func(string, string, int) fault {
					at = append(at, time.Now())
					return fault{hang: true}
				})
				consume(s, 10, 10*time.Minute)
				f.set(nil)
				if len(at) < 30 {
					t.Fatalf("%d attempts in 10 minutes", len(at))
				}
				patience := 4 * a.opts.AttemptTimeout
				for i := 25; i < len(at); i++ { // before that it may find that it is not due after all
					want := patience + time.Duration(random*float64(backoffCap))
					if d := at[i].Sub(at[i-1]); d != want {
						t.Errorf("attempt %d came %v after the one before, want %v", i+1, d, want)
					}
				}
			})
		})
	}
}

// A fleet beyond what its item takes is throttled for ever, now and then. Those
// who have time must not come back within milliseconds, several times over; after
// other errors they may.
func TestAThrottledRefillThatHasTimeTakesItAtOnce(t *testing.T) {
	for _, c := range []struct {
		err         error
		first, last time.Duration
	}{
		{throttled(), 5 * time.Second, advisoryBackoffCap},
		{transient(), 0, backoffBase},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, f := withFaults(Memory(), nil)
				a := newTest(t, store, createMissing, func(o *Options) { o.rand = func() float64 { return 0.9 } })
				s := sequenceOf(t, a, "s")
				ok(t, a.Warm(t.Context(), "s"))
				consume(s, 10, 10*time.Minute)
				var at []time.Time
				f.set(func(string, string, int) fault {
					if at = append(at, time.Now()); len(at) > 1 {
						return fault{}
					}
					return fault{err: c.err}
				})
				consume(s, 10, 5*time.Minute)
				f.set(nil)
				if len(at) < 2 {
					t.Fatal("no refill")
				}
				if d := at[1].Sub(at[0]); d < c.first || d > c.last {
					t.Errorf("tried again after %v, want %v to %v", d, c.first, c.last)
				}
			})
		})
	}
}

func TestWhoWaitsGoesBeforeRefillsOfOtherSequences(t *testing.T) {
	// Also when the refill was put into the queue before anybody waited for it.
	for _, waits := range []string{"not there yet", "a3"} {
		t.Run(waits, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, f := withFaults(Memory(), nil)
				a := newTest(t, store, createMissing, seeded(1), func(o *Options) { o.MaxParallel, o.MinBlock, o.MaxBlock = 1, 10, 10 })
				var order []string
				names := []string{"holds the place", "a1", "a2", "a3"}
				for _, name := range names {
					ok(t, a.Warm(t.Context(), name))
				}
				f.set(func(op, key string, _ int) fault {
					if op == "UpdateItem" {
						order = append(order, key)
					}
					return fault{delay: time.Second}
				})
				for _, name := range names {
					for range 9 { // below the threshold, not empty
						must(a.Next(t.Context(), name))
					}
					synctest.Wait()
				}
				_, _ = sequenceOf(t, a, waits).TryNext() // the last one in memory
				must(a.Next(t.Context(), waits))
				synctest.Wait()
				f.set(nil)
				if want := []string{"holds the place", waits}; !slices.Equal(order[:2], want) {
					t.Errorf("leased in the order %q, want %q first", order, want)
				}
			})
		})
	}
}

func TestWhoComesIsNotKeptWaitingForPatience(t *testing.T) {
	longest := func(o *Options) { o.rand = func() float64 { return 0.999 } }
	t.Run("back-off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, f := withFaults(Memory(), nil)
			a := newTest(t, store, createMissing, longest, func(o *Options) { o.Runway = 10 * time.Minute })
			s := sequenceOf(t, a, "s")
			ok(t, a.Warm(t.Context(), "s"))
			consume(s, 10, 10*time.Minute)
			f.set(always(throttled()))
			consume(s, 10, 5*time.Minute) // now it waits 10 s each time
			s.take(1<<40, func(_, _, _ int64) {})
			s.mu.Lock()
			wait := s.due - a.now()
			s.mu.Unlock()
			f.set(nil)
			began := time.Now()
			must(s.Next(t.Context()))
			if d := time.Since(began); d > backoffCap {
				t.Errorf("a caller waited %v, and the next attempt was due in %v", d, wait)
			}
		})
	})
	t.Run("splay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newTest(t, Memory(), longest, func(o *Options) { o.WarmSplay = time.Hour })
			began := time.Now()
			var warm sync.WaitGroup
			warm.Go(func() { ok(t, a.Warm(t.Context(), "s")) })
			time.Sleep(time.Minute)
			must(a.Next(t.Context(), "s"))
			warm.Wait()
			if d := time.Since(began); d != time.Minute {
				t.Errorf("a caller who came after a minute was served after %v", d)
			}
			must(a.Next(t.Context(), "not warmed"))
			if d := time.Since(began); d != time.Minute {
				t.Errorf("a caller of a sequence that was not warmed was served after %v", d-time.Minute)
			}
			ok(t, a.Warm(t.Context(), "nobody waits"))
			if d := time.Since(began); d < time.Hour {
				t.Errorf("warm after %v, want it spread over an hour", d)
			}
		})
	})
}

func TestWarmingTwiceIsNoReasonToHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newTest(t, Memory(), createMissing, func(o *Options) { o.WarmSplay, o.rand = time.Minute, func() float64 { return 0.5 } })
		began := time.Now()
		ok(t, a.Warm(t.Context(), "s", "s"))
		if d := time.Since(began); d < 30*time.Second {
			t.Errorf("warm after %v, want 30 s", d)
		}
	})
}

func TestWarmSpreadsTheFirstLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, splay = 1000, 100 * time.Second
		began := time.Now()
		var windows [10]int
		store, f := withFaults(Memory(), func(op, _ string, _ int) fault {
			if op == "UpdateItem" {
				windows[min(9, int(time.Since(began)*10/splay))]++
			}
			return fault{}
		})
		a := newTest(t, store, createMissing, seeded(1), func(o *Options) { o.WarmSplay, o.forfeit = splay, true })
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		ok(t, a.Warm(t.Context(), names...))
		if d := time.Since(began); d > splay {
			t.Errorf("all were warm after %v", d)
		}
		f.set(nil)
		for _, writes := range windows { // 100 in the mean; 50 is 5 standard deviations away
			if writes < 50 || writes > 150 {
				t.Errorf("the first leases were spread over the tenths of WarmSplay as %v", windows)
				break
			}
		}
	})
}

func TestOneWriteMakesAProcessReadyAndFewBringItToItsRate(t *testing.T) {
	for _, rate := range []int64{100, 1000, 10_000, 100_000} {
		for _, stored := range []bool{false, true} {
			t.Run(fmt.Sprint(rate, stored), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					writes := 0
					store, f := withFaults(Memory(), func(op, _ string, _ int) fault {
						if op == "UpdateItem" {
							writes++
						}
						return fault{delay: 5 * time.Millisecond}
					})
					admin := newTest(t, &Store{backend: f.backend})
					ok(t, admin.Create(t.Context(), "s"))
					most := 6 // doubling would take as many as 17
					if first := rate * 120; stored {
						ok(t, admin.Alter(t.Context(), "s", Tune(func(t *Tuning) { t.FirstBlock = &first })))
						most = 1
					}
					a := newTest(t, store, seeded(1), func(o *Options) { o.forfeit = true })
					s := sequenceOf(t, a, "s")
					must(s.Next(t.Context()))
					if writes != 1 {
						t.Errorf("%d writes for the first ID", writes)
					}
					beat := time.NewTicker(10 * time.Millisecond)
					defer beat.Stop()
					for range 5000 { // 50 s
						if n := s.take(rate/100, func(_, _, _ int64) {}); n < rate/100 {
							ok(t, s.Fill(t.Context(), make([]int64, rate/100-n)))
						}
						<-beat.C
					}
					f.set(nil)
					if writes > most {
						t.Errorf("%d writes in the first 50 s, want at most %d", writes, most)
					}
					if held := time.Duration(s.Stats().Remaining) * time.Second / time.Duration(rate); held < defaultRunway {
						t.Errorf("after 50 s memory holds %v", held)
					}
				})
			})
		}
	}
}

func TestReasonsOfThrottlesAreToldApartAndNeverRequired(t *testing.T) {
	for _, c := range []struct {
		reasons []string
		count   func(Throttled) int64
		advice  string
	}{
		{[]string{"TableWriteKeyRangeThroughputExceeded"}, func(t Throttled) int64 { return t.KeyRange }, "LeaseEvery"},
		{[]string{"TableWriteProvisionedThroughputExceeded"}, func(t Throttled) int64 { return t.Provisioned }, "provisioned capacity"},
		{[]string{"TableWriteMaxOnDemandThroughputExceeded"}, func(t Throttled) int64 { return t.MaxOnDemand }, "maximum on-demand"},
		{[]string{"TableWriteAccountLimitExceeded"}, func(t Throttled) int64 { return t.Account }, "quota"},
		{[]string{"SomethingNew"}, func(t Throttled) int64 { return t.Unsaid }, ""},
		{nil, func(t Throttled) int64 { return t.Unsaid }, ""},
	} {
		t.Run(strings.Join(c.reasons, ","), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, _ := withFaults(Memory(), always(&LeaseError{
					Op: "UpdateItem", Table: "t", Throttled: true, Reasons: c.reasons, kind: ErrThrottled, Err: errBoom,
				}))
				a := newTest(t, store, createMissing, seeded(1))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := a.Next(ctx, "s")
				le, isLease := errors.AsType[*LeaseError](err)
				if !errors.Is(err, ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) || !isLease || !slices.Equal(le.Reasons, c.reasons) {
					t.Errorf("got %v", err)
				}
				if !strings.Contains(err.Error(), c.advice) {
					t.Errorf("no advice on %q: %v", c.advice, err)
				}
				st := a.Stats()
				if n := c.count(st.Throttled); n == 0 || n != st.Throttled.Total() || n != st.Attempts {
					t.Errorf("counted as %+v", st.Throttled)
				}
			})
		})
	}
}

// leaseTimes notes when leases are made, in windows of 5 seconds.
type leaseTimes struct {
	backend
	start time.Time
	limit int // writes a window; 0 = none
	away  bool

	mu      sync.Mutex
	windows []int // attempts
}

const leaseWindow = 5 * time.Second

func (l *leaseTimes) apply(ctx context.Context, ch *change) (*item, error) {
	l.mu.Lock()
	i := int(time.Since(l.start) / leaseWindow)
	for len(l.windows) <= i {
		l.windows = append(l.windows, 0)
	}
	l.windows[i]++
	away, over := l.away, l.limit > 0 && l.windows[i] > l.limit
	l.mu.Unlock()
	switch {
	case away:
		return nil, transient()
	case over:
		return nil, throttled()
	}
	return l.backend.apply(ctx, ch)
}

func (l *leaseTimes) set(limit int, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit, l.away = limit, away
}

// most returns the most attempts in one window between two times.
func (l *leaseTimes) most(from, to time.Duration) (most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, n := range l.windows {
		if at := time.Duration(i) * leaseWindow; at >= from && at < to {
			most = max(most, n)
		}
	}
	return most
}

// fleetOf returns n Allocators on one table, and what has them all take rate
// IDs every second for a while. They are in step: whatever spreads them is ours.
func fleetOf(t *testing.T, n int, rate int64, optFns ...func(*Options)) (*leaseTimes, []*Sequence, func(time.Duration)) {
	t.Helper()
	l := &leaseTimes{backend: Memory().backend, start: time.Now()}
	var seqs []*Sequence
	for i := range n {
		a := newTest(t, &Store{backend: l}, append([]func(*Options){
			createMissing, seeded(uint64(i)), func(o *Options) { o.forfeit = true },
		}, optFns...)...)
		ok(t, a.Warm(t.Context(), "s"))
		seqs = append(seqs, sequenceOf(t, a, "s"))
	}
	return l, seqs, func(d time.Duration) {
		t.Helper()
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
			for i, s := range seqs {
				if s.take(rate, func(_, _, _ int64) {}) < rate {
					t.Fatalf("process %d found memory empty after %v", i, time.Since(l.start))
				}
			}
		}
	}
}

func TestProcessesStartedTogetherDriftApart(t *testing.T) {
	for _, rate := range []int64{1, 10} { // with 1, each lease is one of MinBlock
		t.Run(fmt.Sprint(rate, " a second"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 40
				l, _, run := fleetOf(t, n, rate)
				run(12 * time.Minute)
				since := time.Since(l.start)
				run(5 * time.Minute)
				// In step all of them lease in one window. In the mean it is 2 or 3, and
				// it is up to 13 with other seeds.
				if most := l.most(since, time.Since(l.start)); most > 16 {
					t.Errorf("%d of %d leased in the same 5 s", most, n)
				}
			})
		})
	}
}

func TestAFleetComesBackFromAnOutageWithoutAHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, writes = 120, 12
		l, seqs, run := fleetOf(t, n, 3, func(o *Options) { o.Runway = 4 * time.Minute })
		run(5 * time.Minute)
		l.set(writes*int(leaseWindow.Seconds()), true)
		run(3 * time.Minute)
		l.set(writes*int(leaseWindow.Seconds()), false)
		back := time.Since(l.start)
		failing := func(s *Sequence) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.err != nil
		}
		for slices.ContainsFunc(seqs, failing) {
			run(time.Second)
		}
		refilled := time.Since(l.start)
		if d := refilled - back; d > 2*n/writes*time.Second {
			t.Errorf("all were refilled after %v, twice the ideal is %v", d, 2*n/writes*time.Second)
		}
		run(2 * defaultLeaseEvery)
		// The mean is 10 in 5 s, and with other seeds the most is up to 15; without
		// the spread 37 and more meet.
		if most := l.most(refilled+leaseWindow, time.Since(l.start)); most > 25 {
			t.Errorf("a second herd: %d leases in 5 s", most)
		}
	})
}

func TestAnHourWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, seeded(1), func(o *Options) { o.Runway = 10 * time.Minute })
		s := sequenceOf(t, a, "s")
		ok(t, a.Warm(t.Context(), "s"))
		consume(s, 10, 20*time.Minute)
		began := time.Now()
		f.set(always(transient()))
		before := s.Stats()
		served := consume(s, 10, time.Hour)
		if lasted := time.Since(began); lasted < 10*time.Minute || served != before.Remaining {
			t.Errorf("memory held %d IDs, %d were served, for %v", before.Remaining, served, lasted)
		}

		// From now on callers wait, one more each second.
		var callers sync.WaitGroup
		type answer struct {
			caller int
			id     int64
		}
		var mu sync.Mutex
		var answers []answer
		empty := s.Stats()
		const waiting = 1000
		for i := range waiting {
			callers.Go(func() {
				id, err := s.Next(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, answer{i, id})
			})
			time.Sleep(time.Second)
		}
		attempts := s.Stats().Sub(empty).Attempts
		// Full jitter up to 2 s: one a second in the mean, however many wait.
		if rate := float64(attempts) / waiting; rate < 0.5 || rate > 1.5 {
			t.Errorf("%.2f attempts a second while callers wait", rate)
		}
		time.Sleep(time.Until(began.Add(time.Hour)))

		empty = s.Stats()
		f.set(nil)
		back := time.Now()
		callers.Wait()
		if d := time.Since(back); d > backoffCap {
			t.Errorf("served %v after the store came back", d)
		}
		if n := s.Stats().Sub(empty).Attempts; n > 2 {
			t.Errorf("%d attempts for one refill", n)
		}
		slices.SortFunc(answers, func(a, b answer) int { return a.caller - b.caller })
		for i := 1; i < len(answers); i++ {
			if answers[i].id != answers[i-1].id+1 {
				t.Fatalf("caller %d got %d after %d of the one before", i, answers[i].id, answers[i-1].id)
			}
		}
	})
}

// One client, used by others as well: the SDK's retry quota and the rate limit
// of its adaptive mode belong to the client, and neither may reach us.
func TestTheThrottlesOfOthersOnTheClientDoNotHoldUsUp(t *testing.T) {
	p, store := proxied(t, func(o *dynamodb.Options) {
		o.Retryer = retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
			o.StandardOptions = append(o.StandardOptions, func(o *retry.StandardOptions) { o.MaxBackoff = time.Millisecond })
		})
	})
	client := store.backend.(*dynamo).client.(*dynamodb.Client)
	theirs := func(ctx context.Context) error {
		_, err := client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &store.backend.(*dynamo).name, Key: map[string]types.AttributeValue{"entityType": str("theirs")},
		})
		return err
	}
	a := newTest(t, store, fixed(5), createMissing, patient, func(o *Options) { o.rand = func() float64 { return 0 } })
	next := func(want int64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if id, err := a.Next(ctx, "s"); id != want || err != nil {
			t.Fatal(id, err)
		}
	}

	// Ours do not hold them up: the limiter has not seen a throttle.
	throttles := faultproxy.Rule{Op: "UpdateItem", Key: "s", Count: 50, Action: faultproxy.Throttle("ThrottlingException")}
	rules(t, p, throttles)
	next(1)
	began := time.Now()
	for range 10 {
		ok(t, theirs(t.Context()))
	}
	if d := time.Since(began); d > 5*time.Second { // it would let one pass in 2 s
		t.Errorf("after 50 throttles of ours 10 calls of theirs took %v", d)
	}

	// Nor do theirs hold us up.
	rules(t, p, throttles, faultproxy.Rule{Op: "GetItem", Key: "theirs", Count: 3, Action: faultproxy.Throttle("ThrottlingException")})
	if err := theirs(t.Context()); err == nil {
		t.Fatal("their call was not throttled")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := make(chan error, 1)
	go func() { held <- theirs(ctx) }()
	for i := range int64(20) {
		next(i + 2)
	}
	if n := a.Stats().Throttled.Total(); n != 100 {
		t.Errorf("%d of our attempts were throttled, want 100", n)
	}
	select {
	case err := <-held:
		t.Skip("the limiter did not hold their call, so there is nothing to see: ", err)
	default:
	}
	cancel()
	<-held
}
