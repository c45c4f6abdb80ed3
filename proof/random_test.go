package proof

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/bridge"
)

// A fleet is three processes on one sequence of one store, and what must be
// true of it.
type fleet struct {
	store *ddbseq.Store
	procs []*ddbseq.Allocator
	last  []int64 // of Next and Fill, by process
	fresh []bool  // nothing issued under the present order yet

	cache bool // leases only when memory is empty

	def    ddbseq.Definition
	issued map[int64]bool // since values may have begun to repeat
	own    []map[int64]bool
	backup func() // restores the item
	floor  *int64

	mu    sync.Mutex
	rng   *rand.Rand
	shaky int // calls in 100 that fail
	count map[string]int
}

const name = "s"

func (f *fleet) hook(ctx context.Context, op, key string, do func() error) error {
	f.mu.Lock()
	fails, how := f.rng.IntN(100) < f.shaky, f.rng.IntN(4)
	f.mu.Unlock()
	if !fails {
		return do()
	}
	switch how {
	case 0:
		return &bridge.Fault{Throttled: true, Message: "throttled"}
	case 1:
		return &bridge.Fault{MaybeApplied: true, Message: "lost on the way"}
	case 2: // until our patience ends
		<-ctx.Done()
		return &bridge.Fault{MaybeApplied: true, Message: "no answer"}
	}
	if err := do(); err != nil {
		return err
	}
	return &bridge.Fault{MaybeApplied: true, Message: "answer lost"}
}

func (f *fleet) start(rt *rapid.T, i int) {
	block := rapid.Int64Range(1, 7).Draw(rt, "block")
	a, err := ddbseq.New(f.store, func(o *ddbseq.Options) {
		o.MinBlock, o.MaxBlock = block, 4*block
		o.CreateMissing = false
		bridge.SetRand(o, func() float64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.rng.Float64()
		})
		if f.cache {
			o.Runway = 0
		}
	})
	if err != nil {
		rt.Fatal(err)
	}
	f.procs[i], f.fresh[i], f.own[i] = a, true, map[int64]bool{}
}

// try runs one call with the patience of a minute.
func (f *fleet) try(rt *rapid.T, what string, call func(context.Context) error, allowed ...error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	err := call(ctx)
	f.count[what]++
	if err == nil {
		return true
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			f.count[fmt.Sprintf("%s: %v", what, a)]++
			return false
		}
	}
	rt.Fatalf("%s: %v", what, err)
	return false
}

// take checks an ID that process i got; ordered is false for Reserve.
func (f *fleet) take(rt *rapid.T, i int, id int64, ordered bool) {
	up := f.def.Increment > 0
	switch {
	case id < f.def.Min && f.def.Min > -1<<60 || id > f.def.Max:
		rt.Fatalf("%d is outside of %v", id, f.def)
	case f.floor != nil && (id <= *f.floor) == up:
		rt.Fatalf("%d was issued after an Advance to %d", id, *f.floor)
	case f.def.Cycle:
		return
	case f.issued[id]:
		rt.Fatalf("%d was issued twice", id)
	case ordered && !f.fresh[i] && (id > f.last[i]) != up:
		rt.Fatalf("process %d: %d was issued after %d", i, id, f.last[i])
	}
	f.issued[id], f.own[i][id] = true, true
	if ordered {
		f.last[i], f.fresh[i] = id, false
	}
}

// again makes all processes drop what they hold, so that from here on IDs can be
// judged by what was decided just now.
func (f *fleet) again(rt *rapid.T) {
	for _, a := range f.procs {
		f.try(rt, "Refresh", func(ctx context.Context) error { return a.Refresh(ctx, name) }, context.DeadlineExceeded)
	}
}

// settle is again when nothing is under way.
func (f *fleet) settle(rt *rapid.T) {
	f.mu.Lock()
	weather := f.shaky
	f.shaky = 0
	f.mu.Unlock()
	time.Sleep(time.Minute)
	f.again(rt)
	f.mu.Lock()
	f.shaky = weather
	f.mu.Unlock()
}

// forget is for when values may repeat.
func (f *fleet) forget(rt *rapid.T) {
	f.again(rt)
	f.issued, f.floor, f.backup = map[int64]bool{}, nil, nil
	for i := range f.fresh {
		f.fresh[i], f.own[i] = true, map[int64]bool{}
	}
}

