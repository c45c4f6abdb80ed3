package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ddbseq/ddbseq/internal/bridge"
)

// A bucket holds as much of its rate beside the burst: DynamoDB does not judge
// each millisecond by itself. Its units are for each second, so that a few may
// come at once at whatever rate.
const (
	depth  = 100 * time.Millisecond
	atOnce = 10
)

// bucket is a token bucket: it fills at rate up to its depth.
type bucket struct {
	rate, depth, tokens float64
	last                time.Duration
}

func newBucket(rate float64, burst time.Duration) bucket {
	d := max(1, min(rate, atOnce), rate*depth.Seconds()) + rate*burst.Seconds()
	return bucket{rate: rate, depth: d, tokens: d}
}

func (b *bucket) take(now time.Duration) bool {
	b.tokens = min(b.depth, b.tokens+b.rate*(now-b.last).Seconds())
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// seriesEvery is the width of the windows that writes are counted in.
const seriesEvery = 5 * time.Second

// window is what happened in one of them.
type window struct{ writes, throttled, leases int64 }

// counts are totals since the simulation began.
type counts struct {
	reads, writes       int64 // calls, whatever became of them
	throttledReads      int64
	throttledWrites     int64
	leases              int64
	issued, waits, shed int64
}

func (c counts) minus(o counts) counts {
	return counts{
		c.reads - o.reads, c.writes - o.writes, c.throttledReads - o.throttledReads, c.throttledWrites - o.throttledWrites,
		c.leases - o.leases, c.issued - o.issued, c.waits - o.waits, c.shed - o.shed,
	}
}

func (c counts) calls() int64     { return c.reads + c.writes }
func (c counts) throttled() int64 { return c.throttledReads + c.throttledWrites }

// gate is what stands between the Allocators and the table: how long calls
// take, how many the item bears, and whether there is a way at all.
type gate struct {
	settings
	start time.Time

	mu            sync.Mutex // guards all below
	writes, reads bucket
	away, ended   bool
	counts        counts
	series        []window

	// stranded counts the processes whose last call met the outage; it falls to
	// 0 at refilled.
	stranded int
	refilled time.Duration
}

func newGate(s settings) *gate {
	return &gate{
		settings: s, start: time.Now(),
		writes: newBucket(s.wcu, s.burst), reads: newBucket(s.rcu, s.burst),
	}
}

func (g *gate) now() time.Duration { return time.Since(g.start) }

// dice are a process's own source of randomness: what one draws does not depend
// on when the others do.
type dice struct {
	mu  sync.Mutex
	pcg rand.PCG
}

func (d *dice) rand() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return rand.New(&d.pcg).Float64()
}

// hook returns what becomes of the calls of p.
func (g *gate) hook(p *process) bridge.Hook {
	return func(ctx context.Context, op, _ string, do func() error) error {
		if g.over() {
			return &bridge.Fault{Permanent: true, Message: "the simulation is over"}
		}
		time.Sleep(time.Duration((0.5 + p.rand()) * float64(g.latency)))
		write := op == "UpdateItem"
		if err := g.admit(p, write); err != nil {
			if errors.Is(err, errAway) && g.dark == "hang" {
				<-ctx.Done()
			}
			return err
		}
		err := do()
		if write && err == nil {
			g.leased(p)
		}
		return err
	}
}

func (g *gate) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

var (
	errAway = &bridge.Fault{Message: "the store cannot be reached"}
	errHot  = &bridge.Fault{Throttled: true, Reasons: []string{"TableWriteKeyRangeThroughputExceeded"}, Message: "throttled"}
	errRead = &bridge.Fault{Throttled: true, Reasons: []string{"TableReadKeyRangeThroughputExceeded"}, Message: "throttled"}
)

// admit counts a call that has arrived, and says what it fails with.
func (g *gate) admit(p *process, write bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	w := g.window(now)
	if write {
		g.counts.writes++
		w.writes++
	} else {
		g.counts.reads++
	}
	switch {
	case g.away:
		if !p.stranded {
			p.stranded = true
			g.stranded++
		}
		return errAway
	case write && !g.writes.take(now):
		g.counts.throttledWrites++
		w.throttled++
		return errHot
	case !write && !g.reads.take(now):
		g.counts.throttledReads++
		return errRead
	}
	return nil
}

func (g *gate) leased(p *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts.leases++
	g.window(g.now()).leases++
	if p.stranded {
		p.stranded = false
		if g.stranded--; g.stranded == 0 {
			g.refilled = g.now()
		}
	}
}

// window returns the one that now is in. requires mu
func (g *gate) window(now time.Duration) *window {
	i := int(now / seriesEvery)
	for len(g.series) <= i {
		g.series = append(g.series, window{})
	}
	return &g.series[i]
}

// peak returns the highest rates of one window from from to to, in writes/s.
func (g *gate) peak(from, to time.Duration) (writes, throttled float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, w := range g.series {
		if at := time.Duration(i) * seriesEvery; at >= from && at < to {
			writes = max(writes, float64(w.writes)/seriesEvery.Seconds())
			throttled = max(throttled, float64(w.throttled)/seriesEvery.Seconds())
		}
	}
	return writes, throttled
}

func (g *gate) setAway(away bool) (stranded int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = away
	return g.stranded
}

func (g *gate) snapshot() counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts
}
