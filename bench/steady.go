package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ddbseq/ddbseq"
)

// The steady load: a call is due every 20 microseconds, whatever became of the
// one before.
const (
	steadyRate  = 50_000
	steadyEvery = time.Second / steadyRate
)

// steady measures how long Next takes under a steady load, first in peace and
// then with an outage of the store of a sixth of the time (10 s of a minute).
func steady(out io.Writer, r *rig, d time.Duration) error {
	ctx := context.Background()
	a, err := r.allocator()
	if err != nil {
		return err
	}
	defer func() { _ = a.Close(ctx) }() // its error would be that of the rig
	s, err := a.Sequence("steady")
	if err != nil {
		return err
	}
	if err := a.Warm(ctx, "steady"); err != nil {
		return err
	}
	warm := d / 4
	fmt.Fprintf(out, "\nsteady load of %s IDs/s for %v after %v of warming up\n", digits0(steadyRate), d, warm)
	if _, err := load(ctx, s, warm); err != nil {
		return err
	}
	for _, outage := range []time.Duration{0, d / 6} {
		what := "in peace"
		var done sync.WaitGroup
		if outage > 0 {
			what = fmt.Sprintf("store down for %v", outage)
			done.Go(func() {
				time.Sleep(d / 6)
				r.proxy.Down()
				time.Sleep(outage)
				err = r.proxy.Up()
			})
		}
		before := s.Stats()
		calls, loadErr := load(ctx, s, d)
		done.Wait()
		if err := errors.Join(err, loadErr); err != nil {
			return err
		}
		st := s.Stats().Sub(before)
		fmt.Fprintf(out, "\n%s: %d waits, %d leases, %.4f leases/1,000,000 IDs\n", what, st.Waited, st.Leases, perMillion(st))
		printCalls(out, "from when it was due", calls, func(c *timedCall) *histogram { return &c.response })
		printCalls(out, "the call alone", calls, func(c *timedCall) *histogram { return &c.service })
	}
	return nil
}

// A timedCall is one kind of call, and how long those took: from when they were
// due, and from when they began.
type timedCall struct {
	name              string
	call              func(context.Context) (int64, error)
	response, service histogram
}

//go:noinline
func emptyCall(context.Context) (int64, error) { return 1, nil }

// load puts the steady load on s and times each Next, and as often an empty call
// and a bare locked add, which are due between two of them in an order by chance.
//
// How long a caller waits is the time from when the call was due: an interrupt
// delays what was due meanwhile, whatever it is, and a slow Next those after it.
// The call alone is also met by the fewer interrupts the shorter it is; what that
// comes to can be seen of the add. There is no sleep between the calls: what comes
// after one is slow, and that would hide the difference.
func load(ctx context.Context, s *ddbseq.Sequence, d time.Duration) ([]*timedCall, error) {
	var counter atomic.Int64
	calls := []*timedCall{
		{name: "Next", call: s.Next},
		{name: "bare locked add", call: func(context.Context) (int64, error) { return counter.Add(1), nil }},
		{name: "empty call", call: emptyCall},
	}
	order := slices.Clone(calls)
	start := time.Now()
	for round := time.Duration(0); round < d; round += steadyEvery {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for i, c := range order {
			due := round + steadyEvery*time.Duration(i)/time.Duration(len(order))
			began := time.Since(start)
			for began < due {
				began = time.Since(start)
			}
			_, err := c.call(ctx)
			ended := time.Since(start)
			if err != nil {
				return nil, err
			}
			c.response.add(ended - due)
			c.service.add(ended - began)
		}
	}
	return calls, nil
}

// printCalls prints quantiles of calls, the tails also in relation to the last's.
func printCalls(out io.Writer, what string, calls []*timedCall, of func(*timedCall) *histogram) {
	fmt.Fprintf(out, "%-22s %9s %9s %9s %9s %9s %9s\n", what, "calls", "p50", "p99", "p99.99", "max", "p99.99 x")
	floor := of(calls[len(calls)-1]).quantile(0.9999)
	for _, c := range calls {
		h := of(c)
		fmt.Fprintf(out, "  %-20s %9d %9v %9v %9v %9v %9.2f\n", c.name, h.count, short(h.quantile(0.5)), short(h.quantile(0.99)),
			short(h.quantile(0.9999)), short(h.most), float64(h.quantile(0.9999))/float64(floor))
	}
}

// A histogram counts durations in buckets of a 32nd of their size.
type histogram struct {
	buckets [64 * 32]int64
	count   int64
	most    time.Duration
}

const histogramBits = 5

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 1<<histogramBits {
		return int(v)
	}
	shift := bits.Len64(v) - histogramBits - 1
	return (shift+1)<<histogramBits + int(v>>shift) - 1<<histogramBits
}

// bound returns the smallest duration of the bucket after i.
func bound(i int) time.Duration {
	i++
	if i < 1<<(histogramBits+1) {
		return time.Duration(i)
	}
	shift := i>>histogramBits - 1
	return time.Duration(i&(1<<histogramBits-1)+1<<histogramBits) << shift
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucket(d)]++
	h.count++
	h.most = max(h.most, d)
}

// quantile returns a bound that a share q of all durations did not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(q * float64(h.count))
	for i, n := range &h.buckets {
		if left -= n; left < 0 {
			return min(bound(i), h.most)
		}
	}
	return h.most
}

func short(d time.Duration) time.Duration {
	if d > 10*time.Microsecond {
		return d.Round(100 * time.Nanosecond)
	}
	return d
}
