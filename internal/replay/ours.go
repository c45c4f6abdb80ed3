package main

import (
	"time"

	_ "github.com/ddbseq/ddbseq" // registers its planner with bridge
	"github.com/ddbseq/ddbseq/internal/bridge"
)

// ours runs the planner of package ddbseq on what an Allocator sees: the
// counts at the start, when stock falls to the trigger, when a caller finds
// memory empty, at a grant, and every second while it is not idle. Calls in
// between pass it by.
type ours struct {
	planner bridge.Planner
	trigger int64
	ticking bool
}

func newOurs(s bridge.Sizing) *ours { return &ours{planner: bridge.NewPlanner(s)} }

// OnStart leases as Warm does, who waits for IDs and takes none.
func (p *ours) OnStart(v *View) int64 { return p.plan(v, 1) }

func (p *ours) OnTake(v *View) int64 {
	if v.InFlight > 0 || v.Stock > p.trigger && v.Waiting == 0 {
		return 0
	}
	return p.look(v)
}

func (p *ours) OnGrant(v *View, g Grant) int64 {
	p.planner.Observe(uptime(v), v.Issued)
	p.planner.Granted(uptime(v), g.Elapsed)
	return p.look(v)
}

// OnWake is the beat of the Allocator's sampler. It goes on until the first one
// at which the sequence is idle.
func (p *ours) OnWake(v *View) int64 {
	if !p.ticking {
		return 0
	}
	v.WakeAt = v.Now + second
	if v.InFlight > 0 {
		p.planner.Observe(uptime(v), v.Issued)
		return 0
	}
	n := p.look(v)
	if !p.ticking {
		v.WakeAt = never
	}
	return n
}

func (p *ours) look(v *View) int64 { return p.plan(v, v.Waiting) }

func (p *ours) plan(v *View, demand int64) int64 {
	p.planner.Observe(uptime(v), v.Issued)
	d := p.planner.Plan(uptime(v), v.Stock, demand)
	if d.Lease > 0 {
		return d.Lease // it is looked at again when that is granted
	}
	p.trigger = d.Trigger
	if p.ticking = d.Tick > 0; p.ticking && v.WakeAt == never {
		v.WakeAt = v.Now + second
	}
	return 0
}

func uptime(v *View) time.Duration { return time.Duration(v.Now - startAt) }
