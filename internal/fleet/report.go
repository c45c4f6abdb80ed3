package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// rates are peaks over a window, per second.
type rates struct{ writes, throttled float64 }

// report is the result of a simulation.
type report struct {
	f          *fleet
	span       time.Duration
	warmUp     counts
	counts     counts
	maxWait    time.Duration
	ready      []time.Duration
	duplicates int64

	late, recovery rates
	stranded       int
	refill         time.Duration
	probes         float64
}

// measure takes what has happened since before.
func (r *report) measure(before counts, since time.Duration) {
	f := r.f
	r.counts, r.span = f.snapshot().minus(before), f.now()-since
	f.res.Lock()
	r.maxWait = f.maxWait
	f.res.Unlock()
	for _, p := range f.procs {
		p.state.Lock()
		r.ready = append(r.ready, p.ready-p.began)
		p.state.Unlock()
	}
	slices.Sort(r.ready)
}

func (r *report) print(out io.Writer) {
	f, c := r.f, r.counts
	var b strings.Builder
	last, p99 := r.ready[len(r.ready)-1], percentile99(r.ready)
	if f.mode == modeStart {
		c.waits = 0
		if !f.warm {
			r.maxWait = max(r.maxWait, last)
		}
	}
	fmt.Fprintf(&b, "processes=%d leases=%d throttled=%d waits_per_million=%.3g max_wait=%v last_ready=%v ideal_ready=%v p99_ready=%v",
		f.processes, c.leases, c.throttled(), 1e6*ratio(c.waits+c.shed, c.issued+c.shed), round(r.maxWait), round(last), round(f.ideal(f.processes)), round(p99))
	fmt.Fprintf(&b, " attempts_per_lease=%.2f writes_per_lease=%.2f reads_per_lease=%.2f writes_per_s=%.1f throttled_share=%.2f%% duplicates=%d",
		ratio(c.leases+c.throttled(), c.leases), ratio(c.writes, c.leases), ratio(c.reads, c.leases), float64(c.writes)/r.span.Seconds(), 100*ratio(c.throttled(), c.calls()), r.duplicates)
	fmt.Fprintf(&b, " issued=%d waits=%d", c.issued, c.waits+c.shed)
	if f.mode != modeStart {
		fmt.Fprintf(&b, " warmup_waits=%d warmup_throttled=%d peak_writes_per_s=%.0f peak_throttled_per_s=%.0f",
			r.warmUp.waits+r.warmUp.shed, r.warmUp.throttled(), r.late.writes, r.late.throttled)
	}
	if f.mode == modeOutage {
		fmt.Fprintf(&b, " stranded=%d refill=%v probes_per_process_s=%.3f recovery_peak_writes_per_s=%.0f recovery_peak_throttled_per_s=%.0f",
			r.stranded, round(r.refill), r.probes, r.recovery.writes, r.recovery.throttled)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(&b, " memory=%dMiB heap=%dMiB", m.Sys>>20, m.HeapInuse>>20)
	fmt.Fprint(out, b.String()+" ")
}

func (r *report) printSeries(out io.Writer) {
	fmt.Fprintln(out)
	for i, w := range r.f.series {
		s := seriesEvery.Seconds()
		fmt.Fprintf(out, "%8v writes/s=%.1f throttled/s=%.1f leases/s=%.1f\n",
			time.Duration(i)*seriesEvery, float64(w.writes)/s, float64(w.throttled)/s, float64(w.leases)/s)
	}
}

// percentile99 returns the 99th percentile of what is sorted.
func percentile99(sorted []time.Duration) time.Duration { return sorted[(len(sorted)*99+99)/100-1] }

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
