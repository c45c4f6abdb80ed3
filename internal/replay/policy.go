package main

import "time"

// View is what a policy may look at. It is owned by the engine, valid only
// during the callback, and describes the state after the event that caused
// the callback.
type View struct {
	Now      int64 // ns since the trace's start (negative before it)
	Stock    int64 // IDs in memory that nobody has taken
	Waiting  int64 // callers queued because the stock was empty
	InFlight int   // leases sent and not yet granted
	Issued   int64 // IDs handed out so far
	Arrived  int64 // calls so far (Issued + Waiting)

	// WakeAt is for the policy to set, in any callback: OnWake runs then.
	// The engine sets it back to never before it calls OnWake.
	WakeAt int64
}

// Grant tells a policy about one lease that the store granted.
type Grant struct {
	N       int64         // IDs granted
	Elapsed time.Duration // first send to grant, failed attempts included
}

// Policy decides when to lease and how much. Every callback returns how many
// IDs to lease now: 0 sends nothing, n > 0 sends one lease of n IDs at
// View.Now. Several leases may be in flight if a policy asks for that. A lease
// sent during an outage is retried by the engine until it is granted.
type Policy interface {
	// OnStart runs once, one second before the trace starts, with empty stock.
	OnStart(v *View) int64
	// OnTake runs after each call for one ID: it was served from the stock, or
	// it is now the last of v.Waiting.
	OnTake(v *View) int64
	// OnGrant runs after a lease was granted and the queue was served from it.
	OnGrant(v *View, g Grant) int64
	// OnWake runs at View.WakeAt.
	OnWake(v *View) int64
}

// base gives a policy empty callbacks.
type base struct{}

func (base) OnStart(*View) int64        { return 0 }
func (base) OnTake(*View) int64         { return 0 }
func (base) OnGrant(*View, Grant) int64 { return 0 }
func (base) OnWake(*View) int64         { return 0 }
