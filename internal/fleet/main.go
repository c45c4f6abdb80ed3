// Fleet runs many Allocators on one item, in virtual time or as real processes,
// and reports how they get on with what one item takes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if plan, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(plan))
	}
	s, err := parseFlags(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
	case s.real:
		err = runReal(context.Background(), s, os.Stdout)
	default:
		// Inside time is not what passes here, so that the result is printed outside.
		out, began := os.Stdout, time.Now()
		var result strings.Builder
		inVirtualTime(func() error {
			_, err := simulate(s, &result)
			return err
		}, func() {
			fmt.Fprintf(out, "%swall=%v\n", result.String(), time.Since(began).Round(time.Millisecond))
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The modes of a simulation.
const (
	modeStart  = "start"
	modeSteady = "steady"
	modeOutage = "outage"
)

// settings are the command line.
type settings struct {
	processes  int
	rate       float64
	wcu, rcu   float64
	latency    time.Duration
	length     time.Duration
	outage     time.Duration
	dark       string
	mode       string
	warm       bool
	splay      time.Duration
	within     time.Duration
	warmUp     time.Duration
	runway     time.Duration
	leaseEvery time.Duration
	first      int64
	burst      time.Duration
	seed       uint64
	series     bool
	real       bool
}

func parseFlags(args []string, usage io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&s.processes, "processes", 1000, "how many processes, each with an Allocator on the one sequence")
	flags.Float64Var(&s.rate, "rate", 0, "IDs/s that each process takes, once it has its first")
	flags.Float64Var(&s.wcu, "wcu", 1000, "writes/s that the item takes")
	flags.Float64Var(&s.rcu, "rcu", 3000, "strongly consistent reads/s that it takes")
	flags.DurationVar(&s.latency, "latency", 5*time.Millisecond, "mean time that a call to the store takes")
	flags.DurationVar(&s.length, "for", 30*time.Minute, "how long it is watched: in mode steady after the warm-up, in mode outage after that")
	flags.DurationVar(&s.outage, "outage", 5*time.Minute, "how long the store is away, in mode outage")
	flags.StringVar(&s.dark, "dark", "refuse", "what calls meet while it is: refuse at once, or hang until they time out")
	flags.StringVar(&s.mode, "mode", modeStart, "start, steady or outage")
	flags.BoolVar(&s.warm, "warm", false, "in mode start: nobody waits for an ID, each process calls Warm")
	flags.DurationVar(&s.splay, "splay", 0, "Options.WarmSplay (default processes/wcu, but 0 for those who wait in mode start)")
	flags.DurationVar(&s.within, "within", 0, "in mode start: the processes start within this time, at random")
	flags.DurationVar(&s.warmUp, "warmup", 0, "how long the fleet runs before it is watched, in modes steady and outage (default 5m, or 10 writes for each process if that is more)")
	flags.DurationVar(&s.runway, "runway", time.Minute, "Options.Runway")
	flags.DurationVar(&s.leaseEvery, "leaseevery", time.Minute, "Options.LeaseEvery")
	flags.Int64Var(&s.first, "first", 0, "Tuning.FirstBlock, in the table: what a process leases first; rate x (runway + leaseevery) is right (default MinBlock)")
	flags.DurationVar(&s.burst, "burst", 0, "how much of unused capacity is kept for bursts; DynamoDB promises none, and keeps up to 300s")
	flags.Uint64Var(&s.seed, "seed", 1, "makes the jitter and the latencies")
	flags.BoolVar(&s.series, "series", false, "print what happens every 5 s as well")
	flags.BoolVar(&s.real, "real", false, "real processes against a real server, for -for after -warmup; takes -processes, -rate, -wcu")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("fleet: unexpected argument %q", flags.Arg(0))
	case s.processes < 1:
		return s, errors.New("fleet: -processes must be 1 or more")
	case s.rate < 0 || !(s.wcu > 0) || !(s.rcu > 0):
		return s, errors.New("fleet: -rate must not be negative, -wcu and -rcu must be positive")
	case s.mode != modeStart && s.mode != modeSteady && s.mode != modeOutage:
		return s, fmt.Errorf("fleet: unknown -mode %q", s.mode)
	case s.dark != "refuse" && s.dark != "hang":
		return s, fmt.Errorf("fleet: -dark is %q, not refuse or hang", s.dark)
	}
	set := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["splay"] && (s.warm || s.mode != modeStart) {
		s.splay = s.ideal(s.processes)
	}
	if s.warmUp == 0 {
		// A process that starts straight into its load takes a few leases, small
		// ones at first.
		s.warmUp = max(5*time.Minute, s.ideal(10*s.processes))
	}
	return s, nil
}

// ideal returns how long n writes to the item take at the least.
func (s settings) ideal(n int) time.Duration {
	return time.Duration(float64(n) / s.wcu * float64(time.Second))
}
