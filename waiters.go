package ddbseq

import (
	"container/list"
	"context"
	"fmt"
)

// A waiter is a caller that found memory empty.
type waiter struct {
	want  int64 // IDs; 0 waits for a lease to arrive and takes nothing
	whole bool  // all of them from one block
	total int64 // all that the call asked for, want being what it still lacks
	ch    chan grant
}

// A grant is n IDs, or an error.
type grant struct {
	first, step, n int64
	err            error
}

// wait gets what w wants when it is not in memory: it parks until a lease
// brings it, in order of arrival, or until ctx ends.
func (s *core) wait(ctx context.Context, w waiter) (grant, error) {
	ended := ctx.Err() // not under mu: ctx may be anybody's code, or nil
	s.mu.Lock()
	if g, ok := s.scoop(w); ok { // a block arrived meanwhile
		s.consider()
		s.mu.Unlock()
		return g, nil
	}
	if err := s.refusal(); err != nil {
		s.mu.Unlock()
		return grant{}, err
	}
	if ended != nil {
		s.consider() // the next caller may have more time
		last := s.err
		s.mu.Unlock()
		return grant{}, s.waitError(ctx, last)
	}
	w.ch = make(chan grant, 1)
	place := s.waiters.PushBack(w)
	s.wanted = addSat(s.wanted, w.want)
	if w.want > 0 {
		s.tally.waited++
	}
	s.consider()
	began := s.a.now()
	s.mu.Unlock()
	g := s.park(ctx, w, place)
	if w.want == 0 && g.err == nil {
		// Whoever waits is served before the block can be seen by others, and
		// this one wants it to be there.
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	s.waitedFor(w, began, g.err)
	return g, g.err
}

// park waits at a place in the queue until w is served or ctx ends.
func (s *core) park(ctx context.Context, w waiter, place *list.Element) grant {
	select {
	case g := <-w.ch:
		return g
	case <-ctx.Done():
	}
	s.mu.Lock()
	select {
	case g := <-w.ch:
		// Served at the last moment. The IDs are this caller's: whoever gets
		// them later would get them out of order.
		s.mu.Unlock()
		return g
	default:
	}
	s.leave(place)
	last := s.err
	s.mu.Unlock()
	return grant{err: s.waitError(ctx, last)}
}

// refusal returns why a caller who found memory empty must not wait, if
// anything. requires mu
func (s *core) refusal() error {
	switch {
	case s.closed:
		return s.closedError()
	case s.err != nil && s.a.now() < s.held:
		return s.err
	}
	return nil
}

func (s *core) closedError() error {
	return fmt.Errorf("%w: sequence %q in table %q", ErrClosed, s.name, s.a.store.table())
}

// waitError is what a caller whose ctx ended gets, last being the last error of
// the store. Must be called without mu: ctx may be anybody's code.
func (s *core) waitError(ctx context.Context, last error) error {
	return &waitError{doing: fmt.Sprintf("waiting for sequence %q", s.name), table: s.a.store.table(), ctx: contextErr(ctx), last: last}
}

// leave takes a waiter off the queue. requires mu
func (s *core) leave(place *list.Element) {
	w := s.waiters.Remove(place).(waiter)
	s.wanted = max(0, s.wanted-w.want)
}

// scoop takes what w wants out of memory, if it is there. requires mu
func (s *core) scoop(w waiter) (grant, bool) {
	for _, b := range s.chain {
		if w.want == 0 {
			if b.left() > 0 {
				return grant{}, true
			}
			continue
		}
		if w.whole {
			if from, ok := b.reserve(w.want, false); ok {
				return grant{first: b.at(from), step: b.step, n: w.want}, true
			}
			continue
		}
		if from, n := b.claimUpTo(w.want, false); n > 0 {
			return grant{first: b.at(from), step: b.step, n: n}, true
		}
	}
	return grant{}, false
}

// serve hands IDs of a block that nobody else can see yet to those who wait, in
// order of arrival, and returns how many it took. A caller of Reserve for whom
// too few are left keeps its place. requires mu
func (s *core) serve(b *block) (taken int64) {
	for place := s.waiters.Front(); place != nil; {
		w, this := place.Value.(waiter), place
		place = place.Next()
		n := min(w.want, b.end-taken)
		if w.whole && n < w.want {
			continue
		}
		if taken == b.end { // nothing is left, nor is memory filled for those who want none
			break
		}
		s.leave(this)
		w.ch <- grant{first: b.at(taken), step: b.step, n: n}
		taken += n
	}
	return taken
}

// fail gives an error to all who wait. requires mu
func (s *core) fail(err error) {
	for place := s.waiters.Front(); place != nil; place = s.waiters.Front() {
		w := place.Value.(waiter)
		s.leave(place)
		w.ch <- grant{err: err}
	}
}

// failShort sends those away who want more at once than can be had: of a CYCLE
// sequence they would wait for ever, and of another one, or of a day with a limit,
// they would use it up for nothing. requires mu
func (s *core) failShort(short *shortage) {
	for place := s.waiters.Front(); place != nil; {
		w, this := place.Value.(waiter), place
		place = place.Next()
		n := w.want
		if short.all {
			n = max(n, w.total)
		}
		if uint64(n) > short.most {
			s.leave(this)
			w.ch <- grant{err: short.reason(n)}
		}
	}
}
