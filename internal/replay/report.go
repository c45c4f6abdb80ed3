package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// driver replays a load against something that leases: a Policy on the
// engine, or the real Allocator.
type driver func(l Load, store Store, probes []int64) Result

func onEngine(mk func() Policy) driver {
	return func(l Load, store Store, probes []int64) Result {
		return run(l.Arrivals, mk(), store, probes, l.Seed)
	}
}

// Row is one line of the report: a load under a policy.
type Row struct {
	Load                       Load // without its arrivals
	Policy                     string
	IDs                        int64
	MeanRate                   float64
	WaitPerM, MaxWaitMs        float64 // no outages
	ColdWaits                  int64
	WritesPerM                 float64
	LostMean, LostSeconds      float64 // IDs; IDs / mean rate
	SurviveMed, SurviveP5      float64 // s
	OutageWaitPerM, OutageMaxS float64 // with the outage schedule
	MaxLease, MaxStock         int64
	Unserved                   int64
}

func (r Row) writesPerMinute() float64 { return r.WritesPerM * r.MeanRate * 60 / 1e6 }

const (
	outageLen  = 10 * second
	outageSlot = 600 * second
)

// evaluate runs a load twice, in peace and with outages, and measures it.
func evaluate(l Load, policy string, drive driver, probes int) Row {
	rng := rand.New(rand.NewPCG(l.Seed, 3))
	at := make([]int64, probes)
	for i := range at {
		at[i] = rng.Int64N(l.Period)
	}
	slices.Sort(at)
	store := defaultStore
	calm := drive(l, store, at)
	store.Outages = outages(l.Period, outageSlot, outageLen, l.Seed)
	rough := drive(l, store, nil)

	sv := survival(l.Arrivals, l.Period, calm.Probes)
	slices.Sort(sv)
	var lost float64
	for _, p := range calm.Probes {
		lost += float64(p.Stock + p.Committed)
	}
	lost /= float64(probes)
	perM := 1e6 / float64(len(l.Arrivals))
	r := Row{Load: l, Policy: policy, IDs: int64(len(l.Arrivals)), MeanRate: l.mean(),
		WaitPerM: float64(calm.Waits) * perM, MaxWaitMs: calm.MaxWait.Seconds() * 1e3, ColdWaits: calm.Cold,
		WritesPerM: float64(calm.Writes) * perM, LostMean: lost, LostSeconds: lost / l.mean(),
		SurviveMed: quantile(sv, 0.5), SurviveP5: quantile(sv, 0.05),
		OutageWaitPerM: float64(rough.Waits) * perM, OutageMaxS: rough.MaxWait.Seconds(),
		MaxLease: calm.MaxLease, MaxStock: calm.MaxStock, Unserved: calm.EndQueued + rough.EndQueued}
	r.Load.Arrivals = nil
	return r
}

// quantile returns the q-quantile of sorted values.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	return v[int(q*float64(len(v)-1)+0.5)]
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (quantile(v, float64((len(v)-1)/2)/math.Max(1, float64(len(v)-1))) + v[len(v)/2]) / 2
}

const columns = "half,trace,scale,policy,factor,bucket_s,from_s,to_s,ids,mean_per_s,wait_per_m,max_wait_ms,cold_waits,writes_per_m,lost_mean,lost_seconds,survive_median_s,survive_p5_s,outage_wait_per_m,outage_max_wait_s,max_lease,max_stock,unserved"

func writeCSV(w io.Writer, rows []Row) error {
	c := csv.NewWriter(w)
	_ = c.Write(strings.Split(columns, ","))
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }
	d := func(x int64) string { return strconv.FormatInt(x, 10) }
	for _, r := range rows {
		l := r.Load
		_ = c.Write([]string{l.Half, l.Trace, l.Scale, r.Policy, f(l.Factor), f(l.Bucket), f(l.From), f(l.To),
			d(r.IDs), f(r.MeanRate), f(r.WaitPerM), f(r.MaxWaitMs), d(r.ColdWaits), f(r.WritesPerM), f(r.LostMean), f(r.LostSeconds),
			f(r.SurviveMed), f(r.SurviveP5), f(r.OutageWaitPerM), f(r.OutageMaxS), d(r.MaxLease), d(r.MaxStock), d(r.Unserved)})
	}
	c.Flush()
	return c.Error()
}

