package main

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A contender is one way of making IDs.
type contender struct {
	name  string
	kind  kind
	batch int           // IDs per call; 0 is 1
	slice time.Duration // the shortest that shows it, if it has a period of its own

	// open gets it ready and returns the loop to be measured and what ends it.
	open func() (loop, func(), error)
}

type kind int

const (
	floor kind = iota // a locked instruction and nothing else
	ours
	peer       // makes IDs in the process, as we do
	transcript // the same, written here after a published description
	today      // one round trip for each ID
)

// A loop makes n IDs and stores each where its worker says. Every contender
// brings its own, so that a Next that can be inlined is.
type loop func(w *worker, n int) error

// A worker is one goroutine's share of a sample.
type worker struct {
	_     [64]byte
	out   int64 // the store that a caller makes of the ID
	index int
	ids   []int64
	_     [64]byte
}

func newWorker(i int) *worker { return &worker{index: i, ids: make([]int64, fillSize)} }

// A column is a number of goroutines.
type column struct {
	name       string
	goroutines int
}

var columns = []column{{"serial", 1}, {"2 cores", 2}, {"64 goroutines", 64}, {"128 goroutines", 128}}

// A meter times one contender in one column.
type meter struct {
	run     loop
	batch   int
	slice   time.Duration
	workers []*worker
	n       int // IDs that one goroutine makes in one slice
}

func newMeter(c contender, run loop, goroutines int) *meter {
	m := &meter{run: run, batch: max(1, c.batch), slice: max(sliceTime, c.slice)}
	if goroutines > 2 {
		m.slice = max(crowdTime, c.slice)
	}
	for i := range goroutines {
		m.workers = append(m.workers, newWorker(i))
	}
	return m
}

// A sample is made of slices, so short that many of them are not interrupted by
// the other processes of the machine. Many goroutines take longer to start.
const (
	sliceTime = 500 * time.Microsecond
	crowdTime = 2 * time.Millisecond
)

// calibrate finds the n with which a slice takes about as long as it should. It
// goes by the shortest of a few: one that was interrupted says nothing.
func (m *meter) calibrate() error {
	for m.n = m.batch; ; {
		shortest := time.Duration(math.MaxInt64)
		for range 5 {
			_, took, _, err := m.once()
			if err != nil {
				return err
			}
			shortest = max(1, min(shortest, took))
			if shortest < m.slice/2 {
				break
			}
		}
		if shortest >= m.slice/2 {
			m.n = m.round(int(float64(m.n) * float64(m.slice) / float64(shortest)))
			return nil
		}
		m.n = m.round(m.n * int(min(10, max(2, m.slice/2/shortest))))
	}
}

func (m *meter) round(n int) int { return max(1, n/m.batch) * m.batch }

// sample returns the nanoseconds that the process takes for one ID. It goes on
// until slices of d together were undisturbed, or for some times d. If there was
// none it returns the median of the others.
func (m *meter) sample(d time.Duration) (ns float64, quiet bool, err error) {
	longest := 5 * d
	if len(m.workers) > 2 {
		longest = 10 * d // it has to find all processors free
	}
	var (
		ids        int
		clean, all time.Duration
		dirty      []float64
	)
	for clean < d && all < longest {
		before := interruptions()
		n, took, busy, err := m.once()
		if err != nil {
			return 0, false, err
		}
		all += took
		if busy && interruptions() == before {
			ids += n
			clean += took
		} else {
			dirty = append(dirty, float64(took)/float64(n))
		}
	}
	if ids == 0 {
		return median(dirty), false, nil
	}
	return float64(clean) / float64(ids), true, nil
}

// once is one slice: it has each worker make m.n IDs and returns how many were
// made in what time, and whether as many processors took part as should.
func (m *meter) once() (ids int, took time.Duration, busy bool, err error) {
	switch len(m.workers) {
	case 1:
		ids, took, err = m.alone()
		return ids, took, true, err
	case 2:
		ids, took, err = m.pair()
		return ids, took, true, err
	}
	return m.crowd()
}

func (m *meter) alone() (int, time.Duration, error) {
	start := time.Now()
	err := m.run(m.workers[0], m.n)
	return m.n, time.Since(start), err
}

// pair has two threads at work on a processor each. The first does its share,
// the other goes on until then: neither is ever alone, and nobody looks at a
// clock. What they look at instead they do once in about 100 IDs, because the
// store of a loop counter before each locked add would cost 2 ns an ID.
func (m *meter) pair() (int, time.Duration, error) {
	chunk := m.round(min(100, max(1, m.n/10)))
	var (
		ready, done atomic.Int32
		made        [2]int
		took        time.Duration
		errs        [2]error
		wg          sync.WaitGroup
	)
	for i := range 2 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer pin(i)()
			w, n := m.workers[i], 0
			for ready.Add(1); ready.Load() < 2; { // both are there: no waiting for a wake-up
			}
			start := time.Now()
			for errs[i] == nil && done.Load() == 0 && (i == 1 || n < m.n) {
				errs[i] = m.run(w, chunk)
				n += chunk
			}
			if i == 0 {
				took = time.Since(start)
			}
			done.Store(1)
			made[i] = n
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, 0, err
		}
	}
	return made[0] + made[1], took, nil
}

// crowd has many goroutines do a share each, all of which get to run: those of
// a fixed time would not, as each may keep its processor for 10 ms.
func (m *meter) crowd() (ids int, took time.Duration, busy bool, err error) {
	var (
		errs  = make([]error, len(m.workers))
		spent = make([]time.Duration, len(m.workers))
		gate  = make(chan struct{})
		wg    sync.WaitGroup
	)
	for i, w := range m.workers {
		wg.Go(func() {
			<-gate
			start := time.Now()
			errs[i] = m.run(w, m.n)
			spent[i] = time.Since(start)
		})
	}
	start := time.Now()
	close(gate)
	wg.Wait()
	took = time.Since(start)
	var sum time.Duration
	for i := range m.workers {
		if errs[i] != nil {
			return 0, 0, false, errs[i]
		}
		sum += spent[i]
	}
	processors := min(len(m.workers), runtime.GOMAXPROCS(0))
	return m.n * len(m.workers), took, sum >= took*time.Duration(processors)*8/10, nil
}

// An entry is a contender that is open, with what was measured of it by column.
type entry struct {
	contender
	close  func()
	meters []*meter
	rounds [][]round // by column
}

// A round is what one round has shown of one contender in one column.
type round struct {
	ns    float64
	ratio float64 // to the bare add of this round
	quiet bool    // neither of them was disturbed
}

func (c contender) start() (*entry, error) {
	run, end, err := c.open()
	if err != nil {
		return nil, err
	}
	e := &entry{contender: c, close: end, rounds: make([][]round, len(columns))}
	for _, col := range columns {
		m := newMeter(c, run, col.goroutines)
		if err := m.calibrate(); err != nil {
			end()
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		e.meters = append(e.meters, m)
	}
	return e, nil
}
