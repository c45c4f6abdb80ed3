package ddbseq

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Tuning is what operators set in the table for all processes. It reaches each
// with its next lease, at no cost, or sooner with [Options.ConfigPoll] and
// Refresh. What is stored goes before what the code says, and that before the
// defaults. nil leaves it to the code.
type Tuning struct {
	Runway, LeaseEvery *time.Duration // see [Sizing]
	MinBlock, MaxBlock *int64
	FirstBlock         *int64 // the first block of a process, if it is more than MinBlock; at most MaxBlock
	Paused             *bool  // no leases: what is in memory is handed out, then ErrPaused
}

// Tune changes, in [Allocator.Alter], the tuning in the table: fn gets what is
// stored and changes it, once more if somebody else has tuned meanwhile. Other
// processes need no write to follow.
func Tune(fn func(*Tuning)) Clause {
	return func(c *clauses) {
		if fn == nil {
			return
		}
		if c.tune == nil {
			c.tune = new([]func(*Tuning))
		}
		*c.tune = append(*c.tune, fn)
	}
}

// Pause stops all leases of a sequence, in [Allocator.Alter].
func Pause() Clause { return Tune(func(t *Tuning) { t.Paused = new(true) }) }

// Resume takes [Pause] back.
func Resume() Clause { return Tune(func(t *Tuning) { t.Paused = nil }) }

// tuning is a Tuning as it was read. bad says in words what of it is not usable.
type tuning struct {
	Tuning
	bad string
	raw any // as it is stored, where that is not what we would store
}

// same reports whether t and o say the same.
func (t *tuning) same(o *tuning) bool {
	if t == nil || o == nil {
		return t == o
	}
	return t.bad == o.bad && reflect.DeepEqual(t.Tuning, o.Tuning)
}

func (t *tuning) paused() bool { return t != nil && t.Paused != nil && *t.Paused }

// get returns what t says, which is nothing if it is nil.
func (t *tuning) get() Tuning {
	if t == nil {
		return Tuning{}
	}
	return t.Tuning
}

// over returns z with what t says, or in words why it makes no sense.
func (t Tuning) over(z Sizing) (out Sizing, bad string) {
	out = z
	set(&out.Runway, t.Runway)
	set(&out.LeaseEvery, t.LeaseEvery)
	set(&out.MinBlock, t.MinBlock)
	set(&out.MaxBlock, t.MaxBlock)
	if t.MinBlock != nil && t.MaxBlock == nil {
		out.MaxBlock = max(out.MaxBlock, out.MinBlock)
	}
	if t.MaxBlock != nil && t.MinBlock == nil {
		out.MinBlock = min(out.MinBlock, out.MaxBlock)
	}
	if err := out.validate(); err != nil {
		return z, strings.TrimPrefix(err.Error(), ErrInvalidOptions.Error()+": ")
	}
	if t.FirstBlock != nil && *t.FirstBlock < 1 {
		return z, fmt.Sprintf("FirstBlock is %d, it must be 1 or more", *t.FirstBlock)
	}
	return out, ""
}

// first returns what t makes the first block of a process, 0 if it says nothing
// that is usable with z.
func (t *tuning) first(z Sizing) int64 {
	if t == nil || t.bad != "" || t.FirstBlock == nil {
		return 0
	}
	z, bad := t.over(z)
	if bad != "" {
		return 0
	}
	return min(*t.FirstBlock, z.MaxBlock)
}

// clone returns t with pointers of its own.
func (t Tuning) clone() Tuning {
	return Tuning{
		Runway: clone(t.Runway), LeaseEvery: clone(t.LeaseEvery),
		MinBlock: clone(t.MinBlock), MaxBlock: clone(t.MaxBlock), FirstBlock: clone(t.FirstBlock),
		Paused: clone(t.Paused),
	}
}

func clone[T any](v *T) *T {
	if v == nil {
		return nil
	}
	return new(*v)
}

func set[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

// change returns t as fns change it, or in words why that makes no sense. Stored
// values that cannot be read are dropped.
func (t *tuning) change(fns []func(*Tuning)) (out *tuning, bad string) {
	next := t.get().clone()
	for _, fn := range fns {
		fn(&next)
	}
	if _, bad = next.over(Sizing{
		Runway: defaultRunway, LeaseEvery: defaultLeaseEvery, RateWindow: defaultRateWindow,
		MinBlock: defaultMinBlock, MaxBlock: defaultMaxBlock,
	}); bad != "" {
		return nil, bad
	}
	return &tuning{Tuning: next}, ""
}