func (f *fleet) describe(rt *rapid.T) (d ddbseq.Description) {
	f.try(rt, "Describe", func(ctx context.Context) (err error) {
		d, err = f.procs[0].Describe(ctx, name)
		return err
	})
	f.def = d.Definition
	return d
}

func (f *fleet) actions() map[string]func(*rapid.T) {
	who := func(rt *rapid.T) (int, *ddbseq.Allocator, *ddbseq.Sequence) {
		i := rapid.IntRange(0, len(f.procs)-1).Draw(rt, "process")
		s, err := f.procs[i].Sequence(name)
		if err != nil {
			rt.Fatal(err)
		}
		return i, f.procs[i], s
	}
	value := func(rt *rapid.T) int64 { return rapid.Int64Range(-60, 160).Draw(rt, "value") }
	next := func(rt *rapid.T) {
		i, _, s := who(rt)
		var id int64
		if f.try(rt, "Next", func(ctx context.Context) (err error) { id, err = s.Next(ctx); return err }, ddbseq.ErrExhausted) {
			f.take(rt, i, id, true)
		}
	}
	return map[string]func(*rapid.T){
		"Next":  next,
		"Next2": next,
		"TryNext": func(rt *rapid.T) {
			i, _, s := who(rt)
			if id, ok := s.TryNext(); ok {
				f.take(rt, i, id, true)
			}
		},
		"Fill": func(rt *rapid.T) {
			i, _, s := who(rt)
			ids := make([]int64, rapid.IntRange(1, 20).Draw(rt, "n"))
			if f.try(rt, "Fill", func(ctx context.Context) error { return s.Fill(ctx, ids) }, ddbseq.ErrExhausted, ddbseq.ErrInvalidCount) {
				for _, id := range ids {
					f.take(rt, i, id, true)
				}
			}
		},
		"Reserve": func(rt *rapid.T) {
			i, _, s := who(rt)
			var b ddbseq.Block
			n := rapid.Int64Range(1, 20).Draw(rt, "n")
			if f.try(rt, "Reserve", func(ctx context.Context) (err error) { b, err = s.Reserve(ctx, n); return err },
				ddbseq.ErrExhausted, ddbseq.ErrInvalidCount) {
				if b.N != n || b.Step != f.def.Increment && !f.def.Cycle {
					rt.Fatalf("%+v", b)
				}
				for id := range b.All() {
					f.take(rt, i, id, false)
				}
			}
		},
		"Close": func(rt *rapid.T) {
			i, a, _ := who(rt)
			// What could not be given back is given away.
			if err := a.Close(context.Background()); err != nil && f.shaky == 0 {
				rt.Fatal(err)
			}
			f.count["Close"]++
			f.start(rt, i)
		},
		"Refresh": func(rt *rapid.T) {
			_, a, _ := who(rt)
			f.try(rt, "Refresh", func(ctx context.Context) error { return a.Refresh(ctx) }, context.DeadlineExceeded)
		},
		"Advance": func(rt *rapid.T) {
			if f.def.Cycle {
				return
			}
			_, a, _ := who(rt)
			v := value(rt)
			f.settle(rt)
			if f.try(rt, "Advance", func(ctx context.Context) error { _, err := a.Advance(ctx, name, v); return err }, ddbseq.ErrOutOfBounds) && f.cache {
				if f.floor == nil || (v > *f.floor) == (f.def.Increment > 0) {
					f.floor = &v
				}
			}
		},
		"Restart": func(rt *rapid.T) {
			_, a, _ := who(rt)
			v := value(rt)
			if f.try(rt, "Restart", func(ctx context.Context) error { return a.Restart(ctx, name, v) },
				ddbseq.ErrReuse, ddbseq.ErrOutOfBounds, ddbseq.ErrOutcomeUnknown) && f.def.Cycle {
				f.forget(rt)
			}
		},
		"Restart into old values": func(rt *rapid.T) {
			_, a, _ := who(rt)
			v := value(rt)
			f.try(rt, "Restart back", func(ctx context.Context) error { return a.Restart(ctx, name, v, ddbseq.AllowReuse()) },
				ddbseq.ErrOutOfBounds, ddbseq.ErrOutcomeUnknown)
			f.forget(rt)
		},
		"Alter": func(rt *rapid.T) {
			_, a, _ := who(rt)
			clauses := []ddbseq.Clause{}
			if rapid.Bool().Draw(rt, "max") {
				clauses = append(clauses, ddbseq.MaxValue(rapid.Int64Range(30, 400).Draw(rt, "to")))
			}
			by := f.def.Increment
			if rapid.Bool().Draw(rt, "increment") {
				by = rapid.SampledFrom([]int64{1, 2, 5, -1, -3}).Draw(rt, "by")
				clauses = append(clauses, ddbseq.IncrementBy(by), ddbseq.AllowReuse())
			}
			if f.try(rt, "Alter", func(ctx context.Context) error { return a.Alter(ctx, name, clauses...) }, ddbseq.ErrInvalidDefinition) {
				turned := (by > 0) != (f.def.Increment > 0)
				f.again(rt)
				f.describe(rt)
				if turned {
					f.forget(rt)
				}
			}
		},
		"Backup": func(*rapid.T) { f.backup = bridge.Snapshot(f.store, name) },
		"Restore": func(rt *rapid.T) {
			if f.backup == nil || f.def.Cycle {
				return
			}
			f.settle(rt)
			f.backup()
			before := f.describe(rt)
			for i := range f.procs {
				s, err := f.procs[i].Sequence(name)
				if err != nil {
					rt.Fatal(err)
				}
				var id int64
				if f.try(rt, "Next after a restore", func(ctx context.Context) (err error) { id, err = s.Next(ctx); return err },
					ddbseq.ErrCounterMovedBack, ddbseq.ErrExhausted) && f.own[i][id] {
					rt.Fatalf("process %d issued %d again after a restore to %+v", i, id, before)
				}
			}
			// The way on, from wherever that is.
			d := f.describe(rt)
			f.forget(rt)
			f.try(rt, "Restart after a restore", func(ctx context.Context) error {
				return f.procs[0].Restart(ctx, name, d.Definition.Start, ddbseq.AllowReuse())
			}, ddbseq.ErrOutcomeUnknown)
			f.forget(rt)
		},
		"weather": func(rt *rapid.T) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.shaky = rapid.SampledFrom([]int{0, 0, 20, 50}).Draw(rt, "percent")
		},
		"": func(rt *rapid.T) {
			d := f.describe(rt)
			if d.Called && (d.LastID < d.Definition.Min || d.LastID > d.Definition.Max) {
				rt.Fatalf("the stored number is outside of its bounds: %+v", d)
			}
		},
	}
}

