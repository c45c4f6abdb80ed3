package ddbseq

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"
)

func defaultSizing() sizing {
	return sizing{
		runway: defaultRunway, leaseEvery: defaultLeaseEvery, rateWindow: defaultRateWindow,
		minBlock: defaultMinBlock, maxBlock: defaultMaxBlock,
	}
}

// A simProcess is a planner in an Allocator's place, in steps of a millisecond:
// calls come evenly, each lease is granted after 5 ms, and the planner is
// asked only when an Allocator would ask it.
type simProcess struct {
	p       planner
	now     time.Duration
	stock   int64
	waiting int64
	issued  int64
	calls   float64

	trigger  int64
	tickAt   time.Duration // 0 = none
	inFlight int64
	doneAt   time.Duration

	leases   []int64 // granted, in order
	waits    int
	waitEnds int // leases granted when the last waiter was served
	plans    int
}

const (
	simStep    = time.Millisecond
	simLatency = 5 * time.Millisecond
)

// start warms a new simProcess up.
func start(cfg sizing) *simProcess {
	s := &simProcess{p: newPlanner(cfg)}
	s.look()
	s.run(time.Second, 0)
	return s
}

func (s *simProcess) look() {
	s.plans++
	s.p.observe(s.now, s.issued)
	d := s.p.plan(s.now, s.stock, s.waiting)
	s.trigger, s.tickAt = d.trigger, 0
	if d.tick > 0 {
		s.tickAt = s.now + d.tick
	}
	if d.lease > 0 && s.inFlight == 0 {
		s.inFlight, s.doneAt = d.lease, s.now+simLatency
	}
}

// take serves waiting calls from memory.
func (s *simProcess) take() {
	n := min(s.waiting, s.stock)
	s.stock -= n
	s.waiting -= n
	s.issued += n
}

// run lets calls come at the rate for a while.
func (s *simProcess) run(d time.Duration, perSecond float64) {
	for end := s.now + d; s.now < end; {
		s.now += simStep
		if s.inFlight > 0 && s.now >= s.doneAt {
			s.leases = append(s.leases, s.inFlight)
			s.stock += s.inFlight
			s.inFlight = 0
			if s.take(); s.waiting == 0 && s.waits > 0 && s.waitEnds == 0 {
				s.waitEnds = len(s.leases)
			}
			s.p.observe(s.now, s.issued)
			s.p.granted(s.now, simLatency)
			s.look()
		}
		if s.tickAt > 0 && s.now >= s.tickAt {
			s.look()
		}
		s.calls += perSecond * simStep.Seconds()
		n := int64(s.calls)
		s.calls -= float64(n)
		s.waiting += n
		s.take()
		if s.waiting > 0 {
			s.waits++
			s.waitEnds = 0
		}
		if s.inFlight == 0 && n > 0 && (s.stock <= s.trigger || s.waiting > 0) {
			s.look()
		}
	}
}

func (s *simProcess) leased() (n int64) {
	for _, l := range s.leases {
		n += l
	}
	return n
}

func TestPlanHoldsRunwayAtAnyRate(t *testing.T) {
	for _, rate := range []float64{0.1, 1, 10, 300, 5000, 400_000} {
		s := start(defaultSizing())
		s.run(3*time.Minute, rate)
		least, sum, n := int64(math.MaxInt64), 0.0, 0
		writes := len(s.leases)
		for range 300 {
			s.run(time.Second, rate)
			least = min(least, s.stock)
			sum += float64(s.stock)
			n++
		}
		if got := float64(least) / rate; got < 59 {
			t.Errorf("%g/s: %d IDs last %.1f s", rate, least, got)
		}
		if got := sum / float64(n); got > max(rate*95, 1.5*defaultMinBlock) {
			t.Errorf("%g/s: holds %.0f IDs, %.0f s, on average", rate, got, got/rate)
		}
		if got := len(s.leases) - writes; got > 6 {
			t.Errorf("%g/s: %d writes in 5 minutes", rate, got)
		}
		if rate <= 10_000 && s.waits > 0 {
			t.Errorf("%g/s: callers waited in %d ms", rate, s.waits)
		}
	}
}

