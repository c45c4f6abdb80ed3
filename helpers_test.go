package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A fault is what becomes of one call to a faultStore.
type fault struct {
	err   error
	after bool // the call is carried out first, and only its answer is lost
	delay time.Duration
	hang  bool // until its context ends; with deaf, until the test releases it
	deaf  bool
}

// A faultStore makes the calls to a store slow or fail, as a test says, and
// counts them.
type faultStore struct {
	backend
	release chan struct{} // closed: deaf calls return

	mu       sync.Mutex
	script   func(op, key string, call int) fault
	calls    map[string]int // by key, of both operations
	inFlight map[string]int
	most     map[string]int // in flight at once, by key
}

func withFaults(s *Store, script func(op, key string, call int) fault) (*Store, *faultStore) {
	f := &faultStore{
		backend: s.backend, script: script, release: make(chan struct{}),
		calls: map[string]int{}, inFlight: map[string]int{}, most: map[string]int{},
	}
	return &Store{backend: f}, f
}

// set replaces the script; nil lets everything through.
func (f *faultStore) set(script func(op, key string, call int) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

func (f *faultStore) count(key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[key]
}

func (f *faultStore) mostAtOnce(key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most[key]
}

func (f *faultStore) call(ctx context.Context, op, key string, do func() error) error {
	f.mu.Lock()
	f.calls[key]++
	f.inFlight[key]++
	f.most[key] = max(f.most[key], f.inFlight[key])
	var what fault
	if f.script != nil {
		what = f.script(op, key, f.calls[key])
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inFlight[key]--
	}()
	ended := func() error {
		return &LeaseError{Sequence: key, Table: f.table(), Op: op, MaybeApplied: true, Err: ctx.Err()}
	}
	if what.after {
		if err := do(); err != nil {
			return err
		}
	}
	switch {
	case what.deaf:
		<-f.release
		return ended()
	case what.hang:
		<-ctx.Done()
		return ended()
	case what.delay > 0:
		select {
		case <-time.After(what.delay):
		case <-ctx.Done():
			return ended()
		}
	}
	switch {
	case what.err != nil:
		return what.err
	case what.after:
		return errors.New("a fault that does something after needs an err")
	}
	return do()
}

func (f *faultStore) get(ctx context.Context, key string) (it *item, err error) {
	err = f.call(ctx, "GetItem", key, func() (err error) {
		it, err = f.backend.get(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return it, nil
}

func (f *faultStore) apply(ctx context.Context, ch *change) (it *item, err error) {
	err = f.call(ctx, "UpdateItem", ch.key, func() (err error) {
		it, err = f.backend.apply(ctx, ch)
		return err
	})
	if err != nil {
		return nil, err
	}
	return it, nil
}

// Scripts.

func slow(d time.Duration) func(string, string, int) fault {
	return func(string, string, int) fault { return fault{delay: d} }
}

func always(err error) func(string, string, int) fault {
	return func(string, string, int) fault { return fault{err: err} }
}

var errBoom = errors.New("boom")

// transient is an error that a retry may help against.
func transient() error { return &LeaseError{Op: "UpdateItem", Table: "t", Err: errBoom} }

// lost is the error of a call that was carried out.
func lost() error { return &LeaseError{Op: "UpdateItem", Table: "t", MaybeApplied: true, Err: errBoom} }

// denied is an error that no retry helps against.
func denied() error {
	return &LeaseError{Op: "UpdateItem", Table: "t", Permanent: true, kind: ErrAccessDenied, Err: errBoom}
}

// patient keeps permanent errors for ever, so that nothing is asked before a
// test calls forgive.
func patient(o *Options) { o.errorHold, o.forfeit = 24*time.Hour, true }

// forgive ends the time for which a permanent error is kept.
func forgive(s *Sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = 0
}

// must returns v of a call that must not fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// allDifferent checks that no ID occurs twice, and returns how many there are.
func allDifferent(t testing.TB, lists ...[]int64) int {
	t.Helper()
	all := slices.Concat(lists...)
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Fatalf("ID %d was handed out twice", all[i])
		}
	}
	return len(all)
}

// allFromTo checks that the IDs are those from first to last without a gap.
func allFromTo(t testing.TB, first, last int64, lists ...[]int64) {
	t.Helper()
	n := allDifferent(t, lists...)
	all := slices.Concat(lists...)
	if n == 0 || slices.Min(all) != first || slices.Max(all) != last || int64(n) != last-first+1 {
		t.Fatalf("%d IDs from %d to %d, want all from %d to %d", n, slices.Min(all), slices.Max(all), first, last)
	}
}

// ours returns the stacks of the goroutines that run code of Allocators.
func ours() []string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "ddbseq.(*core).refill") || strings.Contains(stack, "ddbseq.(*Allocator)") ||
			strings.Contains(stack, "ddbseq.(*core).later") {
			if !strings.Contains(stack, "testing.tRunner") {
				out = append(out, stack)
			}
		}
	}
	return out
}

// checkLeaks fails the test if goroutines of closed Allocators stay.
func checkLeaks(t testing.TB) {
	t.Helper()
	if left := leftBehind(); len(left) > 0 {
		t.Errorf("%d goroutines were left behind:\n%s", len(left), strings.Join(left, "\n\n"))
	}
}

// leftBehind returns the stacks of goroutines of Allocators that stay: one may
// still be on its last instruction when Close returns. Inside a synctest bubble
// time stands still meanwhile, and the rounds are counted.
func leftBehind() (left []string) {
	began := time.Now()
	for round := 0; round < 10_000 || !time.Now().Equal(began) && time.Since(began) < 5*time.Second; round++ {
		if left = ours(); len(left) == 0 {
			break
		}
		runtime.Gosched()
	}
	return left
}

// sequenceOf returns the named sequence.
func sequenceOf(t testing.TB, a *Allocator, name string, opts ...SequenceOption) *Sequence {
	t.Helper()
	s, err := a.Sequence(name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A history checks that calls which do not overlap in time are in order, with
// the highest ID that any finished call returned.
type history struct{ highest atomic.Int64 }

func (h *history) begin() int64 { return h.highest.Load() }

// end is for the ID of a call that began at highest before. It returns an error
// if the ID does not lie beyond.
func (h *history) end(before, first, last int64) error {
	if first <= before {
		return fmt.Errorf("a call returned %d after another had returned %d", first, before)
	}
	for {
		old := h.highest.Load()
		if last <= old || h.highest.CompareAndSwap(old, last) {
			return nil
		}
	}
}
