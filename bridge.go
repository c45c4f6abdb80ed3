package ddbseq

import (
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
		return bridged{&p}
	}
	bridge.DefaultSizing = func() bridge.Sizing {
		return bridge.Sizing{
			Runway: defaultRunway, LeaseEvery: defaultLeaseEvery, RateWindow: defaultRateWindow,
			MinBlock: defaultMinBlock, MaxBlock: defaultMaxBlock,
		}
	}
}

// bridged is a planner as the simulators see it.
type bridged struct{ *planner }

func (b bridged) Observe(now time.Duration, issued int64) { b.observe(now, issued) }
func (b bridged) Granted(now, took time.Duration)         { b.granted(now, took) }
func (b bridged) Throttled(now time.Duration)             { b.throttled(now) }

func (b bridged) Plan(now time.Duration, stock, demand int64) bridge.Decision {
	d := b.plan(now, stock, demand)
	return bridge.Decision{Lease: d.lease, Trigger: d.trigger, Tick: d.tick, Left: d.left}
}