func TestPlanStepOfTwentyTimesEndsWaitsWithinThreeLeases(t *testing.T) {
	for _, runway := range []time.Duration{20 * time.Millisecond, time.Second, time.Minute} {
		for _, rate := range []float64{1, 50, 2000, 20_000} {
			cfg := defaultSizing()
			cfg.runway = runway
			s := start(cfg)
			s.run(2*time.Minute, rate)
			s.waits, s.waitEnds = 0, 0
			before := len(s.leases)
			s.run(10*time.Second, 20*rate)
			if runway == time.Minute && s.waits > 0 {
				t.Errorf("runway %v, %g/s: callers waited", runway, rate)
			}
			if s.waits > 0 && (s.waitEnds == 0 || s.waitEnds-before > 3) {
				t.Errorf("runway %v, %g/s: waits ended after %d leases", runway, rate, s.waitEnds-before)
			}
		}
	}
}

func TestPlanColdStartReachesBurnInFewLeases(t *testing.T) {
	for _, rate := range []float64{100, 5000, 100_000} {
		s := start(defaultSizing())
		s.run(5*time.Second, rate)
		if len(s.leases) > 6 {
			t.Errorf("%g/s: leases %v", rate, s.leases)
		}
		if got := float64(s.stock) / rate; got < 60 {
			t.Errorf("%g/s: %d IDs left after 5 s: %.1f s", rate, s.stock, got)
		}
		if s.waits > 0 && s.waitEnds > 3 {
			t.Errorf("%g/s: waits ended after %d leases", rate, s.waitEnds)
		}
	}
}

func TestPlanBlockFollowsTrafficBackWithinTwoWindows(t *testing.T) {
	for _, quiet := range []float64{0, 0.5, 250} {
		s := start(defaultSizing())
		s.run(3*time.Minute, 5000)
		s.run(2*defaultRateWindow, quiet)
		p := s.p
		p.observe(s.now, s.issued)
		reserve := p.plan(s.now, math.MaxInt64/2, 1).trigger
		got := p.plan(s.now, reserve, 0).lease
		if want := max(defaultMinBlock, quiet*60*1.1); float64(got) > want {
			t.Errorf("block at %g/s after 5,000/s: %d, want <= %.0f", quiet, got, want)
		}
	}
}

func TestPlanCrashLoopCostsOneMinBlockATime(t *testing.T) {
	for calls := range 8 {
		var leased int64
		for range 100 {
			s := start(defaultSizing())
			s.run(time.Duration(calls)*simStep, 1000)
			s.run(time.Second, 0)
			leased += s.leased()
		}
		if leased != 100*defaultMinBlock {
			t.Errorf("100 processes of %d calls leased %d IDs", calls, leased)
		}
	}
}

// A sequence that takes a few IDs now and then must not be given what a busy
// one needs, and wakes nobody while nothing is taken.
func TestPlanQuietSequenceStaysSmallAndIdle(t *testing.T) {
	s := start(defaultSizing())
	for range 200 {
		s.run(90*time.Second, 0)
		plans := s.plans
		s.run(3*simStep, 1000)
		s.run(10*time.Second, 0)
		if s.plans-plans > 4 {
			t.Fatalf("%d plans for 3 calls", s.plans-plans)
		}
	}
	if slices.Max(s.leases) > defaultMinBlock || s.stock > 150 {
		t.Errorf("stock %d, leases %v", s.stock, s.leases)
	}
	if s.tickAt != 0 || s.trigger != s.stock-1 {
		t.Errorf("idle with tick at %v, trigger %d of %d", s.tickAt, s.trigger, s.stock)
	}
}

func TestPlanFixedBlocks(t *testing.T) {
	for _, tt := range []struct {
		name     string
		runway   time.Duration
		block    int64
		rate     float64
		waits    bool
		maxStock int64
	}{
		{"NOCACHE", 0, 1, 150, true, 1},
		{"CACHE 20", 0, 20, 1000, true, 20},
		{"one block ahead", time.Minute, 100, 5000, false, 200},
		{"one block ahead of a trickle", time.Minute, 100, 0.5, false, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := defaultSizing()
			cfg.runway, cfg.minBlock, cfg.maxBlock = tt.runway, tt.block, tt.block
			s := start(cfg)
			var maxStock int64
			for range 30_000 {
				s.run(simStep, tt.rate)
				maxStock = max(maxStock, s.stock)
			}
			if slices.Min(s.leases) != tt.block || slices.Max(s.leases) != tt.block {
				t.Errorf("leases from %d to %d", slices.Min(s.leases), slices.Max(s.leases))
			}
			if maxStock > tt.maxStock || (s.waits > 0) != tt.waits {
				t.Errorf("held up to %d, %d ms with waits", maxStock, s.waits)
			}
			if used := s.issued/tt.block + 2; int64(len(s.leases)) > used {
				t.Errorf("%d leases for %d IDs", len(s.leases), s.issued)
			}
		})
	}
}

