package ddbseq

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// core is the part of a Sequence that its hot path does not touch: the stock of
// blocks, who waits for more, and the refill that gets it.
type core struct {
	a    *Allocator
	seq  *Sequence
	name string
	code *clauses // what the code says of the definition; replaced, never changed

	mu      sync.Mutex // never held across a store call
	closed  bool
	chain   []*block // blocks that may have IDs left, oldest first
	tail    *block   // the newest block; new ones are linked behind it
	waiters list.List
	wanted  int64 // what they want, all together
	plan    planner
	ticking bool // the Allocator's sampler shall look at this sequence
	listed  bool // it is in the sampler's list, from which only the sampler takes it

	retired int64 // IDs claimed from blocks that left the chain
	tried   bool  // TryNext found memory empty

	sizing   *Sizing // as the code has it; shared, never changed
	tune     *Tuning // the last usable one of the table; nil = none
	badTune  string  // what is wrong with the present one
	reported int64   // IDs issued, as the totals in the table have it

	// The refill, of which there is one at a time.
	busy    bool
	left    time.Duration // for how long memory lasts, as of the plan to lease
	timer   *time.Timer   // to the next attempt, while backing off
	due     time.Duration // when that will be
	patient bool          // nobody waited when it was set
	gen     int64         // raised when what is in flight must not be installed
	changed *item         // by our own hand, which is why gen was raised; nil otherwise
	held    time.Duration // until then err is given to callers
	learned time.Duration // when facts.def was seen in the table; 0 = not lately
	err     error         // the last error; nil after a success
	tries   int           // attempts failed since the last success

	// For those who look on.
	tally      tally
	waitTime   atomic.Int64  // ns that callers waited, all together
	seen       *item         // the item as last seen
	alerts     AlertSet      // that fire
	throttling float32       // share of attempts that are throttled
	lowSince   time.Duration // since when memory holds too little; 0 = it does not
	events     []event       // to be told, in order
	telling    bool          // somebody is at it

	facts  facts // what is known of the item
	newest *item // the item as the newest block's lease left it; nil if that block is not the newest any more
	lease  lease // owned by the refill while busy, otherwise guarded by mu
}

// noClauses is what code says that says nothing.
var noClauses clauses

// newSequence returns a Sequence with nothing in memory: its chain begins with
// a block that has no IDs.
func (a *Allocator) newSequence(name string, cfg sequenceConfig, z Sizing) *Sequence {
	s := &Sequence{core: &core{a: a, name: name, code: &noClauses, sizing: &a.opts.Sizing}}
	if z != a.opts.Sizing {
		s.sizing = &z
	}
	if cfg.clauses != noClauses {
		s.code = &cfg.clauses
	}
	s.seq = s
	s.plan = newPlanner(z.sizing(a.opts.rand()))
	s.tail = &block{cursor: -1, seq: s}
	s.cur.Store(s.tail)
	return s
}

// key is the sequence's key in the table.
func (s *core) key() string { return s.a.opts.KeyPrefix + s.name }

// lookAgain is for those who found memory low, or empty and will not wait. It
// reports whether they caused a refill.
func (s *core) lookAgain() (caused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := s.busy
	s.tried = s.stock() == 0
	s.consider()
	return s.busy && !busy
}

// demand returns how many IDs callers would take at once. requires mu
func (s *core) demand() int64 {
	if s.wanted == 0 && (s.tried || s.waiters.Len() > 0) {
		return 1
	}
	return s.wanted
}

// consider starts a refill if one is due, and otherwise sees to it that someone
// looks again in time. requires mu
func (s *core) consider() {
	if s.closed {
		return
	}
	if s.busy {
		s.hasten() // it looks again when it is done
		return
	}
	// The limit may have been passed while it was set; then look once more. The
	// plan for a stock at or below its own trigger is to lease, so that this
	// ends; the bound is for a planner that is wrong.
	for range 4 {
		stock := s.stock()
		now := s.a.now()
		s.plan.observe(now, s.issued())
		d := s.plan.plan(now, stock, s.demand())
		if s.err != nil && permanent(s.err) && (now < s.held || stock == 0 && s.demand() == 0) {
			// It failed for good. Ask again after half of the rest is gone, and
			// then when somebody wants an ID, instead of polling.
			d = decision{trigger: stock/2 - 1}
		}
		if d.lease > 0 {
			s.busy, s.left = true, d.left
			if splay := s.a.opts.WarmSplay; splay > 0 && !s.facts.known && s.wanted == 0 && !s.tried {
				s.patient = true
				s.later(time.Duration(s.a.opts.rand() * float64(splay)))
			} else {
				s.a.enqueue(s)
			}
			return
		}
		if s.ticking = d.tick > 0; s.ticking && !s.listed {
			s.listed = true
			s.a.sample(s)
		}
		if !s.arm(d.trigger) {
			return
		}
	}
}

