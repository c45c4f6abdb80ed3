package ddbseq

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// poller reads the items of all sequences in use, once in ConfigPoll.
type poller struct {
	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

// pollAgain arranges the next round, between 3/4 and 5/4 of ConfigPoll away so
// that the processes of a fleet do not read in step.
func (a *Allocator) pollAgain() {
	p := &a.poller
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	d := time.Duration((0.75 + a.opts.rand()/2) * float64(a.opts.ConfigPoll))
	a.running.Add(1)
	p.timer = time.AfterFunc(d, func() {
		defer a.running.Done()
		a.poll()
		a.pollAgain()
	})
}

func (p *poller) close(a *Allocator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil && p.timer.Stop() {
		a.running.Done()
	}
}

func (a *Allocator) poll() {
	var g errgroup.Group
	g.SetLimit(a.opts.MaxParallel)
	for _, s := range a.sequences() {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(a.ctx, a.opts.AttemptTimeout)
			defer cancel()
			// A round that fails leaves things as they are; leases report errors.
			if it, err := a.store.peek(ctx, s.key()); err == nil && it != nil {
				s.polled(it)
			}
			return nil
		})
	}
	_ = g.Wait() // no error is returned
}

// polled takes what an item says that was read without need. It may be an older
// one: what decides about leases is read again.
func (s *core) polled(it *item) {
	s.mu.Lock()
	defer s.tell()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.retune(it.tune)
	s.seen = it
	s.look()
	if s.busy {
		return
	}
	if known := s.lease.item; known != nil && (known.ver != it.ver || known.epoch != it.epoch || known.born != it.born || known.paused != it.paused) {
		s.lease.forget() // the next lease reads it: a write that is refused costs more
	}
	if s.err != nil {
		s.held = 0 // it may be over
	}
	if s.facts.known {
		s.consider()
	}
}