func TestPlanRunwayZeroLeasesOnlyWhenEmpty(t *testing.T) {
	cfg := defaultSizing()
	cfg.runway = 0
	p := newPlanner(cfg)
	if d := p.plan(0, 0, 0); d.lease != 0 {
		t.Fatalf("for nobody it leases %d", d.lease)
	}
	if d := p.plan(0, 0, 1); d.lease != 100 {
		t.Fatalf("for the first caller it leases %d", d.lease)
	}
	p.granted(0, simLatency)
	for _, tt := range []struct{ stock, demand, lease int64 }{{100, 0, 0}, {1, 0, 0}, {0, 0, 0}, {0, 1, 100}} {
		d := p.plan(time.Second, tt.stock, tt.demand)
		if d.lease != tt.lease || d.trigger != -1 || d.tick != 0 {
			t.Errorf("stock %d, demand %d: %+v", tt.stock, tt.demand, d)
		}
	}
	p.observe(20*time.Second, 200)
	p.granted(20*time.Second, simLatency)
	p.observe(30*time.Second, 300)
	if d := p.plan(30*time.Second, 0, 1); d.lease < 600 || d.lease > 620 {
		t.Errorf("100 IDs lasted 10 s, and a minute's worth is %d", d.lease)
	}
}

func TestPlanFirstBlock(t *testing.T) {
	cfg := defaultSizing()
	cfg.firstBlock = 5000
	p := newPlanner(cfg)
	if d := p.plan(0, 0, 0); d.lease != 5000 {
		t.Errorf("first lease %d", d.lease)
	}
	p.granted(0, simLatency)
	if d := p.plan(time.Hour, 0, 1); d.lease != defaultMinBlock {
		t.Errorf("later lease %d", d.lease)
	}
}

func TestPlanServesAllWaiters(t *testing.T) {
	p := newPlanner(defaultSizing())
	for _, demand := range []int64{1, 70, 1000, 1 << 40, math.MaxInt64} {
		if got, want := p.plan(0, 0, demand).lease, min(max(demand, defaultMinBlock), defaultMaxBlock); got < want {
			t.Errorf("%d waiters: lease %d", demand, got)
		}
	}
}

func TestPlanThrottledLeasesLessOften(t *testing.T) {
	const rate = 1000
	s := start(defaultSizing())
	s.run(5*time.Minute, rate)
	calm := s.leases[len(s.leases)-1]
	for range 10 {
		s.p.throttled(s.now)
	}
	if got := s.p.stretched(); got != maxStretch {
		t.Errorf("stretched %g times", got)
	}
	s.run(3*time.Minute, rate)
	if got := s.leases[len(s.leases)-1]; got < 10*calm {
		t.Errorf("lease %d when throttled, %d before", got, calm)
	}
	s.p.now += 4 * stretchHalf
	if got := s.p.stretched(); got != 1 {
		t.Errorf("stretched %g times after %v", got, 4*stretchHalf)
	}
}

func TestPlanSurvivesClocksAndSuspends(t *testing.T) {
	s := start(defaultSizing())
	s.run(3*time.Minute, 100)
	for _, tt := range []struct {
		name   string
		passed time.Duration
		taken  int64
		most   int64 // lease
	}{
		{"no time", 0, 1000, 30_000},
		{"an hour back", -time.Hour, 1000, 30_000},
		{"an hour suspended", time.Hour, 1000, 7000},
		{"a century", 100 * 365 * 24 * time.Hour, 0, 7000},
	} {
		p := s.p
		p.observe(s.now+tt.passed, s.issued+tt.taken)
		d := p.plan(s.now+tt.passed, 0, 1)
		if d.lease < defaultMinBlock || d.lease > tt.most || d.left != 0 {
			t.Errorf("%s: %+v", tt.name, d)
		}
		if p.observe(s.now, 0); p.issued != s.issued+tt.taken {
			t.Errorf("%s: the count ran back to %d", tt.name, p.issued)
		}
	}
}

