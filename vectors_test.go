package ddbseq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The vectors were recorded from a PostgreSQL server; testdata/postgres_sequences.md
// says how and what the fields mean.

type vector struct {
	Name        string        `json:"name"`
	Kind        string        `json:"kind"`
	Params      vectorClauses `json:"params"`
	Effective   *vectorDef    `json:"effective"`
	CreateError *vectorError  `json:"create_error"`
	Tags        []string      `json:"tags"`
	Ops         []vectorOp    `json:"ops"`
}

type vectorClauses struct {
	Increment      *string `json:"increment"`
	MinValue       *string `json:"minvalue"`
	MaxValue       *string `json:"maxvalue"`
	Start          *string `json:"start"`
	Cache          *string `json:"cache"`
	Cycle          *bool   `json:"cycle"`
	NoMinValue     bool    `json:"no_minvalue"`
	NoMaxValue     bool    `json:"no_maxvalue"`
	Restart        *string `json:"restart"`
	RestartDefault bool    `json:"restart_default"`
}

type vectorDef struct {
	Start, MinValue, MaxValue, Increment, Cache string
	Cycle                                       bool
}

type vectorError struct {
	Error string `json:"error"`
}

type vectorOp struct {
	Op        string         `json:"op"`
	Session   int            `json:"session"`
	Value     *string        `json:"value"`
	Error     string         `json:"error"`
	Bound     string         `json:"bound"`
	Set       *string        `json:"set"`
	IsCalled  *bool          `json:"is_called"`
	LastValue *string        `json:"last_value"`
	Params    *vectorClauses `json:"params"`
	Effective *vectorDef     `json:"effective"`
}

// number saturates: a case may hold a number beyond int64 whose error is judged
// only after another one.
func number(t testing.TB, s string) int64 {
	t.Helper()
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		t.Fatal(err)
	}
	return v
}

func (c vectorClauses) clauses(t testing.TB) []Clause {
	var cs []Clause
	add := func(s *string, clause func(int64) Clause) {
		if s != nil {
			cs = append(cs, clause(number(t, *s)))
		}
	}
	add(c.Increment, IncrementBy)
	add(c.MinValue, MinValue)
	add(c.MaxValue, MaxValue)
	add(c.Start, StartWith)
	add(c.Restart, RestartWith)
	if c.NoMinValue {
		cs = append(cs, NoMinValue())
	}
	if c.NoMaxValue {
		cs = append(cs, NoMaxValue())
	}
	if c.RestartDefault {
		cs = append(cs, RestartAtStart())
	}
	if c.Cycle != nil {
		cs = append(cs, setCycle(*c.Cycle))
	}
	return cs
}

func (d vectorDef) definition(t testing.TB) Definition {
	return Definition{
		Start: number(t, d.Start), Increment: number(t, d.Increment),
		Min: number(t, d.MinValue), Max: number(t, d.MaxValue), Cycle: d.Cycle,
	}
}

// TestPostgresVectors runs every recorded case on each store there is. With
// DDBSEQ_VECTORS=FILE it takes the cases of FILE.
func TestPostgresVectors(t *testing.T) {
	file := os.Getenv("DDBSEQ_VECTORS")
	if file == "" {
		file = "testdata/postgres_sequences.json"
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors in ", file)
	}
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			store := st.open(t)
			passed, skipped, differ := 0, map[string]int{}, 0
			for i, v := range vectors {
				if slices.Contains(v.Tags, "not_bigint") {
					skipped["not_bigint: a number that an int64 cannot say"]++
					continue
				}
				if slices.Contains(v.Tags, "alter_elsewhere") {
					differ++
				}
				r := &vectorRun{t: t, v: v, store: store, name: fmt.Sprintf("v%d-%s", i, v.Name)}
				if err := r.run(); err != nil {
					t.Errorf("%s: %v", v.Name, err)
				} else {
					passed++
				}
			}
			total := 0
			for _, why := range slices.Sorted(maps.Keys(skipped)) {
				fmt.Printf("vectors: %s: skipped %d: %s\n", st.name, skipped[why], why)
				total += skipped[why]
			}
			fmt.Printf("vectors: %s: %d of them alter_elsewhere, where the other sessions are refreshed after the ALTER\n", st.name, differ)
			fmt.Printf("vectors: %d passed, %d skipped\n", passed, total)
		})
	}
}

// vectorRun is one case. A session is an Allocator, CACHE n is a block size of n
// and a refill only when memory is empty.
type vectorRun struct {
	t        testing.TB
	v        vector
	store    *Store
	name     string
	cache    int64
	sessions map[int]*Allocator
}

func (r *vectorRun) open(cache int64) (*Allocator, error) {
	return New(r.store, func(o *Options) {
		o.MinBlock, o.MaxBlock, o.Runway = cache, cache, 0
		o.CreateMissing = false
		o.errorHold, o.forfeit = 0, true // a session that ends gives nothing back
	})
}

func (r *vectorRun) session(n int) *Allocator {
	if a := r.sessions[n]; a != nil {
		return a
	}
	a, err := r.open(r.cache)
	if err != nil {
		r.t.Fatal(err)
	}
	r.sessions[n] = a
	return a
}

