package ddbseq

import (
	"math"
	"slices"
)

// install makes what was leased the newest block, or blocks. requires mu
func (s *core) install(got leased) {
	for n := got.n; n > 0; n = got.n {
		n = min(n, maxRun)
		b := &block{cursor: -1, first: got.first, step: got.step, end: n, soft: n, seq: s.seq, before: got.before, day: dayNumber(s.lease.item)}
		s.link(b)
		if got.n -= n; got.n > 0 {
			got.first, got.before = b.at(n), new(b.at(n-1))
		}
	}
	s.tried = false
}

func (s *core) link(b *block) {
	b.cursor = s.serve(b) - 1
	if len(s.chain) >= maxChain {
		claimed := s.chain[0].drop()
		s.retired += claimed
		s.tally.abandoned.Rest += s.chain[0].end - claimed
		s.chain = slices.Delete(s.chain, 0, 1)
	}
	s.chain = append(s.chain, b)
	s.tail.next.Store(b) // from here on b is seen
	if s.tail.end == 0 {
		s.seq.cur.CompareAndSwap(s.tail, b) // nothing was there to be used up first
	}
	s.tail = b
}

// stock returns how many IDs are left in memory, and forgets blocks that are
// used up. requires mu
func (s *core) stock() (left int64) {
	kept := s.chain[:0]
	for _, b := range s.chain {
		if n := b.left(); n > 0 {
			kept = append(kept, b)
			left = addSat(left, n)
		} else {
			s.retired += b.end
		}
	}
	clear(s.chain[len(kept):])
	s.chain = kept
	// Blocks used up behind one that is not would otherwise be kept, and walked
	// through, for as long as that one lasts.
	for i, b := range kept {
		after := s.tail
		if i+1 < len(kept) {
			after = kept[i+1]
		}
		if b != s.tail && b.next.Load() != after {
			b.next.Store(after)
		}
	}
	return left
}

// issued returns how many IDs were claimed so far. requires mu
func (s *core) issued() int64 {
	n := s.retired
	for _, b := range s.chain {
		n += b.end - b.left()
	}
	return n
}

// arm makes the caller who leaves only trigger IDs in memory look at the stock.
// It reports whether that has happened by now. requires mu
func (s *core) arm(trigger int64) (passed bool) {
	armed := trigger < 0
	for i := len(s.chain) - 1; i >= 0; i-- {
		b := s.chain[i]
		left := b.left()
		if !armed && trigger < left {
			armed = true
			passed = b.limit(b.end - 1 - trigger)
			continue
		}
		b.limit(b.end)
		trigger -= left
	}
	return passed || !armed
}

// empty takes all IDs out of memory. What the next block must lie beyond is then
// the last ID that was handed out. requires mu
func (s *core) empty() *tail {
	t := &tail{s: s, closed: s.closed, newest: s.newest, reported: s.reported}
	defer func() { s.newest = nil }()
	high := s.facts.high
	var before *block // the one before b in the chain
	for _, b := range s.chain {
		claimed := b.drop()
		s.retired += claimed
		rest := b.end - claimed
		t.dropped += rest
		// Blocks that follow each other by number follow each other in the table
		// only if they were leased under one order: not across a Restart, whose
		// first block has no before, nor over the laps of a CYCLE.
		if claimed > 0 || before == nil || b.before == nil || before.step != b.step || before.at(before.end) != b.first {
			t.n, t.unuse, t.first, t.step = 0, 0, b.at(claimed), b.step
		}
		t.n += rest
		if s.newestDay() == b.day && b.day != 0 {
			t.unuse += rest
		}
		switch {
		case claimed > 0:
			high = new(b.at(claimed - 1))
		case before == nil || b.before == nil || *b.before != before.at(before.end-1):
			// The first one; the first of a new epoch; or the one leased before it
			// left the chain, because Reserve used it up.
			high = b.before
		}
		before = b
	}
	if before != nil && before != s.tail {
		high = s.facts.high // the newest one is used up
	}
	if s.facts.high != nil { // it is nil where no order can be demanded
		s.facts.high = high
	}
	clear(s.chain)
	s.chain = s.chain[:0]
	t.issued = s.retired - s.tally.abandoned.Caller
	return t
}

func (s *core) newestDay() int64 {
	if s.newest == nil {
		return 0
	}
	return dayNumber(s.newest)
}

// abandon counts claimed IDs that no caller got.
func (s *core) abandon(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.abandoned.Caller += n
}

func addSat(a, b int64) int64 {
	if c := a + b; c >= a {
		return c
	}
	return math.MaxInt64
}

// returned moves t from the abandoned IDs to those given back.
func (s *core) returned(t *tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.returned += t.n
	if t.closed {
		s.tally.abandoned.Close -= t.n
	} else {
		s.tally.abandoned.Refresh -= t.n
	}
}
