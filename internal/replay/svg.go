package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// The figure's plane, in decades: rate 0.01/s..100,000/s, survived 1 ms..10^6 s.
const (
	minX, maxX = -2, 5
	minY, maxY = -3, 6

	left, top     = 98.0, 44.0
	width, height = 560.0, 396.0
)

// styles has a colour that is readable on white and on black for each policy,
// and what the policy is, for the legend.
var styles = map[string]struct{ colour, label string }{
	"ours":      {"#d9480f", "ddbseq, Runway 60 s"},
	"leaf":      {"#2f9e44", "Leaf, double segment"},
	"monday":    {"#1c7ed6", "monday.com, top up 1,000"},
	"coupang":   {"#ae3ec9", "Coupang, at most 500"},
	"hibernate": {"#868e96", "Hibernate pooled, 50"},
}

// figure draws how long an outage is survived at nineteen of twenty moments,
// by rate, under steady load.
func figure(policies []string, mk map[string]func() Policy, seed uint64, probes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 510" width="920" height="510" font-family="system-ui, sans-serif" font-size="14" role="img">`+"\n")
	b.WriteString(`<title>How long IDs in memory outlast the store, by rate</title>
<style>
text { fill: #57606a } .grid { stroke: #8b949e; stroke-opacity: .28 } .axis { stroke: #8b949e; fill: none } polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } }
</style>
`)
	axes(&b)
	for i, name := range slices.Backward(policies) { // the first on top
		var points, dots strings.Builder
		s := styles[name]
		wide := 2.0
		if name == "ours" {
			wide = 4
		}
		for half := 2 * minX; half <= 2*maxX; half++ {
			exp := float64(half) / 2
			l := steady(math.Pow(10, exp), seed)
			x, y := xAt(exp), yAt(math.Log10(survived(l, mk[name](), probes)))
			fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
			fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>`, x, y, wide, s.colour)
		}
		fmt.Fprintf(&b, `<polyline points="%s" style="stroke:%s;stroke-width:%g"/>%s`+"\n", strings.TrimSpace(points.String()), s.colour, wide, dots.String())
		y := top + 20 + float64(i)*26
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%g" y2="%g" stroke="%s" stroke-width="%g"/><text x="%g" y="%g">%s</text>`+"\n",
			left+width+18, left+width+44, y, y, s.colour, wide, left+width+52, y+5, s.label)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func xAt(exp float64) float64 { return left + (exp-minX)/(maxX-minX)*width }

// yAt clips, so that 0 s (10^-Inf) lies on the lower edge.
func yAt(exp float64) float64 {
	return top + (maxY-math.Min(maxY, math.Max(minY, exp)))/(maxY-minY)*height
}

func axes(b *strings.Builder) {
	xs := []string{"0.01", "0.1", "1", "10", "100", "1,000", "10,000", "100,000"}
	ys := []string{"≤ 1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "17 min", "2.8 h", "28 h", "12 days"}
	for i, s := range xs {
		x := xAt(float64(minX + i))
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", x, x, top, top+height, x, top+height+20, s)
	}
	for i, s := range ys {
		y := yAt(float64(minY + i))
		fmt.Fprintf(b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n", left, left+width, y, y, left-8, y+5, s)
	}
	minute := yAt(math.Log10(60))
	fmt.Fprintf(b, `<rect class="axis" x="%g" y="%g" width="%g" height="%g"/>`+"\n", left, top, width, height)
	fmt.Fprintf(b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#d9480f" stroke-dasharray="3 4"/><text x="%g" y="%.1f" font-size="12">60 s</text>`+"\n", left, left+width, minute, minute, left+width+6, minute+4)
	fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle">IDs a second taken by one process, steady</text>`+"\n", left+width/2, top+height+46)
	fmt.Fprintf(b, `<text transform="translate(22 %g) rotate(-90)" text-anchor="middle">outage survived (p5)</text>`+"\n", top+height/2)
	fmt.Fprintf(b, `<text x="%g" y="24" font-size="15">Outage of the store survived without a caller waiting, at 19 of 20 moments</text>`+"\n", left)
}

// steady is a Poisson process, long enough for each policy to settle.
func steady(rate float64, seed uint64) Load {
	n := int(math.Min(2e7, math.Max(3e4, rate*3600)))
	rng := rand.New(rand.NewPCG(seed, uint64(rate*1000)))
	at, arrivals := 0.0, make([]int64, n)
	for i := range arrivals {
		at += rng.ExpFloat64() / rate * float64(second)
		arrivals[i] = int64(at)
	}
	return Load{Arrivals: arrivals, Period: arrivals[n-1] + 1, To: float64(arrivals[n-1]+1) / float64(second), Seed: seed}
}

// survived returns the p5 of the outage survived in the load's second half.
func survived(l Load, p Policy, probes int) float64 {
	rng := rand.New(rand.NewPCG(l.Seed, 3))
	at := make([]int64, probes)
	for i := range at {
		at[i] = l.Period/2 + rng.Int64N(l.Period/2)
	}
	slices.Sort(at)
	sv := survival(l.Arrivals, l.Period, run(l.Arrivals, p, defaultStore, at, l.Seed).Probes)
	slices.Sort(sv)
	return quantile(sv, 0.05)
}