// refill makes one attempt to lease, on a goroutine of its own, and leaves what
// is to be done next to the Allocator's queue or to a timer.
func (s *core) refill() {
	s.mu.Lock()
	if s.closed {
		s.busy = false
		s.mu.Unlock()
		return
	}
	gen := s.gen
	if s.lease.gen != gen {
		s.lease = lease{gen: gen} // the item was changed by our own hand
	}
	s.lease.code, s.lease.sizing, s.lease.issued, s.lease.first = s.code, s.sizing, s.issued()-s.tally.abandoned.Caller, !s.plan.leased
	stock := s.stock()
	now := s.a.now()
	s.plan.observe(now, s.issued())
	n := s.plan.plan(now, stock, s.demand()).lease
	var want, total, whole int64
	for place := s.waiters.Front(); place != nil; place = place.Next() {
		w := place.Value.(waiter)
		want, total = max(want, w.want), max(total, w.total)
		if w.whole {
			whole = max(whole, w.want)
		}
	}
	n = max(n, whole)
	if n == 0 { // those who waited have left
		s.busy = false
		s.lease.began = 0
		s.consider()
		s.mu.Unlock()
		return
	}
	if s.lease.began == 0 {
		s.lease.began, s.lease.throttled = now, false
	}
	known, mandatory := s.facts, s.demand() > 0
	s.mu.Unlock()

	got, err := s.attempt(s.a.ctx, known, n, want, total)

	s.mu.Lock()
	if !s.closed || err == nil { // what Close cut off failed for no other reason
		if e := s.attemptedLease(mandatory, s.a.now()-now, got, err); len(s.events) < maxEvents {
			s.events = append(s.events, e)
		}
	}
	s.settle(gen, now, got, err)
	var newDay *change
	if !s.closed {
		s.look()
		if it := s.lease.item; err == nil && it != nil {
			newDay = it.newDay(got.n, s.a.store.clock())
		}
	}
	s.mu.Unlock()
	s.tell()
	if newDay != nil {
		ctx, cancel := context.WithTimeout(s.a.ctx, s.a.opts.AttemptTimeout)
		defer cancel()
		// Best effort: if it fails, or somebody else was first, the next lease
		// shows whether there is still something to do.
		_, _ = s.a.store.apply(ctx, newDay)
	}
}

// settle takes what an attempt that was sent at began brought, and arranges what
// comes next. requires mu
func (s *core) settle(gen int64, began time.Duration, got leased, err error) {
	s.tally.attempts += got.attempts
	now := s.a.now()
	stale := s.closed || gen != s.gen && !s.lease.follows(s.changed)
	if !stale {
		s.facts = got.facts
	}
	if got.n > 0 {
		s.a.leased.Store(true)
		s.reported = got.reported // whatever becomes of the block
		s.tally.leases++
		s.tally.leased += got.n
		if got.recovered {
			s.tally.recovered++
		}
	}
	if s.lease.item != nil {
		s.retune(s.lease.item.tune)
		if !stale { // otherwise it may be older than what this process has made of it
			s.seen = s.lease.item
		}
	}
	switch {
	case stale:
		// Restarted, refreshed or closed while this was under way: the block is
		// of the past.
		if s.closed {
			s.tally.abandoned.Close += got.n
		} else {
			s.tally.abandoned.Refresh += got.n
		}
	case err == nil:
		s.err, s.tries, s.held = nil, 0, 0
		s.install(got)
		// After those who waited were served: they are no burn of this block.
		s.plan.observe(now, s.issued())
		s.plan.granted(now, now-s.lease.began)
		s.plan.vary(s.a.opts.rand())
		s.lease.began = 0
		s.lease.gen = s.gen
		s.learned, s.newest = now, s.lease.item
	case errors.Is(err, errShort):
		s.failShort(got.short)
	case permanent(err):
		s.err, s.tries, s.held = err, 0, now+s.a.opts.errorHold
		if e, ok := errors.AsType[*DailyLimitError](err); ok {
			// The first call of the new day must not be told of the old one.
			s.held = min(s.held, now+max(0, e.ResetAt.Sub(s.a.store.clock())))
		}
		s.lease.began = 0
		s.tally.abandoned.Fence += got.n
		s.fail(err)
	default:
		s.err = err
		d := s.backoff(err, now-began)
		s.tries++
		s.later(d)
		return
	}
	s.busy = false
	s.consider()
}

// later has the refill tried again after d. requires mu
func (s *core) later(d time.Duration) {
	s.a.running.Add(1)
	s.due = s.a.now() + d
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		defer s.a.running.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timer == timer {
			s.timer = nil
			s.a.enqueue(s)
		}
	})
	s.timer = timer
}

// stop takes back what later arranged. requires mu
func (s *core) stop() {
	if s.timer != nil && s.timer.Stop() {
		s.a.running.Done()
	}
	s.timer = nil
}

