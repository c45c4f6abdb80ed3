package ddbseq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/emulator"
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
	Increment      *vectorInt `json:"increment"`
	MinValue       *vectorInt `json:"minvalue"`
	MaxValue       *vectorInt `json:"maxvalue"`
	Start          *vectorInt `json:"start"`
	Cache          *vectorInt `json:"cache"`
	Cycle          *bool      `json:"cycle"`
	NoMinValue     bool       `json:"no_minvalue"`
	NoMaxValue     bool       `json:"no_maxvalue"`
	Restart        *vectorInt `json:"restart"`
	RestartDefault bool       `json:"restart_default"`
}

type vectorDef struct {
	Start, MinValue, MaxValue, Increment, Cache vectorInt
	Cycle                                       bool
}

type vectorError struct {
	Error string `json:"error"`
}

type vectorOp struct {
	Op        string         `json:"op"`
	Session   int            `json:"session"`
	Value     *vectorInt     `json:"value"`
	Error     string         `json:"error"`
	Bound     string         `json:"bound"`
	Set       *vectorInt     `json:"set"`
	IsCalled  *bool          `json:"is_called"`
	LastValue *vectorInt     `json:"last_value"`
	Params    *vectorClauses `json:"params"`
	Effective *vectorDef     `json:"effective"`
}

// vectorInt is a decimal string. One that does not fit int64 saturates: a case
// may hold a number whose error is judged only after another one.
type vectorInt int64

func (n *vectorInt) UnmarshalJSON(data []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return err
	}
	*n = vectorInt(v)
	return nil
}

// skip returns why a case cannot be run, if it cannot.
func (v vector) skip() string {
	if slices.Contains(v.Tags, "not_bigint") || v.CreateError != nil && v.CreateError.Error == "not_bigint" ||
		slices.ContainsFunc(v.Ops, func(op vectorOp) bool { return op.Error == "not_bigint" }) {
		return "not_bigint: a number that an int64 cannot say"
	}
	return ""
}

func (c vectorClauses) clauses() []Clause {
	var cs []Clause
	add := func(n *vectorInt, clause func(int64) Clause) {
		if n != nil {
			cs = append(cs, clause(int64(*n)))
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

func (d *vectorDef) is(have Definition) error {
	if d == nil {
		return errors.New("the case does not say what is in effect")
	}
	want := Definition{Start: int64(d.Start), Increment: int64(d.Increment), Min: int64(d.MinValue), Max: int64(d.MaxValue), Cycle: d.Cycle}
	if have != want {
		return fmt.Errorf("it is %v, want %v", have, want)
	}
	return nil
}

const vectorWorkers = 8

// TestPostgresVectors runs every recorded case on each store there is, and on
// the slowest one a part of them. With DDBSEQ_VECTORS=FILE it takes the cases of
// FILE. What it counts is shown with -v.
func TestPostgresVectors(t *testing.T) {
	file := cmp.Or(os.Getenv("DDBSEQ_VECTORS"), "testdata/postgres_sequences.json")
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
			every := 1
			switch {
			case st.name == string(emulator.Dynalite):
				every = 8
			case st.name == string(emulator.Dynoxide) && raceEnabled:
				every = 4 // the SDK is four times as slow; memory runs them all
			}
			runVectors(t, st, vectors, every)
		})
	}
}

func runVectors(t *testing.T, st testStore, vectors []vector, every int) {
	t.Helper()
	store := st.open(t)
	cases := make(chan *vectorRun)
	var workers sync.WaitGroup
	var mu sync.Mutex
	passed := 0 // guarded by mu
	for range vectorWorkers {
		workers.Go(func() {
			for r := range cases {
				err := r.run()
				mu.Lock()
				if err != nil {
					t.Errorf("%s: %v", r.v.Name, err)
				} else {
					passed++
				}
				mu.Unlock()
			}
		})
	}
	skipped, differ, left := map[string]int{}, 0, 0
	for i, v := range vectors {
		if why := v.skip(); why != "" {
			skipped[why]++
			continue
		}
		if i%every != 0 {
			left++
			continue
		}
		if slices.Contains(v.Tags, "alter_elsewhere") {
			differ++
		}
		cases <- &vectorRun{v: v, store: store, name: fmt.Sprintf("v%d-%.99s", i, v.Name)}
	}
	close(cases)
	workers.Wait()

	total := 0
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Printf("vectors: %s: skipped %d: %s\n", st.name, skipped[why], why)
		total += skipped[why]
	}
	if left > 0 {
		fmt.Printf("vectors: %s: runs every %dth case, %d are left to the other stores\n", st.name, every, left)
	}
	fmt.Printf("vectors: %s: %d of them alter_elsewhere, where the other sessions are refreshed after the ALTER\n", st.name, differ)
	fmt.Printf("vectors: %d passed, %d skipped\n", passed, total)
}

// vectorRun is one case. A session is an Allocator, CACHE n is a block size of n
// and a refill only when memory is empty.
type vectorRun struct {
	v         vector
	store     *Store
	name      string
	cache     int64
	sessions  map[int]*Allocator
	bystander *Allocator
}

// open returns an Allocator that does as a PostgreSQL session does: what it
// holds when it ends is lost.
func (r *vectorRun) open(cache int64) (*Allocator, error) {
	return New(r.store, func(o *Options) {
		o.MinBlock, o.MaxBlock, o.Runway = cache, cache, 0
		o.CreateMissing = false
		o.forfeit = true
	})
}

func (r *vectorRun) session(n int) (*Allocator, error) {
	if a := r.sessions[n]; a != nil {
		return a, nil
	}
	a, err := r.open(r.cache)
	if err == nil {
		r.sessions[n] = a
	}
	return a, err
}