func (r *vectorRun) close(n int) {
	if a := r.sessions[n]; a != nil {
		if err := a.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
		delete(r.sessions, n)
	}
}

func (r *vectorRun) run() error {
	ctx := context.Background()
	r.sessions = map[int]*Allocator{}
	defer func() {
		for n := range r.sessions {
			r.close(n)
		}
	}()
	r.cache = 1
	if r.v.Params.Cache != nil {
		r.cache = number(r.t, *r.v.Params.Cache)
	}
	bystander, err := r.open(1)
	if err != nil {
		return err
	}
	defer func() { _ = bystander.Close(ctx) }()

	cs := r.v.Params.clauses(r.t)
	err = gather(cs).checkCreate(r.name)
	if err == nil {
		_, err = r.open(r.cache)
	}
	if r.v.CreateError != nil {
		if got := vectorErrorOf(err); got != r.v.CreateError.Error {
			return fmt.Errorf("create: %s (%v), want %s", got, err, r.v.CreateError.Error)
		}
		if err := bystander.Create(ctx, r.name, cs...); r.v.CreateError.Error != "cache_not_positive" && err == nil {
			return errors.New("Create accepted it")
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := bystander.Create(ctx, r.name, cs...); err != nil {
		return err
	}
	d, err := bystander.Describe(ctx, r.name)
	if err != nil {
		return err
	}
	if want := r.v.Effective.definition(r.t); d.Definition != want {
		return fmt.Errorf("created %v, want %v", d.Definition, want)
	}
	for i, op := range r.v.Ops {
		if err := r.step(ctx, op, bystander); err != nil {
			return fmt.Errorf("op %d %s: %w", i, op.Op, err)
		}
	}
	return nil
}

func (r *vectorRun) step(ctx context.Context, op vectorOp, bystander *Allocator) error {
	switch op.Op {
	case "next":
		id, err := r.session(op.Session).Next(ctx, r.name)
		if op.Error != "" {
			ex, ok := errors.AsType[*ExhaustedError](err)
			if got := vectorErrorOf(err); got != op.Error || !ok || ex.Bound != op.Bound {
				return fmt.Errorf("%d, %v, want %s at %s", id, err, op.Error, op.Bound)
			}
			return nil
		}
		if err != nil || id != number(r.t, *op.Value) {
			return fmt.Errorf("%d, %v, want %s", id, err, *op.Value)
		}
	case "setval":
		a := r.session(op.Session)
		set := a.RestartAfter
		if !*op.IsCalled {
			set = a.Restart
		}
		err := set(ctx, r.name, number(r.t, *op.Set), AllowReuse())
		if got := vectorErrorOf(err); got != op.Error {
			return fmt.Errorf("%v, want %q", err, op.Error)
		}
	case "alter":
		return r.alter(ctx, op, bystander)
	case "drop_session":
		r.close(op.Session)
	case "state":
		d, err := bystander.Describe(ctx, r.name)
		if err != nil {
			return err
		}
		last := d.LastID
		if !d.Called {
			last = d.Next
		}
		if last != number(r.t, *op.LastValue) || d.Called != *op.IsCalled {
			return fmt.Errorf("%d called=%t, want %s called=%t", last, d.Called, *op.LastValue, *op.IsCalled)
		}
	default:
		return fmt.Errorf("unknown op")
	}
	return nil
}

func (r *vectorRun) alter(ctx context.Context, op vectorOp, bystander *Allocator) error {
	cs := append(op.Params.clauses(r.t), AllowReuse())
	a := r.session(op.Session)
	cache := r.cache
	var err error
	if op.Params.Cache != nil {
		cache = number(r.t, *op.Params.Cache)
		if _, cerr := r.open(cache); cerr != nil {
			// PostgreSQL checks CACHE last: only if nothing else is wrong.
			var it *item
			if it, err = r.store.backend.get(ctx, r.name); err == nil {
				if _, err = bystander.alteration(r.name, it, gather(cs), "t", "v", "b"); err == nil {
					err = cerr
				}
			}
		}
	}
	if err == nil {
		err = a.Alter(ctx, r.name, cs...)
	}
	if got := vectorErrorOf(err); got != op.Error {
		return fmt.Errorf("%v, want %q", err, op.Error)
	}
	if err != nil {
		return nil
	}
	d, err := bystander.Describe(ctx, r.name)
	if err != nil {
		return err
	}
	if want := op.Effective.definition(r.t); d.Definition != want {
		return fmt.Errorf("altered to %v, want %v", d.Definition, want)
	}
	for n, other := range r.sessions {
		if cache != r.cache {
			r.close(n) // the block size belongs to the Allocator
		} else if n != op.Session {
			if err := other.Refresh(ctx, r.name); err != nil {
				return err
			}
		}
	}
	r.cache = cache
	return nil
}

func vectorErrorOf(err error) string {
	switch de, ok := errors.AsType[*DefinitionError](err); {
	case err == nil:
		return ""
	case ok:
		return de.Rule
	case errors.Is(err, ErrExhausted):
		return "exhausted"
	case errors.Is(err, ErrOutOfBounds):
		return "setval_out_of_bounds"
	case errors.Is(err, ErrInvalidOptions) && strings.Contains(err.Error(), "MinBlock"):
		return "cache_not_positive"
	}
	return err.Error()
}
