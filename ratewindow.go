package ddbseq

import (
	"math"
	"time"
)

// sizing holds the validated options of one sequence that decide when it
// leases and how much.
type sizing struct {
	runway     time.Duration // refill when less than this remains; 0 = only when empty
	leaseEvery time.Duration // one block should last about this long
	rateWindow time.Duration // what a rate is measured over
	minBlock   int64
	maxBlock   int64
	firstBlock int64 // size of the first lease; 0 = minBlock

	// jitter in [0, 1) stretches runway and leaseEvery by up to 1/16, so that
	// processes started together on equal load drift apart instead of
	// writing in the same second for ever. It only ever adds runway.
	jitter float64
}

// Defaults of the options a sizing is made from.
const (
	defaultRunway     = time.Minute
	defaultLeaseEvery = time.Minute
	defaultRateWindow = time.Minute
	defaultMinBlock   = 100
	defaultMaxBlock   = 100_000_000 // a minute of runway up to 1.6 million IDs/s
)

const (
	rateSlots   = 60 // slots in a rateWindow: 1 s each by default
	reserveOver = rateSlots / 2
	burnAtLeast = rateSlots / 12

	// peakWindows is the half-life, in rateWindows, of the peak that the
	// reserve is sized by. On replayed traces 2.5 windows forgot a burst
	// before the next, and 10 held more IDs for little more runway.
	peakWindows = 5

	jitterPart  = 16
	minTick     = time.Second
	maxStretch  = 16        // bound on how far throttling stretches leaseEvery
	stretchHalf = time.Hour // its half-life once throttling stops

	// maxLeaseTime caps one sample of the lease time: a lease that took
	// longer met an outage, and outages are what the runway is for.
	maxLeaseTime = 5 * time.Second
)

// A planner decides when one sequence leases and how much. It is a pure
// function of what it was told: it has no clock, no randomness and no
// goroutine, and it needs a look at the counts only about once a second, so
// the hot path pays nothing for it. Its methods must be called by one
// goroutine at a time. Times are monotonic, since the Allocator was made; one
// that runs backwards counts as standing still.
//
// With r(w) = IDs issued in the last w, divided by w, and W = rateWindow:
//
//	peak    = highest r(W/2), halved every 5 W
//	reserve = peak x (runway + p99 lease time), at least minBlock/2, at most maxBlock
//	burn    = IDs issued since the last grant / time since then (at least W/12)
//	block   = max(r(W), burn) x leaseEvery
//	lease   = reserve + block - stock, within minBlock..maxBlock, when stock <= reserve
//
// The reserve looks at the busiest half window of late because bursty traffic
// spends most of a window below what its next minute needs; memory cannot be
// given back anyway, so a slow decay costs little. The block looks at what was
// really used and follows a fall within one window. Since burn measures how
// fast the last block went, a ramp is met by a few large leases and not by a
// ladder of doublings. Waiting callers count as served in every rate.
//
// Stock never exceeds 2 x maxBlock: that is the most a kill can waste. If
// minBlock = maxBlock every lease is exactly that, asked for one block ahead.
type planner struct {
	cfg sizing

	slots   [rateSlots]float32 // IDs issued per slot, a ring
	last    int64              // number of the newest slot
	now     time.Duration      // latest time seen
	started time.Duration      // when the first ID was seen issued
	taken   time.Duration      // when one was last seen
	issued  int64              // total IDs issued

	peak   float64 // IDs/s as of peakAt
	peakAt time.Duration

	leased        bool          // a lease was granted
	grantedAt     time.Duration // the latest
	grantedIssued int64         // issued at that time
	leaseMean     float64       // of lease times, smoothed, s
	leaseDev      float64       // their mean deviation, s

	stretch   float64 // factor on leaseEvery as of stretchAt; below 1 means 1
	stretchAt time.Duration
	spread    float64 // in [0, 1): that much more of leaseEvery, until a lease is granted
	extra     float64 // in [0, 1/4): that much more of a minBlock for the next lease
}

// A decision is what a planner wants done.
type decision struct {
	lease   int64         // IDs to lease now, 0 = none; ignore it while a lease is in flight
	trigger int64         // plan again at once when stock falls to this; -1 = only when a caller finds memory empty
	tick    time.Duration // plan again after this long; 0 = idle, needs no timer
	left    time.Duration // how long stock lasts at the present rate, for ordering refills
}

func newPlanner(cfg sizing) planner {
	var p planner
	p.setSizing(cfg)
	return p
}

