package ddbseq

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// A new goroutine starts in the queue of the processor that made it. Where all
// are busy it would stay there for 10 ms; that the one caller who caused the
// refill yields starts it at once. On one processor this needs no clock: the
// store has been called when the caller's Next returns.
func TestARefillStartsThoughAllProcessorsAreBusy(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	store, faults := withFaults(Memory(), nil)
	a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 1_000, 1_000 })
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	var caused, started int
	for range 50_000 {
		b := s.cur.Load()
		armed := atomic.LoadInt64(&b.soft) < b.end
		calls := faults.count("s")
		must(s.Next(t.Context()))
		s.mu.Lock()
		refill := s.busy || faults.count("s") > calls
		s.mu.Unlock()
		if armed && refill {
			caused++
			if faults.count("s") > calls {
				started++
			}
		}
	}
	// The scheduler may do something else now and then, and under the race
	// detector it does so on purpose.
	if caused < 10 || started < caused*3/4 {
		t.Errorf("of %d refills that a caller caused, %d called the store before that caller's Next returned", caused, started)
	}
}

// While memory holds IDs nobody waits, however small the blocks: who finds one
// used up goes on to the next by himself.
func TestHandOverBetweenBlocksMakesNobodyWait(t *testing.T) {
	const size, blocks, workers = 10, maxChain - 4, 20
	for range 50 {
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, fixed(size), func(o *Options) { o.forfeit = true })
		s := sequenceOf(t, a, "s")
		must(s.Next(t.Context()))
		faults.set(func(string, string, int) fault { return fault{hang: true} }) // nothing more comes
		s.mu.Lock()
		for s.stock() < size*blocks {
			s.install(leased{first: s.tail.at(s.tail.end), step: 1, n: size})
		}
		n := s.stock()
		s.mu.Unlock()

		var (
			h    history
			left atomic.Int64
			errs [workers]error
			wg   sync.WaitGroup
		)
		left.Store(n)
		for w := range workers {
			wg.Go(func() {
				for errs[w] == nil && left.Add(-1) >= 0 {
					before := h.begin()
					id, err := s.Next(t.Context())
					if err == nil {
						err = h.end(before, id, id)
					}
					errs[w] = err
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.Waited != 1 || st.Remaining != 0 { // the one who came first of all
			t.Fatalf("with IDs in memory callers waited: %+v", st)
		}
	}
}
