package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Trace is one entry of a manifest.json: counts of calls in buckets of time.
type Trace struct {
	Name   string  `json:"name"`
	Half   string  `json:"half"`
	File   string  `json:"file"`
	Bucket float64 `json:"bucket_s"`
	Fine   string  `json:"fine"` // the same calls in smaller buckets, if there is such a file
	FineB  float64 `json:"fine_bucket_s"`
	Dur    float64 `json:"duration_s"`
	dir    fs.FS
}

// bucket holds n calls in [at, at+width) seconds.
type bucket struct {
	at, width, n float64
}

func loadManifest(dir fs.FS) ([]Trace, error) {
	b, err := fs.ReadFile(dir, "manifest.json")
	if err != nil {
		return nil, err
	}
	var ts []Trace
	if err := json.Unmarshal(b, &ts); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	for i := range ts {
		ts[i].dir = dir
	}
	return ts, nil
}

// read returns the trace's buckets, those of the fine file if there is one,
// and their nominal width.
func (t Trace) read() ([]bucket, float64, error) {
	file, width := t.File, t.Bucket
	if t.Fine != "" {
		file, width = t.Fine, t.FineB
	}
	f, err := t.dir.Open(file)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", file, err)
		}
	}
	var out []bucket
	s := bufio.NewScanner(r)
	s.Scan() // header
	for s.Scan() {
		a, b, _ := strings.Cut(s.Text(), ",")
		at, err1 := strconv.ParseFloat(a, 64)
		n, err2 := strconv.ParseFloat(b, 64)
		if err1 != nil || err2 != nil {
			return nil, 0, fmt.Errorf("%s: bad row %q", file, s.Text())
		}
		out = append(out, bucket{at, width, n})
	}
	if err := s.Err(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", file, err)
	}
	if len(out) == 0 {
		return nil, 0, fmt.Errorf("%s: no rows", file)
	}
	for i := range len(out) - 1 { // irregular grids: a bucket ends where the next one starts
		out[i].width = math.Min(width, out[i+1].at-out[i].at)
	}
	return out, width, nil
}

// merged puts buckets together to width w (about a multiple of theirs).
func merged(in []bucket, w float64) []bucket {
	var out []bucket
	for _, b := range in {
		at := math.Floor((b.at+1e-9)/w) * w
		if len(out) == 0 || out[len(out)-1].at != at {
			out = append(out, bucket{at, w, 0})
		}
		out[len(out)-1].n += b.n
	}
	return out
}

// Load is one trace at one scale: the arrivals to replay.
type Load struct {
	Trace, Half string
	Scale       string  // x1, x100, 5000/s
	Factor      float64 // what the counts were multiplied by
	Bucket      float64 // bucket the arrivals were spread in
	From, To    float64 // the part of the trace that is replayed, s
	Arrivals    []int64 // ns since From
	Period      int64   // ns, To - From
	Seed        uint64
}

func (l Load) mean() float64 { return float64(len(l.Arrivals)) / (l.To - l.From) }

func seedOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s)
	return h.Sum64()
}

const (
	maxCalls   = 50e6 // more than this, and an x scale is cut to a window ...
	minWindow  = 600  // ... of at least so many seconds
	rateWindow = 6000 // seconds replayed at a fixed rate
)

// build makes the arrivals of a trace at a scale: "xN" multiplies the counts,
// "N/s" multiplies them to a mean of N/s over the 6,000 s around the busiest
// bucket.
//
// Above x1, a trace with less than one call per bucket on average is first
// merged into the smallest of some widths that has one, so that the shot noise
// of a sparse trace is not multiplied into spikes that no busier service has.
// Calls inside a bucket are uniform at random (a Poisson process given its
// count); fractional counts are carried over to the next bucket.
func build(t Trace, scale string, seed uint64) (Load, error) {
	bs, width, err := t.read()
	if err != nil {
		return Load{}, err
	}
	last := bs[len(bs)-1]
	end := math.Max(t.Dur, last.at+last.width)
	if scale != "x1" {
		bs, width = mergeSparse(bs, width, end)
	}
	peak := 0
	for i, b := range bs {
		if b.n/b.width > bs[peak].n/bs[peak].width {
			peak = i
		}
	}
	from, to := 0.0, end
	clip := func(w float64) { // to about w seconds around the peak
		if from, to = 0, end; w >= end {
			return
		}
		w = math.Max(width*2, math.Floor(w/width)*width)
		from = math.Floor((bs[peak].at-w/2)/width) * width
		from = math.Max(0, math.Min(from, end-w))
		to = from + w
	}
	var factor float64
	if rate, ok := strings.CutSuffix(scale, "/s"); ok {
		if factor, err = strconv.ParseFloat(rate, 64); err != nil {
			return Load{}, fmt.Errorf("scale %q: %w", scale, err)
		}
		clip(rateWindow)
		factor = factor * (to - from) / count(bs, from, to)
	} else {
		if factor, err = strconv.ParseFloat(strings.TrimPrefix(scale, "x"), 64); err != nil {
			return Load{}, fmt.Errorf("scale %q: %w", scale, err)
		}
		for w := end; count(bs, from, to)*factor > maxCalls && w > minWindow; {
			w = math.Max(minWindow, w*0.9)
			clip(w)
		}
	}
	l := Load{Trace: t.Name, Half: t.Half, Scale: scale, Factor: factor, Bucket: width, From: from, To: to,
		Period: int64((to - from) * float64(second)), Seed: seed ^ seedOf(t.Name+scale)}
	l.Arrivals = scatter(bs, l)
	if len(l.Arrivals) == 0 {
		return l, fmt.Errorf("%s %s: no calls", t.Name, scale)
	}
	return l, nil
}

func mergeSparse(bs []bucket, width, end float64) ([]bucket, float64) {
	widths := []float64{0.01, 0.1, 1, 10, 60, 300, 900, 3600}
	rate := count(bs, 0, end) / end
	for i, w := range widths {
		if rate*width >= 1 {
			break
		}
		if w > width && (rate*w >= 1 || i == len(widths)-1) {
			return merged(bs, w), w
		}
	}
	return bs, width
}

func inside(b bucket, from, to float64) bool { return b.at >= from-1e-9 && b.at < to-1e-9 }

func count(bs []bucket, from, to float64) (n float64) {
	for _, b := range bs {
		if inside(b, from, to) {
			n += b.n
		}
	}
	return n
}

// scatter draws the arrivals of the load's part of the buckets.
func scatter(bs []bucket, l Load) []int64 {
	rng := rand.New(rand.NewPCG(l.Seed, 1))
	out := make([]int64, 0, int(count(bs, l.From, l.To)*l.Factor)+16)
	var carry, newest float64
	var spacing []float64
	for _, b := range bs {
		if !inside(b, l.From, l.To) {
			continue
		}
		carry += b.n * l.Factor
		n := int(carry + 1e-9)
		carry -= float64(n)
		if n == 0 {
			continue
		}
		// n sorted uniforms by normalised exponential spacings
		spacing = spacing[:0]
		sum := 0.0
		for range n + 1 {
			sum += rng.ExpFloat64()
			spacing = append(spacing, sum)
		}
		from, span := (b.at-l.From)*float64(second), b.width*float64(second)
		for _, s := range spacing[:n] {
			newest = math.Max(newest, from+span*s/sum) // rounding at bucket borders
			out = append(out, int64(newest))
		}
	}
	return out
}
