package ddbseq

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A crowd calls a sequence, in virtual time.
type crowd struct {
	t     *testing.T
	s     *Sequence
	calls float64 // due and not made yet
	wg    sync.WaitGroup

	waits   atomic.Int64
	endedAt atomic.Int64 // how many leases there had been when the last wait ended
}

func newCrowd(t *testing.T, s *Sequence) *crowd {
	c := &crowd{t: t, s: s}
	t.Cleanup(c.wg.Wait)
	return c
}

// come has calls come at a steady rate. Those that find memory empty wait, each
// in a goroutine of its own.
func (c *crowd) come(d time.Duration, perSecond float64) {
	const step = time.Millisecond
	for range d / step {
		time.Sleep(step)
		c.calls += perSecond * step.Seconds()
		n := int64(c.calls)
		if n == 0 {
			continue
		}
		c.calls -= float64(n)
		for range n - c.s.take(n, func(int64, int64, int64) {}) {
			c.waits.Add(1)
			c.wg.Go(func() {
				if _, err := c.s.Next(c.t.Context()); err != nil {
					c.t.Error(err)
				}
				c.endedAt.Store(c.s.Stats().Leases)
			})
		}
	}
}

// recorded returns a sequence of an Allocator of its own, on a store that takes
// 5 ms for a call, and a function that returns the sizes of its leases so far.
func recorded(t *testing.T, opts ...func(*Options)) (*Sequence, func() []int64) {
	t.Helper()
	store, _ := withFaults(Memory(), slow(5*time.Millisecond))
	log := &leaseLog{backend: store.backend}
	a := newTest(t, &Store{backend: log}, append([]func(*Options){createMissing}, opts...)...)
	return sequenceOf(t, a, "s"), func() []int64 {
		log.mu.Lock()
		defer log.mu.Unlock()
		return slices.Clone(log.sizes)
	}
}

type leaseLog struct {
	backend
	mu    sync.Mutex
	sizes []int64
}

func (l *leaseLog) apply(ctx context.Context, ch *change) (*item, error) {
	it, err := l.backend.apply(ctx, ch)
	if err == nil && ch.n > 0 && ch.holds == "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sizes = append(l.sizes, ch.n)
	}
	return it, err
}

// takeNow takes n IDs that must be in memory, at once.
func takeNow(t *testing.T, s *Sequence, n int64) {
	t.Helper()
	if got := s.take(n, func(int64, int64, int64) {}); got != n {
		t.Fatalf("memory held %d of %d IDs", got, n)
	}
}

func TestWaitsAfterAStepOfTwentyTimesEndWithinThreeLeases(t *testing.T) {
	for _, runway := range []time.Duration{20 * time.Millisecond, time.Second, time.Minute} {
		for _, rate := range []float64{1, 50, 1000} {
			t.Run(fmt.Sprint(runway, " ", rate), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, _ := recorded(t, func(o *Options) { o.Runway = runway })
					c := newCrowd(t, s)
					c.come(2*time.Minute, rate)
					c.waits.Store(0)
					before := s.Stats().Leases
					for i := range 10 { // within a second
						c.come(100*time.Millisecond, rate*float64(2+2*i))
					}
					c.come(10*time.Second, 20*rate)
					n := c.waits.Load()
					if runway == time.Minute && n > 0 {
						t.Errorf("%d calls waited", n)
					}
					if n > 0 && c.endedAt.Load()-before > 3 {
						t.Errorf("%d calls waited, until %d leases after the step", n, c.endedAt.Load()-before)
					}
				})
			})
		}
	}
}

func TestAColdStartUnderLoadEndsItsWaitsWithinThreeLeases(t *testing.T) {
	for _, rate := range []float64{100, 5000, 50_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sizes := recorded(t)
				c := newCrowd(t, s)
				c.come(5*time.Second, rate)
				if c.endedAt.Load() > 3 {
					t.Errorf("the last wait ended after %d leases: %v", c.endedAt.Load(), sizes())
				}
				if held := float64(s.Stats().Remaining) / rate; held < 60 {
					t.Errorf("after 5 s memory holds %.1f s: leases %v", held, sizes())
				}
			})
		})
	}
}

func TestBlocksFollowTheTrafficBackWithinTwoWindows(t *testing.T) {
	for _, quiet := range []float64{0, 0.5, 250} {
		t.Run(fmt.Sprint(quiet), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := recorded(t)
				c := newCrowd(t, s)
				c.come(3*time.Minute, 5000)
				c.come(2*defaultRateWindow, quiet)
				// Memory lasts for long at this rate: ask for the size of the block
				// that would be leased if it were at its limit now.
				s.mu.Lock()
				defer s.mu.Unlock()
				p := s.plan
				p.observe(s.a.now(), s.issued())
				reserve := p.reserve(p.rate(reserveOver, 0))
				got := p.plan(s.a.now(), reserve, 0).lease
				if want := max(defaultMinBlock*1.25, quiet*60*1.1); float64(got) > want {
					t.Errorf("block at %g/s after 5,000/s: %d, want <= %.0f", quiet, got, want)
				}
			})
		})
	}
}

func TestACrashLoopCostsOneMinBlockATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := Memory()
		for range 100 {
			a := must(New(store, func(o *Options) { o.forfeit = true })) // killed
			if _, err := a.Next(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if last := must(newTest(t, store).Describe(t.Context(), "s")).LastID; last != 100*defaultMinBlock {
			t.Errorf("100 crashes cost %d IDs", last)
		}
	})
}

func TestRunwayZeroLeasesOnlyWhenMemoryIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sizes := recorded(t, func(o *Options) { o.Runway, o.MinBlock, o.MaxBlock = 0, 10, 1000 })
		for range 10 {
			must(s.Next(t.Context()))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		if got := sizes(); len(got) != 1 || s.Stats().Remaining != 0 || s.a.sampler.timer != nil {
			t.Errorf("leases %v, %d IDs left, sampler %v", got, s.Stats().Remaining, s.a.sampler.timer)
		}
		began := time.Now()
		if id := must(s.Next(t.Context())); id != 11 || len(sizes()) != 2 || time.Since(began) != 5*time.Millisecond {
			t.Errorf("ID %d after %v, leases %v", id, time.Since(began), sizes())
		}
	})
}

func TestTenThousandIdleSequencesCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, func(o *Options) { o.forfeit = true })
		for i := range 10_000 {
			must(a.Next(t.Context(), fmt.Sprint(i)))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		count := func() (n int) {
			faults.mu.Lock()
			defer faults.mu.Unlock()
			for _, c := range faults.calls {
				n += c
			}
			return n
		}
		calls, began := count(), a.now()
		if left := ours(); len(left) > 0 { // others than ours come and go
			t.Errorf("%d goroutines:\n%s", len(left), strings.Join(left, "\n\n"))
		}
		a.sampler.mu.Lock()
		if len(a.sampler.active) > 0 || a.sampler.timer != nil {
			t.Errorf("the sampler looks at %d sequences", len(a.sampler.active))
		}
		a.sampler.mu.Unlock()
		time.Sleep(time.Hour)
		if n := count() - calls; n > 0 {
			t.Errorf("%d store calls in %v", n, a.now()-began)
		}
		if n := count(); n > 20_000 {
			t.Errorf("%d store calls for 10,000 first leases", n)
		}
	})
}

// An idle sequence is looked at by nobody until its next ID is taken: by the
// soft limit, and from then on by the sampler.
func TestTheNextIDTakenWakesAnIdleSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := recorded(t)
		look := func() (armed, ticking bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			b := s.tail
			return atomic.LoadInt64(&b.soft) == atomic.LoadInt64(&b.cursor)+1, s.ticking
		}
		for i := range 40 {
			must(s.Next(t.Context()))
			if _, ticking := look(); !ticking && i > 0 {
				t.Fatalf("ID %d woke nobody", i)
			}
			time.Sleep(time.Minute)
			if armed, ticking := look(); !armed || ticking {
				t.Fatalf("a minute after ID %d: armed %t, ticking %t", i, armed, ticking)
			}
		}
	})
}

// A sequence must be in the sampler's list once, however often it fell idle and
// was woken between two beats.
func TestTheSamplerListsASequenceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A lease takes so long that the sequence counts as idle when it arrives,
		// and the next ID is taken before the next beat.
		store, _ := withFaults(Memory(), slow(600*time.Millisecond))
		a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 10, 10 })
		s := sequenceOf(t, a, "s")
		if err := a.Warm(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			must(s.Next(t.Context()))
			time.Sleep(time.Second * 7 / 10)
			a.sampler.mu.Lock()
			n := len(a.sampler.active)
			a.sampler.mu.Unlock()
			if n > 1 {
				t.Fatalf("it is listed %d times", n)
			}
		}
	})
}