func (r *vectorRun) drop(n int) error {
	a := r.sessions[n]
	if a == nil {
		return nil
	}
	delete(r.sessions, n)
	return a.Close(context.Background())
}

func (r *vectorRun) run() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r.sessions, r.cache = map[int]*Allocator{}, 1
	if r.bystander, err = r.open(1); err != nil {
		return err
	}
	defer func() {
		for _, n := range slices.Collect(maps.Keys(r.sessions)) {
			err = errors.Join(err, r.drop(n))
		}
		err = errors.Join(err, r.bystander.Close(context.Background()))
	}()
	if r.v.Params.Cache != nil {
		r.cache = int64(*r.v.Params.Cache)
	}
	cs := r.v.Params.clauses()
	if want := r.v.CreateError; want != nil {
		cerr := r.bystander.Create(ctx, r.name, cs...)
		if cerr == nil {
			// CACHE is checked last, and where it belongs: in the options.
			_, cerr = r.open(r.cache)
		}
		if got := vectorErrorOf(cerr); got != want.Error {
			return fmt.Errorf("create: %s (%w), want %s", got, cerr, want.Error)
		}
		return nil
	}
	if err := r.bystander.Create(ctx, r.name, cs...); err != nil {
		return err
	}
	d, err := r.bystander.Describe(ctx, r.name)
	if err != nil {
		return err
	}
	if err := r.v.Effective.is(d.Definition); err != nil {
		return fmt.Errorf("created: %w", err)
	}
	for i, op := range r.v.Ops {
		if err := r.step(ctx, op); err != nil {
			return fmt.Errorf("op %d %s: %w", i, op.Op, err)
		}
	}
	return nil
}

func (r *vectorRun) step(ctx context.Context, op vectorOp) error {
	switch op.Op {
	case "next":
		return r.next(ctx, op)
	case "setval":
		return r.setval(ctx, op)
	case "alter":
		return r.alter(ctx, op)
	case "drop_session":
		return r.drop(op.Session)
	case "state":
		d, err := r.bystander.Describe(ctx, r.name)
		if err != nil {
			return err
		}
		last := d.LastID
		if !d.Called {
			last = d.Next
		}
		switch {
		case op.LastValue == nil || op.IsCalled == nil:
			return errors.New("the case does not say which")
		case last != int64(*op.LastValue) || d.Called != *op.IsCalled:
			return fmt.Errorf("%d called=%t, want %d called=%t", last, d.Called, *op.LastValue, *op.IsCalled)
		}
		return nil
	}
	return errors.New("the test does not know this operation")
}

func (r *vectorRun) next(ctx context.Context, op vectorOp) error {
	a, err := r.session(op.Session)
	if err != nil {
		return err
	}
	unhold(a, r.name)
	id, err := a.Next(ctx, r.name)
	if op.Error != "" {
		ex, ok := errors.AsType[*ExhaustedError](err)
		if got := vectorErrorOf(err); got != op.Error || !ok || ex.Bound != op.Bound {
			return fmt.Errorf("%d, %w, want %s at %s", id, err, op.Error, op.Bound)
		}
		return nil
	}
	if err == nil && op.Value == nil {
		err = errors.New("the case does not say which")
	}
	if err == nil && id != int64(*op.Value) {
		err = fmt.Errorf("%d, want %d", id, *op.Value)
	}
	return err
}

func (r *vectorRun) setval(ctx context.Context, op vectorOp) error {
	a, err := r.session(op.Session)
	if err != nil || op.Set == nil || op.IsCalled == nil {
		return fmt.Errorf("setval of what? (%w)", err)
	}
	set := a.RestartAfter
	if !*op.IsCalled {
		set = a.Restart
	}
	err = set(ctx, r.name, int64(*op.Set), AllowReuse())
	if got := vectorErrorOf(err); got != op.Error {
		return fmt.Errorf("%w, want %q", err, op.Error)
	}
	return nil
}

func (r *vectorRun) alter(ctx context.Context, op vectorOp) error {
	a, err := r.session(op.Session)
	if err != nil || op.Params == nil {
		return fmt.Errorf("alter to what? (%w)", err)
	}
	cs := append(op.Params.clauses(), AllowReuse())
	cache := r.cache
	if op.Params.Cache != nil {
		cache = int64(*op.Params.Cache)
		if _, cerr := r.open(cache); cerr != nil {
			// PostgreSQL checks CACHE last: only if nothing else is wrong.
			var it *item
			if it, err = r.store.backend.get(ctx, r.name); err == nil {
				if _, err = r.bystander.alteration(r.name, it, gather(cs), "t", "v", "b"); err == nil {
					err = cerr
				}
			}
		}
	}
	if err == nil {
		err = a.Alter(ctx, r.name, cs...)
	}
	if got := vectorErrorOf(err); got != op.Error {
		return fmt.Errorf("%w, want %q", err, op.Error)
	}
	if err != nil {
		return nil //nolint:nilerr // it is the one that was wanted
	}
	d, err := r.bystander.Describe(ctx, r.name)
	if err != nil {
		return err
	}
	if err := op.Effective.is(d.Definition); err != nil {
		return fmt.Errorf("altered: %w", err)
	}
	for _, n := range slices.Collect(maps.Keys(r.sessions)) {
		switch {
		case op.Params.Cache != nil:
			// The block size belongs to the Allocator. PostgreSQL ends
			// everybody's block here as well.
			err = r.drop(n)
		case n != op.Session:
			err = r.sessions[n].Refresh(ctx, r.name)
		}
		if err != nil {
			return err
		}
	}
	r.cache = cache
	return nil
}

// unhold makes a ask the store again although it has just failed for good.
func unhold(a *Allocator, name string) {
	if s := a.known(name); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = 0
	}
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
