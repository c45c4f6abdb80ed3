package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// svg draws the table: a row for each contender, a mark for each of the first
// three columns, at its ratio to the bare locked add on a logarithmic scale.
func (r *report) svg() string {
	const (
		left, width = 230.0, 640.0
		top, step   = 78.0, 21.0
		plot        = width - left - 24
	)
	most := 10.0
	for _, res := range r.Results {
		for _, m := range res.Columns[:3] {
			most = max(most, m.Ratio)
		}
	}
	decades := math.Ceil(math.Log10(most))
	x := func(ratio float64) float64 {
		return left + plot*(math.Log10(max(ratio, 0.01))+2)/(decades+2)
	}
	height := top + step*float64(len(r.Results)) + 10*4 + 34

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="Time for one ID, relative to a bare locked add">
<style>
  text { fill: #57606a } .own { fill: #1f2328; font-weight: 600 } .grid { stroke: #8c959f; stroke-opacity: .3 } .one { stroke: #8c959f }
  .c0 { fill: #0969da } .c1 { fill: #bc4c00 } .c2 { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) { text { fill: #8d96a0 } .own { fill: #e6edf3 } .c0 { fill: #4493f8 } .c1 { fill: #f0883e } .c2 { fill: #3fb950 } }
</style>
`, width, height, width, height)
	fmt.Fprintf(&b, "<text class=\"own\" x=\"0\" y=\"16\">Time for one ID, in bare locked adds</text>\n")
	for col, at := range []float64{left, left + 80, left + 170} {
		mark(&b, col, at, 36)
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"40\">%s</text>\n", at+10, columns[col].name)
	}
	for d := -2.0; d <= decades; d++ {
		class := "grid"
		if d == 0 {
			class = "one"
		}
		at := x(math.Pow(10, d))
		fmt.Fprintf(&b, "<line class=%q x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>\n", class, at, at, top-12, height-24)
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n", at, top-18, scale(d))
	}
	y, last := top, ""
	for _, res := range r.Results {
		if last != "" && last != res.Kind {
			y += 10
		}
		last = res.Kind
		class := ""
		if res.Kind == ours.String() {
			class = ` class="own"`
		}
		fmt.Fprintf(&b, "<text%s x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", class, left-10, y+4, html.EscapeString(res.Name))
		for col := 2; col >= 0; col-- {
			mark(&b, col, x(res.Columns[col].Ratio), y)
		}
		y += step
	}
	fmt.Fprintf(&b, "<text x=\"0\" y=\"%.0f\" font-size=\"10\">%s</text>\n</svg>\n", height-4, html.EscapeString(r.Machine))
	return b.String()
}

// mark draws the sign of a column: a disc, a square or a triangle.
func mark(b *strings.Builder, col int, x, y float64) {
	switch col {
	case 0:
		fmt.Fprintf(b, "<circle class=\"c0\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", x, y)
	case 1:
		fmt.Fprintf(b, "<rect class=\"c1\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>\n", x-3.5, y-3.5)
	default:
		fmt.Fprintf(b, "<path class=\"c2\" d=\"M%.1f %.1fl4.5 8h-9z\"/>\n", x, y-5)
	}
}

func scale(decade float64) string {
	if decade < 0 {
		return fmt.Sprintf("%.*f×", int(-decade), math.Pow(10, decade))
	}
	if decade < 3 {
		return digits0(math.Pow(10, decade)) + "×"
	}
	return digits0(math.Pow(10, decade-3)) + "k×"
}