// noDeadline hides what must not be asked for inside a bubble of synctest.
type noDeadline struct{ rapid.TB }

// TestRandomOperations is run in a bubble: what waits for a retry waits for
// nothing, and a hang is a deadlock that the bubble reports.
func TestRandomOperations(t *testing.T) {
	// rapid stops after a day, and days are short in a bubble: it gets several.
	bubbles := 5
	if os.Getenv("DDBSEQ_STRESS") != "" {
		bubbles = 500
	}
	count := map[string]int{}
	for range bubbles {
		synctest.Test(t, func(t *testing.T) {
			rapid.Check(noDeadline{t}, func(rt *rapid.T) {
				f := &fleet{
					procs: make([]*ddbseq.Allocator, 3), last: make([]int64, 3), fresh: make([]bool, 3), own: make([]map[int64]bool, 3),
					issued: map[int64]bool{}, count: count,
					rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3)),
				}
				f.cache = rapid.Bool().Draw(rt, "cache only")
				f.store = bridge.Intercept(ddbseq.Memory(), f.hook).(*ddbseq.Store)
				for i := range f.procs {
					f.start(rt, i)
				}
				defer func() {
					f.mu.Lock()
					f.shaky = 0
					f.mu.Unlock()
					for _, a := range f.procs {
						_ = a.Close(context.Background()) // may have failed for good reasons before
					}
				}()
				clauses := [][]ddbseq.Clause{
					nil,
					{ddbseq.MinValue(-50), ddbseq.MaxValue(150), ddbseq.IncrementBy(3)},
					{ddbseq.IncrementBy(-2), ddbseq.MinValue(-50), ddbseq.MaxValue(150)},
					{ddbseq.MaxValue(9), ddbseq.Cycle()},
				}[rapid.IntRange(0, 3).Draw(rt, "definition")]
				f.try(rt, "Create", func(ctx context.Context) error { return f.procs[0].Create(ctx, name, clauses...) })
				f.describe(rt)
				rt.Repeat(f.actions())
			})
		})
	}
	t.Log(count)
}