// printTable prints the columns that the policies are judged by.
func printTable(w io.Writer, rows []Row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scale\ttrace\tmean /s\tpolicy\twaits /M\twith outages\twrites /M\twrites /min\tlost IDs\tlost, s\tsurvived p5, s\tmedian, s\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t", r.Load.Scale, r.Load.Trace)
		fmt.Fprintf(t, "%s\t%s\t", short(r.MeanRate), r.Policy)
		for _, x := range []float64{r.WaitPerM, r.OutageWaitPerM, r.WritesPerM, r.writesPerMinute(), r.LostMean, r.LostSeconds, r.SurviveP5, r.SurviveMed} {
			fmt.Fprintf(t, "%s\t", short(x))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // w keeps its own error
}

// short prints three digits, and all of those before the point.
func short(x float64) string {
	if math.Abs(x) >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// A bar is what our own policy must keep to, with Runway and LeaseEvery at 60 s.
type bar struct {
	scale string // "" = every one
	what  string
	of    func(Row) float64
	most  bool // the value must be at most limit, not at least
	mid   bool // it is the median over traces that counts, not the worst trace
	limit float64
}

// saturated is the load of more IDs a second than one process can be asked
// for, where a few callers may wait while the first leases are sized.
const saturated = 100_000

func waits(r Row) float64 {
	w := math.Max(r.WaitPerM, r.OutageWaitPerM)
	if r.MeanRate > saturated {
		return math.Max(0, w-50)
	}
	return w
}

var bars = []bar{
	{"", "waits per million, outages or not", waits, true, false, 0},
	{"", "outage survived p5, worst trace, s", func(r Row) float64 { return r.SurviveP5 }, false, false, 50},
	{"", "outage survived p5, median trace, s", func(r Row) float64 { return r.SurviveP5 }, false, true, 60},
	{"5000/s", "lost, median trace, s of traffic", func(r Row) float64 { return r.LostSeconds }, true, true, 130},
	{"5000/s", "writes per million, worst trace", func(r Row) float64 { return r.WritesPerM }, true, false, 10},
	{"5000/s", "writes a minute, worst trace", Row.writesPerMinute, true, false, 5},
	{"x1", "lost, median trace, IDs", func(r Row) float64 { return r.LostMean }, true, true, 300},
	{"x1", "writes a minute, worst trace", Row.writesPerMinute, true, false, 1.1},
}

// check prints how our rows stand against the bars and reports whether all are kept.
func check(w io.Writer, rows []Row) bool {
	kept := true
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var scales []string
	for _, r := range rows {
		if !slices.Contains(scales, r.Load.Scale) {
			scales = append(scales, r.Load.Scale)
		}
	}
	for _, scale := range scales {
		for _, b := range bars {
			if b.scale != "" && b.scale != scale {
				continue
			}
			var v []float64
			for _, r := range rows {
				if r.Policy == "ours" && r.Load.Scale == scale {
					v = append(v, b.of(r))
				}
			}
			if len(v) == 0 {
				continue
			}
			got, sign, verdict := slices.Min(v), ">=", "kept"
			if b.most {
				got, sign = slices.Max(v), "<="
			}
			if b.mid {
				got = median(v)
			}
			if b.most && got > b.limit || !b.most && !(got >= b.limit) {
				kept, verdict = false, "MISSED"
			}
			fmt.Fprintf(t, "%s\t%s\t%.4g\t%s %g\t%s\n", scale, b.what, got, sign, b.limit, verdict)
		}
	}
	_ = t.Flush() // w keeps its own error
	return kept
}

// progress is printed as each load is done: the largest take seconds.
func progress(w io.Writer, l Load, n int, begin time.Time) {
	fmt.Fprintf(w, "%-20s %-7s %10d IDs  %.0f..%.0f s in buckets of %g s  took %.1f s\n",
		l.Trace, l.Scale, n, l.From, l.To, l.Bucket, time.Since(begin).Seconds())
}
