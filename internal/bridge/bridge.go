// Package bridge lets the simulators and proofs of this repository reach what
// package ddbseq does not export. ddbseq fills in the variables when it is
// initialized, so importing it is enough.
package bridge

import (
	"context"
	"time"
)

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

// A Hook is called in place of every call to a store. do carries the call out
// and returns its error; the Hook may wait, leave it out, or do it and fail all
// the same. A *Fault that it returns is seen as a failed call of the store.
type Hook func(ctx context.Context, op, key string, do func() error) error

// Fault is a failed call.
//
//nolint:errname // what happens, in the first place; an error so that a Hook can return it
type Fault struct {
	Throttled    bool
	Reasons      []string
	MaybeApplied bool
	Permanent    bool
	Message      string
}

func (f *Fault) Error() string { return f.Message }

// Intercept returns a *ddbseq.Store that calls hook in place of store, a
// *ddbseq.Store.
var Intercept func(store any, hook Hook) any

// Take takes up to n IDs of seq, a *ddbseq.Sequence, out of memory, as n calls
// of TryNext would, and yields them as runs. It returns how many it took.
var Take func(seq any, n int64, yield func(first, step, n int64)) int64

// SetRand has an Allocator draw its jitter from rand, which returns numbers in
// [0, 1) and must be safe for concurrent use. options is the *ddbseq.Options that
// an option function of New is given.
var SetRand func(options any, rand func() float64)

// Snapshot returns what puts one item of a Memory store back to how it is now,
// absent included.
var Snapshot func(store any, key string) (restore func())
