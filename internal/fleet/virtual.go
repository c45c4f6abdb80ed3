package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
)

// inVirtualTime runs f in a bubble of testing/synctest: time stands still while
// anything runs, and jumps to the next timer when nothing does. Then it
// calls after, outside of the bubble, and ends the program.
//
// The door to such a bubble is a *testing.T, and a program gets one by being a
// test: testing.Main runs f as the only test of an empty list of flags, and its
// verdict goes nowhere, because what f prints is the result.
func inVirtualTime(f func() error, after func()) {
	// One thing at a time, so that the same seed does about the same again.
	// What stays out of reach is the runtime's own randomness, in map order and
	// among timers that end in the same nanosecond.
	runtime.GOMAXPROCS(1)
	if err := flag.CommandLine.Parse(nil); err != nil { // or testing.Main would parse our flags as its own
		panic(err)
	}
	run := func(t *testing.T) {
		defer after()
		synctest.Test(t, func(t *testing.T) {
			if err := f(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				t.FailNow()
			}
		})
	}
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		os.Stdout = null
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "fleet", F: run}}, nil, nil)
}
