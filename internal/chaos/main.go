package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	if plan, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(plan, os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settings are the command line.
type settings struct {
	procs         int
	length        time.Duration
	seed          uint64
	kill          bool
	serverRestart bool
	faults        float64
	keep          bool
	verbose       bool
}

func (s settings) String() string {
	return fmt.Sprintf("-procs %d -for %v -seed %d -kill=%t -server-restart=%t -faults %g",
		s.procs, s.length, s.seed, s.kill, s.serverRestart, s.faults)
}

func parseFlags(args []string, usage io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&s.procs, "procs", 8, "how many processes lease at a time")
	flags.DurationVar(&s.length, "for", time.Minute, "how long; closing and checking come after it")
	flags.Uint64Var(&s.seed, "seed", 1, "makes the plan: lives, sizings, faults")
	flags.BoolVar(&s.kill, "kill", false, "kill processes with SIGKILL")
	flags.BoolVar(&s.serverRestart, "server-restart", false, "kill the server with SIGKILL and restart it")
	flags.Float64Var(&s.faults, "faults", 0.3, "least share of calls that fail, from 0 to 0.9")
	flags.BoolVar(&s.keep, "keep", false, "keep the directory with the histories and the log")
	flags.BoolVar(&s.verbose, "v", false, "say what happens, and where the gaps come from")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("chaos: unexpected argument %q", flags.Arg(0))
	case s.procs < 1:
		return s, errors.New("chaos: -procs must be 1 or more")
	case s.length < time.Second:
		return s, errors.New("chaos: -for must be a second or more")
	case s.faults < 0 || s.faults > 0.9:
		return s, errors.New("chaos: -faults must be from 0 to 0.9")
	}
	return s, nil
}
