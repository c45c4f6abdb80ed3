package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"sync"
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
	if _, _, err := load(ctx, s, warm); err != nil {
		return err
	}
	fmt.Fprintf(out, "%-28s %9s %9s %9s %9s %9s %8s %8s %22s\n", "", "calls", "p50", "p99", "p99.99", "max", "waits", "leases", "leases/1,000,000 IDs")
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
		next, empty, loadErr := load(ctx, s, d)
		done.Wait()
		if err := errors.Join(err, loadErr); err != nil {
			return err
		}
		st := s.Stats().Sub(before)
		next.print(out, what)
		fmt.Fprintf(out, " %8d %8d %22.4f\n", st.Waited, st.Leases, perMillion(st))
		empty.print(out, "  an empty call, meanwhile")
		fmt.Fprintf(out, "\n  p99.99 of Next is %.2f of the empty call's\n",
			float64(next.quantile(0.9999))/float64(empty.quantile(0.9999)))
	}
	return nil
}

//go:noinline
func emptyCall(context.Context) (int64, error) { return 1, nil }

// load puts the steady load on s and times each Next and, right before or after
// it, an empty call. It does not sleep between the calls: what comes after a
// pause is slow, whatever it is, and that would hide the difference. Neither is
// the time taken from when a call was due; had one waited, those after it would
// be late, and Stats would say so.
func load(ctx context.Context, s *ddbseq.Sequence, d time.Duration) (next, empty *histogram, err error) {
	next, empty = new(histogram), new(histogram)
	timed := func(h *histogram, call func(context.Context) (int64, error)) error {
		began := time.Now()
		_, err := call(ctx)
		h.add(time.Since(began))
		return err
	}
	start := time.Now()
	for due := time.Duration(0); due < d; due += steadyEvery {
		for time.Since(start) < due {
		}
		// What comes first finds the processor busy with the clock.
		if rand.Uint32()%2 == 0 {
			err = errors.Join(timed(next, s.Next), timed(empty, emptyCall))
		} else {
			err = errors.Join(timed(empty, emptyCall), timed(next, s.Next))
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return next, empty, nil
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

func (h *histogram) print(out io.Writer, what string) {
	fmt.Fprintf(out, "%-28s %9d %9v %9v %9v %9v", what, h.count,
		h.quantile(0.5), h.quantile(0.99), short(h.quantile(0.9999)), short(h.most))
}

func short(d time.Duration) time.Duration {
	if d > 10*time.Microsecond {
		return d.Round(100 * time.Nanosecond)
	}
	return d
}
