// Package bridge lets the simulators under internal drive the planner of
// package ddbseq, which has no exported name: ddbseq fills in NewPlanner when
// it is initialized, so importing it is enough.
package bridge

import "time"

// Sizing is what a planner is made from: the options of one sequence.
type Sizing struct {
	Runway, LeaseEvery, RateWindow time.Duration
	MinBlock, MaxBlock, FirstBlock int64
	Jitter                         float64
}

// Decision is what a planner wants done.
type Decision struct {
	Lease, Trigger int64
	Tick, Left     time.Duration
}

// Planner decides when one sequence leases and how much.
type Planner interface {
	Observe(now time.Duration, issued int64)
	Granted(now, took time.Duration)
	Throttled(now time.Duration)
	Plan(now time.Duration, stock, demand int64) Decision
}

// NewPlanner makes the planner that an Allocator would use.
var NewPlanner func(Sizing) Planner

// DefaultSizing returns the options of an Allocator made without any.
var DefaultSizing func() Sizing
