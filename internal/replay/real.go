package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/bridge"
)

// onAllocator drives the real Allocator, on a Memory store as slow as store
// says, in virtual time.
//
// The calls come one at a time. One that finds IDs in memory takes its ID by
// TryNext, without a goroutine; one that does not waits in Next in a goroutine
// of its own, and is in the queue before the time moves on to the next call.
func onAllocator(z bridge.Sizing) driver {
	return func(l Load, store Store, probes []int64) (r Result) {
		inBubble(func() { r = newReality(l, z, store).run(probes) })
		return r
	}
}

// inBubble calls f in virtual time. Only synctest has that, and it wants a
// *testing.T. A program can have one of its own making, which serves as long as
// nothing is logged to it; the other way, testing.MainStart, is outside of the
// Go 1 promise and takes over the command line.
func inBubble(f func()) {
	testing.Init()
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}

// reality is one process with the real Allocator, and its store.
type reality struct {
	load   Load
	sizing bridge.Sizing
	store  Store
	base   time.Time // when the trace starts

	a     *ddbseq.Allocator
	seq   *ddbseq.Sequence
	admin *ddbseq.Allocator // reads the item at no cost of time

	mu          sync.Mutex
	rng         *rand.Rand // of latencies: the engine's stream
	mean, sigma float64
	last        int64 // what the item stands at
	committed   int64 // IDs written and not in memory yet
	r           Result
}

func newReality(l Load, z bridge.Sizing, store Store) *reality {
	w := &reality{load: l, sizing: z, store: store, base: time.Now().Add(-time.Duration(startAt)),
		rng: rand.New(rand.NewPCG(l.Seed, 0x5EED))}
	w.mean, w.sigma = store.lognormal()
	memory := ddbseq.Memory()
	w.admin = allocator(memory, nil)
	w.a = allocator(bridge.Intercept(memory, w.call).(*ddbseq.Store), func(o *ddbseq.Options) {
		o.CreateMissing = true // an intercepted store is not known for a Memory
		o.Runway, o.LeaseEvery, o.RateWindow = z.Runway, z.LeaseEvery, z.RateWindow
		o.MinBlock, o.MaxBlock = z.MinBlock, z.MaxBlock
		bridge.SetRand(o, w.rand())
	})
	var err error
	if w.seq, err = w.a.Sequence("replay"); err != nil {
		panic(err)
	}
	return w
}

func allocator(s *ddbseq.Store, opt func(*ddbseq.Options)) *ddbseq.Allocator {
	var opts []func(*ddbseq.Options)
	if opt != nil {
		opts = append(opts, opt)
	}
	a, err := ddbseq.New(s, opts...)
	if err != nil {
		panic(err)
	}
	return a
}

// rand returns the source of jitter: always the planner's, so that the planner on
// the engine and the one in the Allocator draw alike.
func (w *reality) rand() func() float64 { return func() float64 { return w.sizing.Jitter } }

func (w *reality) now() int64 { return int64(time.Since(w.base)) }

func (w *reality) until(at int64) { time.Sleep(time.Duration(at - w.now())) }

// call is the store: a call that succeeds takes effect after half of its time,
// and one that an outage is to fail is given up after Timeout, for the
// Allocator to repeat as it sees fit. The read before the first lease takes no
// time: the model has none, and a first lease that takes longer than the engine's
// would have all later ones a few IDs larger.
func (w *reality) call(_ context.Context, op, key string, do func() error) error {
	if op != "UpdateItem" {
		return do()
	}
	w.mu.Lock()
	took := time.Duration(math.Exp(w.mean + w.sigma*w.rng.NormFloat64()))
	now := w.now()
	down := w.store.down(now, now+int64(took))
	if down {
		w.r.Failed++
	}
	w.mu.Unlock()
	if down {
		time.Sleep(w.store.Timeout)
		return &bridge.Fault{MaybeApplied: true, Message: "an outage"}
	}
	time.Sleep(took / 2)
	err, n := do(), int64(0)
	if err == nil {
		n = w.wrote(key)
	}
	time.Sleep(took - took/2)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.committed -= n
	if n > 0 {
		w.r.Writes++
	}
	return err
}

// wrote returns how many IDs the write that was just done leased.
func (w *reality) wrote(key string) int64 {
	d, err := w.admin.Describe(context.Background(), key)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := d.LastID - w.last
	w.last = d.LastID
	w.committed += n
	w.r.MaxLease = max(w.r.MaxLease, n)
	return n
}