func TestSequencesBelowTheirThresholdAreRefilledEmptiestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sequences, parallel = 40, 2
		type start struct {
			at  time.Duration
			key string
		}
		var mu sync.Mutex
		var starts []start
		var a *Allocator
		store, faults := withFaults(Memory(), nil)
		var now, most atomic.Int64
		faults.backend = &gauge{backend: faults.backend, now: &now, most: &most} // takes 10 ms
		a = newTest(t, store, createMissing, func(o *Options) {
			o.MaxParallel, o.AttemptTimeout, o.forfeit = parallel, time.Minute, true
		})
		names := make([]string, sequences)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		if err := a.Warm(t.Context(), names...); err != nil {
			t.Fatal(err)
		}
		faults.set(func(op, key string, _ int) fault {
			if op != "UpdateItem" {
				return fault{}
			}
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, start{a.now(), key})
			if key[0] == 'b' {
				return fault{delay: 10 * time.Second}
			}
			return fault{}
		})
		var busy sync.WaitGroup
		for i := range parallel { // no place is left for 10 s
			busy.Go(func() { must(a.Next(t.Context(), fmt.Sprint("busy", i))) })
		}
		time.Sleep(time.Second)
		for i, name := range names { // the fullest first
			takeNow(t, sequenceOf(t, a, name), int64(51+i))
		}
		most.Store(0)
		time.Sleep(time.Second)
		last := sequenceOf(t, a, "empty")
		busy.Go(func() { must(last.Next(t.Context())) }) // and somebody who waits
		busy.Wait()
		time.Sleep(10 * time.Second)

		mu.Lock()
		defer mu.Unlock()
		if most.Load() != parallel {
			t.Errorf("%d leases at once, want %d", most.Load(), parallel)
		}
		starts = starts[parallel:]
		if len(starts) != sequences+1 {
			t.Fatalf("%d leases: %v", len(starts), starts)
		}
		if at := slices.IndexFunc(starts, func(s start) bool { return s.key == "empty" }); at >= parallel {
			// (Its read took the place of one lease.)
			t.Errorf("the caller who waited came %dth", at+1)
		}
		// parallel of them start at once, in either order.
		rank := 0
		for _, s := range starts {
			if s.key == "empty" {
				continue
			}
			want := fmt.Sprint(sequences - 1 - rank)
			near := slices.ContainsFunc(starts, func(o start) bool {
				return o.key == want && o.at-s.at < 10*time.Millisecond && s.at-o.at < 10*time.Millisecond
			})
			if s.key != want && !near {
				t.Errorf("%s came %dth, at %v", s.key, rank+1, s.at)
			}
			rank++
		}
	})
}

// CASES 122: the number at which a refill is due is stepped over.
func TestCase122AnyStepOverTheThresholdStartsARefill(t *testing.T) {
	calls := map[string]func(t *testing.T, s *Sequence){
		"Fill": func(t *testing.T, s *Sequence) {
			if err := s.Fill(t.Context(), make([]int64, 7)); err != nil {
				t.Error(err)
			}
		},
		"Reserve": func(t *testing.T, s *Sequence) { must(s.Reserve(t.Context(), 7)) },
		"Take":    func(t *testing.T, s *Sequence) { takeNow(t, s, 7) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sizes := recorded(t, func(o *Options) { o.MinBlock, o.MaxBlock = 100, 100 })
				if err := s.a.Warm(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range 70 {
					call(t, s)
					time.Sleep(10 * time.Millisecond)
				}
				if d := time.Since(began); d != 700*time.Millisecond || s.Stats().Waited > 0 {
					t.Errorf("calls waited: %d of them, %v", s.Stats().Waited, d)
				}
				if n := len(sizes()); n < 5 || n > 8 {
					t.Errorf("leases %v for 490 IDs", sizes())
				}
			})
		})
	}
}

// Reserve leaves the ends of blocks behind that are too short for it. If the
// limit lies in one of them, who steps over it must look at the stock all the same.
func TestReserveWakesAnIdleSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sizes := recorded(t)
		if err := s.a.Warm(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			began := time.Now()
			must(s.Reserve(t.Context(), 7))
			if d := time.Since(began); d > 0 {
				t.Fatalf("call %d waited for %v: %d IDs in memory, leases %v", i, d, s.Stats().Remaining, sizes())
			}
			time.Sleep(3 * time.Second)
		}
	})
}

// CASES 79 and 117: a busy sequence costs one write in LeaseEvery, whatever its
// rate, a quiet one gets no more than MinBlock, and a step is met by 3 leases.
func TestCases79And117WritesFollowTimeAndNotTheRate(t *testing.T) {
	for _, rate := range []float64{10_000, 50_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sizes := recorded(t)
				for range 30 { // one call a minute
					must(s.Next(t.Context()))
					time.Sleep(time.Minute)
				}
				if got := sizes(); len(got) != 1 || got[0] > defaultMinBlock {
					t.Errorf("leases for one ID a minute: %v", got)
				}
				c := newCrowd(t, s)
				c.come(5*time.Second, rate)
				if n := c.endedAt.Load() - 1; n > 3 {
					t.Errorf("waits ended %d leases after the step: %v", n, sizes())
				}
				c.come(55*time.Second, rate)
				settled, waits := len(sizes()), c.waits.Load()
				c.come(5*time.Minute, rate)
				if n := len(sizes()) - settled; n > 6 || c.waits.Load() > waits {
					t.Errorf("%d leases in 5 minutes at %g/s, %d calls waited: %v", n, rate, c.waits.Load()-waits, sizes())
				}
			})
		})
	}
}

