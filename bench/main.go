// Bench measures ddbseq beside everything that could be used in its place: bare
// locked instructions, libraries that make IDs, published designs, and a round
// trip for each ID.
//
//	go run -C bench .                 the table, and its verdict as the last line
//	go run -C bench . -instructions   instructions of a call, under valgrind
//	go run -C bench . -system         whole-system figures, against an emulator
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := flags.Int("rounds", 12, "how many rounds")
	each := flags.Duration("for", 0, "length of one sample (default 20ms); with -system, of the steady load (default 1m)")
	quick := flags.Bool("quick", false, "less of everything: under a minute")
	svg := flags.String("svg", "", "also draw the table into this `file`")
	jsonFile := flags.String("json", "", "also write the table to this `file`")
	instructions := flags.Bool("instructions", false, "count instructions instead")
	system := flags.Bool("system", false, "measure the whole system instead")
	child := flags.String("count", "", "make IDs of this row, for -instructions")
	n := flags.Int("n", 0, "how many IDs -count makes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	set := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *child != "":
		return makeIDs(*child, *n)
	case *instructions:
		return countInstructions(os.Stdout, *quick)
	case *system:
		d := time.Minute
		if *quick {
			d = 6 * time.Second
		}
		if set["for"] {
			d = *each
		}
		return wholeSystem(os.Stdout, d)
	}
	d, limit := 20*time.Millisecond, 200*time.Second
	if *quick {
		d, limit = 5*time.Millisecond, 40*time.Second
		if !set["rounds"] {
			*rounds = 8
		}
	}
	if set["for"] {
		d = *each
	}
	rep, err := compare(os.Stderr, *rounds, d, time.Now().Add(limit))
	if err != nil {
		return err
	}
	rep.print(os.Stdout)
	if *svg != "" {
		if err := os.WriteFile(*svg, []byte(rep.svg()), 0o644); err != nil {
			return err
		}
	}
	if *jsonFile != "" {
		if err := rep.writeJSON(*jsonFile); err != nil {
			return err
		}
	}
	fmt.Println(rep.verdict())
	return nil
}
