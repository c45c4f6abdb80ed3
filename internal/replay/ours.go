package main

import (
	"time"

	_ "github.com/ddbseq/ddbseq" // registers its planner with bridge
	"github.com/ddbseq/ddbseq/internal/bridge"
)

// ours runs the planner of package ddbseq on what an Allocator sees: the
// counts at the start, when stock falls to the trigger, when a caller finds
// memory empty, at a tick and at a grant. Calls in between pass it by.
type ours struct {
	planner bridge.Planner
	trigger int64
}

func newOurs(s bridge.Sizing) *ours { return &ours{planner: bridge.NewPlanner(s)} }

// OnStart leases as Warm does.
func (p *ours) OnStart(v *View) int64 { return p.look(v) }

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

func (p *ours) OnWake(v *View) int64 { return p.look(v) }

func (p *ours) look(v *View) int64 {
	p.planner.Observe(uptime(v), v.Issued)
	d := p.planner.Plan(uptime(v), v.Stock, v.Waiting)
	p.trigger = d.Trigger
	v.WakeAt = never
	if d.Tick > 0 {
		v.WakeAt = v.Now + int64(d.Tick)
	}
	if v.InFlight > 0 {
		return 0
	}
	return d.Lease
}

func uptime(v *View) time.Duration { return time.Duration(v.Now - startAt) }
