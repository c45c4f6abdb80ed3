package main

import "time"

// fixedTopUp is monday.com's policy: whenever memory holds less than
// below x block and nothing is in flight, lease block more. Filled once at
// start.
type fixedTopUp struct {
	base
	block int64
	below float64
}

func newFixedTopUp(block int64, below float64) *fixedTopUp {
	return &fixedTopUp{block: block, below: below}
}

func (p *fixedTopUp) OnStart(*View) int64 { return p.block }

func (p *fixedTopUp) OnTake(v *View) int64 {
	if v.InFlight == 0 && float64(v.Stock) < p.below*float64(p.block) {
		return p.block
	}
	return 0
}

func (p *fixedTopUp) OnGrant(v *View, _ Grant) int64 {
	if v.Waiting > 0 {
		return p.OnTake(v)
	}
	return 0
}

// coupang is Coupang's policy: memory holds at most limit IDs; after each
// call, when nothing is in flight and no more than
// max(rate x buffer seconds, least) remain, lease up to the limit. The rate is
// that of the last 60 s, kept in sixty 1 s slots, the current one included; it
// always divides by 60, so it starts from 0. Filled to the limit at start. The
// published text does not say how often the check runs.
type coupang struct {
	base
	limit, least int64
	buffer       float64
	slots        [60]int64
	sum          int64
	sec          int64
}

func newCoupang(limit, least int64, bufferSeconds float64) *coupang {
	return &coupang{limit: limit, least: least, buffer: bufferSeconds, sec: -1}
}

func (p *coupang) OnStart(*View) int64 { return p.limit }

func (p *coupang) advance(now int64) {
	s := now / second
	if now < 0 {
		s = -1
	}
	if s-p.sec >= 60 {
		p.slots, p.sum, p.sec = [60]int64{}, 0, s
		return
	}
	for p.sec < s {
		p.sec++
		i := p.sec % 60
		p.sum -= p.slots[i]
		p.slots[i] = 0
	}
}

func (p *coupang) check(v *View) int64 {
	if v.InFlight > 0 {
		return 0
	}
	threshold := max(float64(p.sum)/60*p.buffer, float64(p.least))
	if float64(v.Stock) <= threshold && v.Stock < p.limit {
		return p.limit - v.Stock
	}
	return 0
}

func (p *coupang) OnTake(v *View) int64 {
	p.advance(v.Now)
	p.slots[p.sec%60]++
	p.sum++
	return p.check(v)
}

func (p *coupang) OnGrant(v *View, _ Grant) int64 {
	if v.Waiting > 0 {
		p.advance(v.Now)
		return p.check(v)
	}
	return 0
}

// leaf is Meituan Leaf's segment mode (SegmentIDGenImpl): two segments. When
// the next one is not ready, none is being loaded, and the current one has
// less than 90% idle, load the next. The first two loads use the initial step;
// later ones go by the time since the last load was granted: < 15 min doubles
// the step (unless that exceeds maxStep), 15..30 min keeps it, >= 30 min
// halves it (not under the initial step). The first call loads the first
// segment. In Leaf a caller that finds both segments empty gets an error after
// about 10 ms; here it waits. The threshold is checked just after a call
// rather than just before it.
type leaf struct {
	base
	initial, maxStep int64
	step             int64
	loads            int
	updated          int64 // 0: unset, as in Leaf
	cur, curStep     int64 // remaining in and size of the current segment
	next             int64 // size of the next one, 0 = not ready
	seen             int64 // v.Issued already booked against the segments
}

func newLeaf(initial, maxStep int64) *leaf { return &leaf{initial: initial, maxStep: maxStep} }

const leafSegment = int64(15 * time.Minute)

func (p *leaf) book(v *View) {
	p.cur -= v.Issued - p.seen
	p.seen = v.Issued
	if p.cur <= 0 && p.next > 0 {
		p.cur, p.curStep, p.next = p.cur+p.next, p.next, 0
	}
}

func (p *leaf) load(v *View) int64 {
	if v.InFlight > 0 || p.next > 0 {
		return 0
	}
	switch {
	case p.loads == 0:
		p.step = p.initial
	case float64(p.cur) >= 0.9*float64(p.curStep):
		return 0
	case p.loads == 1:
		p.step = p.initial
	default:
		switch d := v.Now - p.updated; {
		case d < leafSegment:
			if p.step*2 <= p.maxStep {
				p.step *= 2
			}
		case d < 2*leafSegment:
		default:
			if p.step/2 >= p.initial {
				p.step /= 2
			}
		}
	}
	p.loads++
	return p.step
}

func (p *leaf) OnTake(v *View) int64 {
	p.book(v)
	return p.load(v)
}

func (p *leaf) OnGrant(v *View, g Grant) int64 {
	if p.loads >= 2 {
		p.updated = v.Now
	}
	if p.curStep == 0 || p.cur <= 0 {
		p.cur, p.curStep = p.cur+g.N, g.N
	} else {
		p.next = g.N
	}
	p.book(v)
	if v.Waiting > 0 || p.cur < p.curStep {
		return p.load(v)
	}
	return 0
}

// pooled is Hibernate's pooled optimizer: no prefetch. A call that finds the
// block used up fetches the next; others wait for that fetch.
type pooled struct {
	base
	block int64
}

func newPooled(block int64) *pooled { return &pooled{block: block} }

func (p *pooled) OnTake(v *View) int64 {
	if v.Waiting > 0 && v.InFlight == 0 {
		return p.block
	}
	return 0
}

func (p *pooled) OnGrant(v *View, _ Grant) int64 { return p.OnTake(v) }
