package ddbseq

import (
	"context"
	"errors"
	"time"

	"github.com/ddbseq/ddbseq/internal/bridge"
)

func init() {
	bridge.NewPlanner = func(s bridge.Sizing) bridge.Planner {
		p := newPlanner(sizing{
			runway: s.Runway, leaseEvery: s.LeaseEvery, rateWindow: s.RateWindow,
			minBlock: s.MinBlock, maxBlock: s.MaxBlock, firstBlock: s.FirstBlock,
			jitter: s.Jitter,
		})
		return bridged{planner: &p, random: s.Jitter}
	}
	bridge.DefaultSizing = func() bridge.Sizing {
		return bridge.Sizing{
			Runway: defaultRunway, LeaseEvery: defaultLeaseEvery, RateWindow: defaultRateWindow,
			MinBlock: defaultMinBlock, MaxBlock: defaultMaxBlock,
		}
	}
	bridge.Intercept = func(store any, hook bridge.Hook) any {
		return &Store{backend: hooked{backend: store.(*Store).backend, hook: hook}}
	}
	bridge.Snapshot = func(store any, key string) func() {
		b := store.(*Store).backend
		for {
			h, ok := b.(hooked)
			if !ok {
				return b.(*memory).snapshot(key)
			}
			b = h.backend
		}
	}
	bridge.SetRand = func(options any, rand func() float64) { options.(*Options).rand = rand }
	bridge.Take = func(seq any, n int64, yield func(first, step, n int64)) int64 {
		return seq.(*Sequence).take(n, yield)
	}
}

// hooked is a store behind a hook.
type hooked struct {
	backend
	hook bridge.Hook
}

func (h hooked) call(ctx context.Context, op, key string, do func() error) error {
	err := h.hook(ctx, op, key, do)
	if f, ok := errors.AsType[*bridge.Fault](err); ok {
		le := &LeaseError{Sequence: key, Table: h.table(), Op: op, Throttled: f.Throttled, Reasons: f.Reasons,
			MaybeApplied: f.MaybeApplied, Permanent: f.Permanent, Err: f}
		if f.Throttled {
			le.kind = ErrThrottled
		}
		return le
	}
	return err
}

func (h hooked) get(ctx context.Context, key string) (it *item, err error) {
	err = h.call(ctx, "GetItem", key, func() error {
		it, err = h.backend.get(ctx, key)
		return err
	})
	return it, err
}

func (h hooked) apply(ctx context.Context, ch *change) (it *item, err error) {
	err = h.call(ctx, "UpdateItem", ch.key, func() error {
		it, err = h.backend.apply(ctx, ch)
		return err
	})
	return it, err
}

func (h hooked) peek(ctx context.Context, key string) (it *item, err error) {
	err = h.call(ctx, "GetItem", key, func() error {
		it, err = h.backend.peek(ctx, key)
		return err
	})
	return it, err
}

// snapshot returns what puts an item back to how it is now, as a restore does.
func (m *memory) snapshot(key string) (restore func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	it, ok := m.items[key]
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if ok {
			m.items[key] = it
		} else {
			delete(m.items, key)
		}
	}
}

// take claims up to n IDs that are in memory, in order.
func (s *Sequence) take(n int64, yield func(first, step, n int64)) (taken int64) {
	for b := s.cur.Load(); b != nil && taken < n; {
		first, got := b.claimUpTo(n-taken, true)
		if got > 0 {
			yield(b.at(first), b.step, got)
			taken += got
			continue
		}
		after := b.next.Load()
		if after != nil {
			s.cur.CompareAndSwap(b, after)
		}
		b = after
	}
	if taken < n {
		s.lookAgain()
	}
	return taken
}

// bridged is a planner as the simulators see it, whose random numbers are all
// the jitter that it was made with.
type bridged struct {
	*planner
	random float64
}

func (b bridged) Observe(now time.Duration, issued int64) { b.observe(now, issued) }
func (b bridged) Granted(now, took time.Duration) {
	b.granted(now, took)
	b.vary(b.random)
}

func (b bridged) Throttled(now time.Duration) { b.throttled(now) }

func (b bridged) Plan(now time.Duration, stock, demand int64) bridge.Decision {
	d := b.plan(now, stock, demand)
	return bridge.Decision{Lease: d.lease, Trigger: d.trigger, Tick: d.tick, Left: d.left}
}
