package ddbseq

import "time"

type sizing struct {
	runway, leaseEvery, rateWindow time.Duration
	minBlock, maxBlock             int64
	firstBlock                     int64
}

type planner struct{ cfg sizing }

type decision struct {
	lease   int64
	trigger int64
	tick    time.Duration
}

func newPlanner(cfg sizing) planner { return planner{cfg: cfg} }

func (p *planner) observe(now time.Duration, issued int64)                {}
func (p *planner) granted(now time.Duration, n int64, took time.Duration) {}
func (p *planner) throttled(now time.Duration)                            {}

// plan leases blocks of a fixed size at a fixed fraction.
func (p *planner) plan(now time.Duration, stock, demand int64) decision {
	block := p.cfg.minBlock
	d := decision{trigger: block / 2}
	if p.cfg.runway == 0 {
		d.trigger = -1
	}
	if demand > 0 || stock <= d.trigger {
		d.lease = min(max(block, demand), p.cfg.maxBlock)
	}
	return d
}