// hasten brings a refill forward that had time until somebody came to wait: to
// the front if it is in the queue, to now if it was only spread out, and into the
// delay of those who wait if it failed before. requires mu
func (s *core) hasten() {
	if s.demand() == 0 {
		return
	}
	if s.timer == nil && s.left > 0 { // once is enough
		s.left = 0
		s.a.prefer(s)
	}
	if s.timer == nil || !s.patient {
		return
	}
	if s.err == nil && s.wanted == 0 && !s.tried {
		return // another Warm: nobody waits for an ID
	}
	s.patient = false
	var d time.Duration
	if s.err != nil {
		d = min(time.Duration(s.a.opts.rand()*float64(backoffCap)), s.due-s.a.now())
	}
	s.stop()
	s.later(d)
}

// backoff returns how long to wait after err of an attempt that took so long: full
// jitter, and what the service asks for within the SDK's limits. requires mu
func (s *core) backoff(err error, took time.Duration) time.Duration {
	limit := backoffCap
	if s.patient = s.demand() == 0; s.patient {
		left := s.plan.plan(s.a.now(), s.stock(), 0).left
		// Calls that hang until they time out spare the store no less than pauses.
		limit = max(limit, min(left/8, advisoryBackoffCap)-took)
	}
	// Whoever is throttled and has time takes it at once: the item has none.
	if s.tries < 16 && !(s.patient && errors.Is(err, ErrThrottled)) {
		limit = min(limit, backoffBase<<s.tries)
	}
	d := time.Duration(s.a.opts.rand() * float64(limit))
	s.plan.failed(s.a.opts.rand())
	if le, ok := asLeaseError(err); ok {
		if le.Throttled {
			s.tally.throttled.count(le.Reasons)
			if !s.lease.throttled {
				s.plan.throttled(s.a.now())
			}
			s.lease.throttled = true
		}
		d = max(d, min(le.retryAfter, d+5*time.Second))
	}
	return d
}

// shut ends the sequence: nothing is handed out any more. It returns what is
// left, nil also if that was done before.
func (s *core) shut() *tail {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	t := s.empty()
	s.tally.abandoned.Close += t.dropped
	s.fail(s.closedError())
	s.stop()
	return t
}

// refresh drops what is in memory and what is in flight, and forgets errors. It
// returns what was left. changed is the item as this process has just changed
// it, if that is why: a lease in flight that came after it is good.
func (s *core) refresh(changed *item) *tail {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.gen++
	s.changed = changed
	s.held, s.learned = 0, 0
	t := s.empty()
	s.tally.abandoned.Refresh += t.dropped
	s.facts.seen = s.facts.high
	return t
}

// retune takes what the table says of sizing, if it is usable. requires mu
func (s *core) retune(stored *tuning) {
	t := stored.get()
	z, bad := t.over(*s.sizing)
	if stored != nil && stored.bad != "" {
		bad = stored.bad
	}
	if s.badTune = bad; bad != "" {
		return
	}
	if s.tune = nil; t != (Tuning{}) {
		s.tune = &t
	}
	next := z.sizing(s.plan.cfg.jitter)
	if t.FirstBlock != nil {
		next.firstBlock = *t.FirstBlock
	}
	if next != s.plan.cfg {
		s.plan.setSizing(next)
	}
}

// sampled takes a look at the consumption. It reports whether to look again.
func (s *core) sampled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		s.ticking = false
	case s.ticking && s.busy:
		s.plan.observe(s.a.now(), s.issued())
	case s.ticking:
		s.consider()
	}
	s.listed = s.ticking
	return s.listed
}

// timeLeft returns for how long memory lasts, 0 if somebody waits. requires mu
func (s *core) timeLeft() time.Duration {
	if s.demand() > 0 {
		return 0
	}
	return s.left
}

// reconfigure takes what a later call of Allocator.Sequence says.
func (s *core) reconfigure(cfg sequenceConfig, z Sizing) error {
	if !cfg.clauses.defines() && len(cfg.sizing) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	merged, conflict := s.code.merge(cfg.clauses)
	if conflict != "" {
		return fmt.Errorf("%w: sequence %q in table %q: %s; let all calls say the same", ErrDefinitionMismatch, s.name, s.a.store.table(), conflict)
	}
	if err := merged.checkSaid(s.name); err != nil {
		return err
	}
	if s.seen != nil {
		// It is in use: what does not agree is refused to whoever says it, and must
		// not stop the others.
		if why := merged.disagreesWith(s.seen); why != "" {
			return s.a.mismatch(s.name, why+" as this process saw it last (Refresh looks again)")
		}
	}
	s.code = &merged
	if len(cfg.sizing) > 0 {
		s.sizing = &z
		var kept tuning
		if s.tune != nil {
			kept.Tuning = *s.tune
		}
		s.retune(&kept)
	}
	return nil
}