// setSizing replaces the options. A new rateWindow starts measuring afresh;
// the peak is kept, so the reserve does not collapse meanwhile.
func (p *planner) setSizing(cfg sizing) {
	if !(cfg.jitter >= 0 && cfg.jitter < 1) {
		cfg.jitter = 0
	}
	cfg.minBlock = max(cfg.minBlock, 1)
	cfg.maxBlock = max(cfg.maxBlock, cfg.minBlock)
	cfg.rateWindow = max(cfg.rateWindow, rateSlots)
	if p.cfg.rateWindow != cfg.rateWindow {
		p.slots = [rateSlots]float32{}
		p.started = p.now
	}
	p.cfg = cfg
	p.last = p.slot()
}

// observe tells how many IDs have been issued in all. IDs issued since the
// last call are spread evenly over the time since then: after a suspended
// hour they are an hour's traffic, not a burst.
func (p *planner) observe(now time.Duration, issued int64) {
	before := p.now
	p.now = max(p.now, now)
	var n float64
	if issued > p.issued { // lower or negative is not ours to explain, and must not wrap
		if p.issued == 0 {
			p.started = p.now
		}
		n = float64(issued - p.issued)
		p.issued, p.taken = issued, p.now
	}

	width, newest, oldest := p.slotWidth(), p.slot(), p.last
	p.last = newest
	if p.now == before {
		p.slots[newest%rateSlots] += float32(n)
		return
	}
	perTick, to := n/float64(p.now-before), p.now
	for i := newest; i >= oldest && i > newest-rateSlots; i-- {
		from := max(before, time.Duration(i)*width)
		if i > oldest {
			p.slots[i%rateSlots] = 0 // from the last time round
		}
		p.slots[i%rateSlots] += float32(perTick * float64(to-from))
		to = from
	}
}

// granted tells that a lease arrived, took after its first attempt was sent.
//
// The p99 lease time is taken as mean + 6 mean deviations, both smoothed as in
// TCP's retransmission timer (RFC 6298). TCP takes 4 deviations; of lognormal
// latencies with a p99 of six times the median, one in a hundred exceeds 6.
func (p *planner) granted(now, took time.Duration) {
	p.observe(now, p.issued)
	p.grantedAt, p.grantedIssued, p.spread = p.now, p.issued, 0
	t := min(max(took, 0), maxLeaseTime).Seconds()
	if !p.leased {
		p.leased, p.leaseMean, p.leaseDev = true, t, t/2
		return
	}
	p.leaseDev += (math.Abs(t-p.leaseMean) - p.leaseDev) / 16
	p.leaseMean += (t - p.leaseMean) / 16
}

// leaseTime returns the p99 lease time in seconds.
func (p *planner) leaseTime() float64 { return p.leaseMean + 6*p.leaseDev }

// failed tells that a lease has to be tried again. A fleet that failed together
// succeeds together: a random spread in [0, 1), that much more of leaseEvery for
// this one lease, keeps its members from meeting again when that is used up.
func (p *planner) failed(spread float64) { p.spread = spread }

// vary makes the next lease, if it is one of minBlock, up to a quarter larger, by
// random in [0, 1). It is told after each grant: leaseEvery and its jitter do not
// count in quiet processes, and those that started together would stay in step.
func (p *planner) vary(random float64) { p.extra = random / 4 }

// throttled tells that the store throttled a lease; it is told once for each
// lease. Blocks double, up to 16 times their size, so this process writes less
// often while its callers go on; the factor halves every hour without a
// throttle. That is slow because a fleet beyond what its item takes has to be
// throttled as often as its members relax.
func (p *planner) throttled(now time.Duration) {
	p.observe(now, p.issued)
	p.stretch = min(2*p.stretched(), maxStretch)
	p.stretchAt = p.now
}

func (p *planner) stretched() float64 {
	return max(1, p.stretch*halved(p.now-p.stretchAt, stretchHalf))
}

// plan decides what to do with stock IDs in memory and callers waiting for
// demand more. It is called when a caller finds memory empty, when stock falls
// to the trigger, at each tick, after each grant, and once to warm up (stock 0,
// demand 0). With demand above 0 it always leases.
//
// A lease never exceeds maxBlock, so that minBlock = maxBlock = 1 keeps to one
// ID a write however many callers wait; one caller who needs more IDs in one
// piece gets them by a lease that its caller enlarges.
func (p *planner) plan(now time.Duration, stock, demand int64) decision {
	p.observe(now, p.issued)
	stock, demand = max(stock, 0), max(demand, 0)

	present := p.rate(reserveOver, demand)
	d := decision{trigger: -1, left: duration(float64(stock) / present)}
	every := p.seconds(p.cfg.leaseEvery) * p.stretched() * (1 + p.spread)

	if p.cfg.runway <= 0 { // not looked at between leases, so burn is all there is
		if demand > 0 {
			d.lease = p.size(p.burn(demand)*every + float64(demand))
		}
		return d
	}

	block := every * max(p.rate(rateSlots, demand), p.recentBurn(demand))
	reserve := p.reserve(present)
	if stock <= reserve || demand > 0 {
		d.lease = p.size(float64(reserve) + block - float64(stock) + float64(demand))
	}
	d.trigger = reserve
	if p.issued < p.cfg.minBlock/2 {
		// No tick has seen a rate yet: look again whenever twice as many
		// IDs are gone, so that a burst cannot use up the first block unseen.
		d.trigger = max(reserve, stock-max(p.issued, 1))
	}
	if demand == 0 && p.idle() {
		d.trigger = max(reserve, stock-1) // the next ID taken wakes us
	} else {
		d.tick = p.tick()
	}
	return d
}