func (w *reality) run(probes []int64) Result {
	var calls sync.WaitGroup
	ctx := context.Background()
	calls.Go(func() {
		if err := w.a.Warm(ctx, w.seq.Name()); err != nil {
			panic(err)
		}
	})
	seen := int64(0) // writes after which the stock was looked at
	for i, at := range w.load.Arrivals {
		for len(probes) > 0 && probes[0] <= at {
			w.probe(probes[0], int64(i))
			probes = probes[1:]
		}
		w.until(at)
		w.mu.Lock()
		writes := w.r.Writes
		w.mu.Unlock()
		if writes > seen {
			seen = writes
			w.r.MaxStock = max(w.r.MaxStock, w.seq.Stats().Remaining)
		}
		if _, ok := w.seq.TryNext(); ok {
			continue
		}
		if writes == 0 {
			w.r.Cold++
		} else {
			w.r.Waits++
		}
		calls.Go(func() {
			if _, err := w.seq.Next(ctx); err != nil {
				panic(err)
			}
			if writes > 0 {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.r.MaxWait = max(w.r.MaxWait, time.Duration(w.now()-at))
			}
		})
	}
	for _, at := range probes {
		w.probe(at, int64(len(w.load.Arrivals)))
	}
	calls.Wait()
	w.mu.Lock()
	r := w.r
	w.store.Outages = nil // Close gives back, and is no part of this
	w.mu.Unlock()
	r.Issued = w.seq.Stats().Issued
	for _, a := range []*ddbseq.Allocator{w.a, w.admin} {
		if err := a.Close(ctx); err != nil {
			panic(err)
		}
	}
	return r
}

// probe looks at the state at a moment, arrived calls after the start.
func (w *reality) probe(at, arrived int64) {
	w.until(at)
	s := w.seq.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.r.Probes = append(w.r.Probes, Probe{At: at, Stock: s.Remaining, Waiting: arrived - s.Issued, Committed: w.committed, Arrived: arrived})
}

// busiest cuts l to n calls around its busiest bucket, or to all if n is 0.
func busiest(l Load, n int) Load {
	if n <= 0 || n >= len(l.Arrivals) {
		return l
	}
	width, from, peak, most := int64(l.Bucket*float64(second)), 0, 0, 0
	for to, at := range l.Arrivals {
		for l.Arrivals[from] <= at-width {
			from++
		}
		if to-from > most {
			most, peak = to-from, (from+to)/2
		}
	}
	from = min(max(0, peak-n/2), len(l.Arrivals)-n-1)
	start, end := l.Arrivals[from], l.Arrivals[from+n]
	cut := make([]int64, n)
	for i := range cut {
		cut[i] = l.Arrivals[from+i] - start
	}
	l.Arrivals, l.Period = cut, max(end-start, cut[n-1]+1)
	l.To = l.From + float64(end)/float64(second)
	l.From += float64(start) / float64(second)
	return l
}

// The real Allocator and the planner on the engine must make the same decisions
// at the same times, so that without outages they differ by no more than this.
// (They have been the same to the ID; callers and replies that come in the same
// nanosecond may be taken in either order.) With outages they may differ: the
// engine repeats a lease at once when an attempt is given up, the Allocator after
// a pause. Only that must not make a caller wait where the planner says none does.
const tolerance = 0.01

// agreement prints how the real Allocator's rows stand against the planner's,
// and reports whether they agree.
func agreement(w io.Writer, planned, actual []Row) bool {
	agree := true
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scale\ttrace\tIDs\tmean /s\twaits /M\tmax wait, ms\twaits with outages\twrites /M\tlost IDs\tsurvived p5, s\tmedian, s\tverdict\t")
	for i, r := range actual {
		p, verdict := planned[i], "agrees"
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t", r.Load.Scale, r.Load.Trace, r.IDs, short(r.MeanRate))
		for _, c := range []struct {
			name            string
			planned, actual float64
			outages         bool
		}{
			{"waits", p.WaitPerM, r.WaitPerM, false},
			{"max wait", p.MaxWaitMs, r.MaxWaitMs, false},
			{"outages", p.OutageWaitPerM, r.OutageWaitPerM, true},
			{"writes", p.WritesPerM, r.WritesPerM, false},
			{"lost", p.LostMean, r.LostMean, false},
			{"p5", p.SurviveP5, r.SurviveP5, false},
			{"median", p.SurviveMed, r.SurviveMed, false},
		} {
			if bad := math.Abs(c.actual-c.planned) > tolerance*c.planned; c.outages && c.planned == 0 && c.actual > 0 || bad && !c.outages {
				agree, verdict = false, c.name+" DIFFER"
			}
			fmt.Fprintf(t, "%s (%s)\t", short(c.actual), short(c.planned))
		}
		fmt.Fprintf(t, "%s\t\n", verdict)
	}
	_ = t.Flush() // w keeps its own error
	return agree
}
