package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// A result is one row of the table.
type result struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"`
	Columns []measure `json:"columns"`
}

// A measure is one row in one column: medians over the rounds.
type measure struct {
	Column string  `json:"column"`
	NS     float64 `json:"ns"`    // the process's time for one ID
	Ratio  float64 `json:"ratio"` // to the bare locked add of the same round
	Low    float64 `json:"low"`   // quartiles of the ratio
	High   float64 `json:"high"`
	Quiet  int     `json:"quiet"` // rounds that nothing disturbed
}

type report struct {
	Machine string   `json:"machine"`
	Rounds  int      `json:"rounds"`
	Quiet   float64  `json:"quiet"` // share of the samples that nothing disturbed
	Skipped []string `json:"skipped,omitempty"`
	Results []result `json:"results"`
}

func contenders() []contender {
	return slices.Concat(floors(), mine(), published(), peers(), roundTrips())
}

// compare measures all contenders in all columns, in rounds. In a round each is
// measured once, in an order drawn anew, and the bare add, which all others are
// divided by, three times.
func compare(progress io.Writer, rounds int, d time.Duration, until time.Time) (*report, error) {
	rep := &report{Machine: machine()}
	var entries []*entry
	defer func() {
		for _, e := range entries {
			e.close()
		}
	}()
	for _, c := range contenders() {
		e, err := c.start()
		if errors.Is(err, emulator.ErrNotInstalled) {
			rep.Skipped = append(rep.Skipped, fmt.Sprintf("%s: %v", c.name, err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		entries = append(entries, e)
	}
	type turn struct{ entry, col int }
	var turns []turn
	for col := range columns {
		turns = append(turns, turn{0, col}, turn{0, col})
		for i := range entries {
			turns = append(turns, turn{i, col})
		}
	}
	var quiet, samples int
	for rep.Rounds < rounds && (rep.Rounds < 2 || time.Now().Before(until)) {
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		got := make([][]round, len(entries))
		for i := range got {
			got[i] = make([]round, len(columns))
		}
		base := make([][]float64, len(columns))
		baseQuiet := make([]bool, len(columns))
		runtime.GC()
		for _, t := range turns {
			ns, clean, err := entries[t.entry].meters[t.col].sample(d)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", entries[t.entry].name, err)
			}
			samples++
			if clean {
				quiet++
			}
			got[t.entry][t.col] = round{ns: ns, quiet: clean}
			if t.entry != 0 {
				continue
			}
			if clean && !baseQuiet[t.col] { // what was disturbed does not count any more
				base[t.col], baseQuiet[t.col] = nil, true
			}
			if clean == baseQuiet[t.col] {
				base[t.col] = append(base[t.col], ns)
			}
		}
		for i, e := range entries {
			for col := range columns {
				r, add := got[i][col], median(base[col])
				if i == 0 {
					r = round{ns: add, quiet: baseQuiet[col]}
				}
				r.ratio = r.ns / add
				r.quiet = r.quiet && baseQuiet[col]
				e.rounds[col] = append(e.rounds[col], r)
			}
		}
		rep.Rounds++
		fmt.Fprintf(progress, "\rround %d of %d", rep.Rounds, rounds)
	}
	fmt.Fprintln(progress)
	rep.Quiet = float64(quiet) / float64(max(1, samples))
	for _, e := range entries {
		r := result{Name: e.name, Kind: e.kind.String()}
		for col := range columns {
			r.Columns = append(r.Columns, summary(columns[col].name, e.rounds[col]))
		}
		rep.Results = append(rep.Results, r)
	}
	return rep, nil
}

// summary takes medians over the rounds that were quiet, or over all if hardly
// one was.
func summary(name string, rounds []round) measure {
	var ns, ratios []float64
	quiet := 0
	for _, r := range rounds {
		if r.quiet {
			quiet++
		}
	}
	for _, r := range rounds {
		if r.quiet || quiet < 2 {
			ns, ratios = append(ns, r.ns), append(ratios, r.ratio)
		}
	}
	return measure{
		Column: name, NS: median(ns), Ratio: median(ratios),
		Low: quantile(ratios, 0.25), High: quantile(ratios, 0.75), Quiet: quiet,
	}
}

func (k kind) String() string {
	return [...]string{"floor", "ddbseq", "library", "transcription", "round trip"}[k]
}

func machine() string {
	name := runtime.GOARCH
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				name = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d processors, %s %s/%s", name, runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// row returns the measure of a row in a column, nil if it was not measured.
func (r *report) row(name string, col int) *measure {
	for i := range r.Results {
		if r.Results[i].Name == name {
			return &r.Results[i].Columns[col]
		}
	}
	return nil
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%s\n%d rounds, medians; %.0f%% of the samples undisturbed\n", r.Machine, r.Rounds, 100*r.Quiet)
	for _, s := range r.Skipped {
		fmt.Fprintf(out, "skipped: %s\n", s)
	}
	fmt.Fprintf(out, "\n%-28s", "ns an ID (x bare add)")
	for _, c := range columns {
		fmt.Fprintf(out, " %20s", c.name)
	}
	fmt.Fprintln(out)
	last := ""
	for _, res := range r.Results {
		if last != "" && last != res.Kind {
			fmt.Fprintln(out)
		}
		last = res.Kind
		fmt.Fprintf(out, "%-28s", res.Name)
		for _, m := range res.Columns {
			fmt.Fprintf(out, " %20s", fmt.Sprintf("%s (%s)", digits(m.NS), digits(m.Ratio)))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
}

// digits prints x with three digits or more, and without an exponent.
func digits(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return digits0(x)
}

// digits0 prints x as an integer with commas.
func digits0(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// verdict is the last line: ratios to the bare locked add of this run. best_peer
// is the nearest that any peer comes to it in the serial, 2 cores and 64
// goroutines columns.
func (r *report) verdict() string {
	ratio := func(name string, col int) float64 {
		if m := r.row(name, col); m != nil {
			return m.Ratio
		}
		return math.NaN()
	}
	best, bestRatio := "none", math.Inf(1)
	for _, res := range r.Results {
		if res.Kind != peer.String() && res.Kind != transcript.String() {
			continue
		}
		for col := range 3 {
			if x := res.Columns[col].Ratio; x < bestRatio {
				best, bestRatio = res.Name, x
			}
		}
	}
	return fmt.Sprintf("next=%.2f next_2cores=%.2f next_64=%.2f by_name=%.2f best_peer=%s:%.2f",
		ratio(nameNext, 0), ratio(nameNext, 1), ratio(nameNext, 2), ratio(nameByName, 0),
		strings.ReplaceAll(best, " ", "_"), bestRatio)
}

func (r *report) writeJSON(path string) error {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func median(x []float64) float64 { return quantile(x, 0.5) }

// quantile interpolates.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(x))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}