// reserve returns the stock at or below which to lease, updating the peak.
func (p *planner) reserve(present float64) int64 {
	p.peak *= halved((p.now-p.peakAt)/peakWindows, p.cfg.rateWindow)
	p.peakAt = p.now
	rate := max(present, p.peak)
	if p.age() >= reserveOver*p.slotWidth() {
		p.peak = rate // while young, a rate is not yet worth remembering
	}
	ids := toIDs(rate * (p.seconds(p.cfg.runway) + p.leaseTime()))
	return min(max(ids, p.cfg.minBlock/2), p.cfg.maxBlock)
}

// rate returns the IDs issued or waited for in the last slots, per second.
//
// A sequence younger than that is measured over its age, but over one slot at
// least, so that a busy start is seen at once. Of so short a count n only
// n - 2 sqrt(n) is believed, the lower end of what a Poisson process may mean
// by it: a process that takes a few IDs and exits, or crashes in a loop, costs
// one minBlock a time.
func (p *planner) rate(slots int64, waiting int64) float64 {
	n := float64(waiting)
	for i := range min(slots, p.last+1) {
		n += float64(p.slots[(p.last-i)%rateSlots])
	}
	width := p.slotWidth()
	age, full := max(p.age(), width), time.Duration(slots-1)*width+p.now%width
	if age < full {
		return max(0, n-2*math.Sqrt(n)) / age.Seconds()
	}
	return n / full.Seconds()
}

// age returns the time since the first ID was seen issued.
func (p *planner) age() time.Duration {
	if p.issued == 0 {
		return 0
	}
	return p.now - p.started
}

// burn returns how fast the IDs went since the last grant.
func (p *planner) burn(waiting int64) float64 {
	if !p.leased {
		return 0
	}
	n := float64(p.issued-p.grantedIssued) + float64(waiting)
	return n / max(p.now-p.grantedAt, burnAtLeast*p.slotWidth()).Seconds()
}

// recentBurn is burn, or 0 if the last grant is more than a window ago: its
// block says nothing about now.
func (p *planner) recentBurn(waiting int64) float64 {
	if p.now-p.grantedAt > p.cfg.rateWindow {
		return 0
	}
	return p.burn(waiting)
}

// size clamps a lease. The first has the size that is configured for it,
// unless the callers already waiting show that more is needed. A rate seen in
// the first second is too young to size the next by, and 5,000 calls a second
// use up a minBlock in a few lease times: it is followed by ten times as much.
func (p *planner) size(ids float64) int64 {
	n := max(toIDs(ids), p.cfg.minBlock)
	if p.leased && p.cfg.runway > 0 {
		n = max(n, toIDs(float64(p.cfg.minBlock)*(1+p.extra)))
	}
	switch {
	case !p.leased:
		n = max(n, p.cfg.firstBlock)
	case toIDs(ids) > p.cfg.minBlock && p.age() < p.slotWidth():
		n = max(n, min(p.cfg.minBlock, p.cfg.maxBlock/10)*10)
	}
	return min(n, p.cfg.maxBlock)
}

// idle reports whether a tick's time has passed without an ID taken.
func (p *planner) idle() bool {
	return p.issued == 0 || p.now-p.taken >= p.tick()/2
}

func (p *planner) tick() time.Duration { return max(p.slotWidth(), minTick) }

// slot returns the number of the slot that now is in.
func (p *planner) slot() int64 { return int64(p.now / p.slotWidth()) }

func (p *planner) slotWidth() time.Duration { return p.cfg.rateWindow / rateSlots }

func (p *planner) seconds(d time.Duration) float64 {
	return d.Seconds() * (1 + p.cfg.jitter/jitterPart)
}

// halved returns the factor left when something halves every half.
func halved(passed, half time.Duration) float64 {
	return math.Exp2(-float64(passed) / float64(half))
}

// toIDs rounds up to a whole count, saturating; NaN is 0.
func toIDs(f float64) int64 {
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f > 0:
		return int64(math.Ceil(f))
	}
	return 0
}

// duration converts seconds, saturating; NaN (nothing left of nothing) is 0.
func duration(seconds float64) time.Duration {
	return time.Duration(toIDs(seconds * float64(time.Second)))
}