// CASES 119: many short sessions share what is in memory.
func TestCase119HandlesShareOneBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, opt := range map[string]func(*Options){"default": func(*Options) {}, "fixed": fixed(100)} {
			s, sizes := recorded(t, opt)
			var ids []int64
			for range 1000 {
				ids = append(ids, must(sequenceOf(t, s.a, "s").Next(t.Context())))
			}
			allFromTo(t, 1, 1000, ids)
			if st := s.Stats(); name == "fixed" && st.Leased > 1100 || st.Leases > 10 {
				t.Errorf("%s: 1,000 handles leased %v", name, sizes())
			}
		}
	})
}

// CASES 120: a default that changes belongs into CHANGELOG.md.
func TestCase120Defaults(t *testing.T) {
	got := defaultOptions(Memory())
	got.rand = nil
	want := Options{
		Sizing: Sizing{
			Runway: time.Minute, LeaseEvery: time.Minute, RateWindow: time.Minute,
			MinBlock: 100, MaxBlock: 100_000_000,
		},
		CreateMissing: true, AttemptTimeout: 3 * time.Second, MaxParallel: 32,
		CloseTimeout: 5 * time.Second, ExhaustionWarning: 90 * 24 * time.Hour, errorHold: time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("of Memory: %+v, want %+v", got, want)
	}
	got = defaultOptions(DynamoDB(testClient("http://127.0.0.1:1"), "t"))
	got.rand, want.CreateMissing = nil, false
	if !reflect.DeepEqual(got, want) {
		t.Errorf("of a table: %+v, want %+v", got, want)
	}
}

func TestMinBlockAndMaxBlockBoundEveryLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sizes := recorded(t, func(o *Options) { o.MinBlock, o.MaxBlock = 300, 1000 })
		c := newCrowd(t, s)
		most := int64(0)
		for _, rate := range []float64{0.1, 20, 5000, 0.5, 20_000} {
			for range 30 {
				c.come(time.Second, rate)
				most = max(most, s.Stats().Remaining)
			}
		}
		got := sizes()
		if slices.Min(got) != 300 || slices.Max(got) != 1000 || most > 2000 {
			t.Errorf("up to %d IDs in memory; leases %v", most, got)
		}
	})
}

func TestTheRunwayStoredInTheTableIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := recorded(t)
		c := newCrowd(t, s)
		held := func() time.Duration {
			least := s.Stats().Remaining
			for range 5 * 60 {
				c.come(time.Second, 100)
				least = min(least, s.Stats().Remaining)
			}
			return time.Duration(least) * time.Second / 100
		}
		c.come(3*time.Minute, 100)
		c.waits.Store(0)
		if got := held(); got < 59*time.Second || got > 70*time.Second {
			t.Errorf("holds %v by default", got)
		}
		for _, runway := range []time.Duration{10 * time.Minute, 5 * time.Second} {
			if err := s.a.Alter(t.Context(), "s", Tune(func(t *Tuning) { t.Runway = &runway })); err != nil {
				t.Fatal(err)
			}
			c.come(20*time.Minute, 100) // the next lease learns of it
			if got := held(); got < runway-time.Second || got > runway*9/8+2*time.Second {
				t.Errorf("holds %v, the table says %v", got, runway)
			}
		}
		if n := c.waits.Load(); n > 0 {
			t.Errorf("%d calls waited", n)
		}
	})
}

func TestACorrectionOfSizingDoesNotWaitForAnEmptyMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sizes := recorded(t)
		c := newCrowd(t, s)
		c.come(5*time.Minute, 1000)
		n := int64(7)
		if err := s.a.Alter(t.Context(), "s", Tune(func(t *Tuning) { t.MinBlock, t.MaxBlock = &n, &n })); err != nil {
			t.Fatal(err)
		}
		before := len(sizes())
		c.come(10*time.Second, 1000)
		time.Sleep(time.Hour)
		takeNow(t, s, s.Stats().Remaining-1)
		time.Sleep(time.Second)
		must(s.Next(t.Context()))
		time.Sleep(time.Second)
		if got := sizes()[before:]; len(got) < 2 || slices.Max(got[1:]) != n {
			t.Errorf("leases after the change: %v", got)
		}
	})
}
