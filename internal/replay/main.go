// Replay runs request traces against policies for leasing blocks of IDs: our
// own planning code and four published ones, side by side, in virtual time.
//
//	go run ./internal/replay -traces DIR -out results.csv
//	go run ./internal/replay -check
//	go run ./internal/replay -svg runway.svg
//	go run ./internal/replay -real -traces DIR
//
// DIR holds a manifest.json that lists traces, and their CSV files
// (t_seconds,count). Without -traces the small synthetic ones of testdata are
// replayed.
//
// One process takes IDs from one sequence, one a call, at the trace's times.
// A lease of any size is one write. Its latency is lognormal, median 5 ms, p99
// 30 ms; in an outage an attempt is given up after 250 ms and repeated. The
// process starts 1 s before the trace with empty memory. Measured are callers
// that waited, writes, IDs lost to a kill at a random moment, and how long an
// outage that starts at a random moment is survived before a caller waits.
//
// With -real the same calls are made to the real Allocator, in virtual time, and
// the results must agree with those of its planner.
package main

import (
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ddbseq/ddbseq/internal/bridge"
)

//go:embed testdata
var testdata embed.FS

func main() {
	if err := replay(); err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

func replay() error {
	s := bridge.DefaultSizing()
	dir := flag.String("traces", "", "folder with manifest.json and traces; default: built-in synthetic ones")
	scales := flag.String("scales", "x1,x100,5000", "xN multiplies the counts, N means a mean of N calls a second")
	names := flag.String("policies", "ours,monday,coupang,leaf,hibernate", "policies, in table order")
	flag.DurationVar(&s.Runway, "runway", s.Runway, "Runway of ours")
	flag.DurationVar(&s.LeaseEvery, "lease-every", s.LeaseEvery, "LeaseEvery of ours")
	flag.Int64Var(&s.MinBlock, "min-block", s.MinBlock, "MinBlock of ours")
	flag.Int64Var(&s.MaxBlock, "max-block", s.MaxBlock, "MaxBlock of ours")
	flag.Float64Var(&s.Jitter, "jitter", 0.5, "how far ours stretches its times, 0 to 1")
	seed := flag.Uint64("seed", 1, "seed of arrivals, latencies, probes and outages")
	probes := flag.Int("probes", 4000, "random moments per run")
	out := flag.String("out", "", "CSV file to write")
	svg := flag.String("svg", "", "SVG file to write: outage survived against rate, on steady loads instead of traces")
	must := flag.Bool("check", false, "fail if ours misses a bar")
	onReal := flag.Bool("real", false, "drive the real Allocator and fail if it does not agree with its planner")
	realIDs := flag.Int("real-ids", 2_000_000, "with -real, replay so many calls around the busiest bucket; 0 is all")
	flag.Parse()

	mk := map[string]func() Policy{
		"ours":      func() Policy { return newOurs(s) },
		"monday":    func() Policy { return newFixedTopUp(1000, 0.8) },
		"coupang":   func() Policy { return newCoupang(500, 50, 5) },
		"leaf":      func() Policy { return newLeaf(2000, 1_000_000) },
		"hibernate": func() Policy { return newPooled(50) },
	}
	policies := strings.Split(*names, ",")
	for _, n := range policies {
		if mk[n] == nil {
			return fmt.Errorf("no policy %q", n)
		}
	}
	if *svg != "" {
		return writeFile(*svg, figure(policies, mk, *seed, *probes))
	}

	root, err := fs.Sub(testdata, "testdata")
	if err != nil {
		return err
	}
	if *dir != "" {
		root = os.DirFS(*dir)
	}
	traces, err := loadManifest(root)
	if err != nil {
		return err
	}
	var rows, planned []Row
	for scale := range strings.SplitSeq(*scales, ",") {
		if !strings.HasPrefix(scale, "x") {
			scale = strings.TrimSuffix(scale, "/s") + "/s"
		}
		for _, t := range traces {
			begin := time.Now()
			l, err := build(t, scale, *seed)
			if err != nil {
				return err
			}
			if *onReal {
				l = busiest(l, *realIDs)
				planned = append(planned, evaluate(l, "ours", onEngine(mk["ours"]), *probes))
				rows = append(rows, evaluate(l, "real", onAllocator(s), *probes))
			} else {
				rows = append(rows, compare(l, policies, mk, *probes)...)
			}
			progress(os.Stderr, l, len(l.Arrivals), begin)
		}
	}
	if !*onReal {
		printTable(os.Stdout, rows)
	}
	if *out != "" {
		var b strings.Builder
		if err := writeCSV(&b, rows); err != nil {
			return err
		}
		if err := writeFile(*out, b.String()); err != nil {
			return err
		}
	}
	if *onReal {
		fmt.Printf("The real Allocator (and its planner on the engine; %g %% apart is allowed):\n", 100*tolerance)
		if !agreement(os.Stdout, planned, rows) {
			return fmt.Errorf("the real Allocator and its planner do not agree")
		}
		return nil
	}
	if slices.Contains(policies, "ours") {
		fmt.Println()
		if !check(os.Stdout, rows) && *must {
			return fmt.Errorf("a bar was missed")
		}
	}
	return nil
}

// compare evaluates a load under each policy.
func compare(l Load, policies []string, mk map[string]func() Policy, probes int) []Row {
	rows := make([]Row, len(policies))
	var wg sync.WaitGroup
	for i, n := range policies {
		wg.Go(func() { rows[i] = evaluate(l, n, onEngine(mk[n]), probes) })
	}
	wg.Wait()
	return rows
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o644) }