func TestObserveSpreadsOverTheTimePassed(t *testing.T) {
	for _, tt := range []struct {
		gap  time.Duration
		want float64 // rate over the window, and over half of it
		half float64
	}{
		{time.Second, 10, 20},
		{29 * time.Second, 10, 20},
		{30*time.Second - simStep, 10, 20},
		{time.Minute, 10, 10},
		{10 * time.Minute, 1, 1},
		{time.Hour, 600.0 / 3600, 600.0 / 3600},
	} {
		p := newPlanner(defaultSizing())
		p.observe(time.Second, 1)
		p.observe(2*time.Hour-simStep, 1) // long mature, and quiet
		p.observe(2*time.Hour-simStep+tt.gap, 601)
		if got := p.rate(rateSlots, 0); math.Abs(got-tt.want) > 1e-3 {
			t.Errorf("%v: %g/s over the window, want %g", tt.gap, got, tt.want)
		}
		if got := p.rate(reserveOver, 0); math.Abs(got-tt.half) > 1e-3 {
			t.Errorf("%v: %g/s over half of it, want %g", tt.gap, got, tt.half)
		}
	}
}

// A grant that is told of in a new slot must not bring back what that slot
// held one window ago.
func TestObserveForgetsAfterAWindow(t *testing.T) {
	p := newPlanner(defaultSizing())
	p.observe(time.Second, 1000)
	p.granted(61*time.Second, simLatency)
	p.observe(61*time.Second, 1060)
	if got := p.rate(rateSlots, 0); got > 2 {
		t.Errorf("%g/s after a window with 60 IDs", got)
	}
}

func TestSetSizingKeepsTheReserve(t *testing.T) {
	s := start(defaultSizing())
	s.run(3*time.Minute, 1000)
	cfg := defaultSizing()
	cfg.runway, cfg.rateWindow = 2*time.Minute, 10*time.Minute
	s.p.setSizing(cfg)
	if d := s.p.plan(s.now, 0, 0); d.trigger < 115_000 || d.trigger > 125_000 {
		t.Errorf("trigger %d, want two minutes at 1,000/s", d.trigger)
	}
}

func TestJitterOnlyAdds(t *testing.T) {
	trigger := func(jitter float64) int64 {
		cfg := defaultSizing()
		cfg.jitter = jitter
		s := start(cfg)
		s.run(3*time.Minute, 1000)
		return s.trigger
	}
	none, most := trigger(0), trigger(0.999)
	if none < 60_000 || most < none*105/100 || most > none*107/100 {
		t.Errorf("trigger %d without jitter, %d with", none, most)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), -1, 1} {
		if trigger(bad) != none {
			t.Errorf("jitter %g is not ignored", bad)
		}
	}
}

// What granted makes of the samples must cover a p99 of the latency that the
// replay assumes, and must not grow with an outage.
func TestLeaseTimeCoversP99(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := newPlanner(defaultSizing())
	over, n := 0, 10_000
	for i := range n {
		took := time.Duration(5e6 * math.Exp(0.77*rng.NormFloat64()))
		if i > 0 && took.Seconds() > p.leaseTime() {
			over++
		}
		p.granted(0, took)
	}
	if over > n/50 {
		t.Errorf("%d of %d samples were above the estimate", over, n)
	}
	p.granted(0, time.Hour)
	if got := p.leaseTime(); got > 3 {
		t.Errorf("one outage makes a lease time of %.1f s", got)
	}
}

func TestPlannerIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(planner{}); n > 512 {
		t.Errorf("a planner is %d bytes", n)
	}
}

func BenchmarkPlan(b *testing.B) {
	s := start(defaultSizing())
	s.run(2*time.Minute, 1000)
	for b.Loop() {
		s.now += time.Second
		s.issued += 1000
		s.p.observe(s.now, s.issued)
		s.p.plan(s.now, 100_000, 0)
	}
}
