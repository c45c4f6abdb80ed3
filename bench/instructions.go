package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// callgrind ends with this line.
var collected = regexp.MustCompile(`Collected : (\d+)`)

// countInstructions prints how many instructions a call of each contender takes:
// it runs this program under valgrind with n and with 2n IDs and divides the
// difference by n. No other process and no clock of the machine changes it. Quick
// leaves the others' out.
func countInstructions(out io.Writer, quick bool) error {
	valgrind, err := exec.LookPath("valgrind")
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintln(out, "skipped: valgrind is not installed")
		return nil
	}
	if err != nil {
		return err
	}
	// What go run has built has no symbols, and callgrind finds measured by its.
	dir, err := os.MkdirTemp("", "ddbseq-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self := filepath.Join(dir, "bench")
	if text, err := exec.Command("go", "build", "-o", self, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("building what is measured (in the directory of this program): %w\n%s", err, text)
	}
	count := func(c contender, n int) (int64, error) {
		args := []string{"--tool=callgrind", "--callgrind-out-file=/dev/null"}
		if c.kind != peer { // random bytes come by a path that callgrind loses there
			args = append(args, "--toggle-collect=main.measured")
		}
		cmd := exec.Command(valgrind, append(args, self, "-count", c.name, "-n", strconv.Itoa(n))...)
		// One thread, no collector: what is counted is the calls.
		cmd.Env = append(os.Environ(), "GOGC=off", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
		var log bytes.Buffer
		cmd.Stderr = &log
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("%s: valgrind: %w\n%s", c.name, err, &log)
		}
		m := collected.FindSubmatch(log.Bytes())
		if m == nil {
			return 0, fmt.Errorf("%s: valgrind did not say what it counted:\n%s", c.name, &log)
		}
		return strconv.ParseInt(string(m[1]), 10, 64)
	}
	fmt.Fprintln(out, "instructions an ID, serial, loop and store included")
	for _, c := range contenders() {
		const n = 100_000
		if c.kind == today || c.name == "sonyflake v2" { // they wait
			continue
		}
		if quick && c.kind != floor && c.kind != ours {
			continue
		}
		one, err := count(c, n)
		if err != nil {
			return err
		}
		two, err := count(c, 2*n)
		if err != nil {
			return err
		}
		if two <= one {
			return fmt.Errorf("%s: valgrind counted %d instructions for %d IDs, and %d for twice as many", c.name, one, n, two)
		}
		fmt.Fprintf(out, "%-28s %8.1f\n", c.name, float64(two-one)/float64(n))
	}
	return nil
}

// makeIDs makes n IDs of the named contender, after those that everything takes
// to get going.
func makeIDs(name string, n int) error {
	all := contenders()
	i := slices.IndexFunc(all, func(c contender) bool { return c.name == name })
	if i < 0 {
		return fmt.Errorf("there is no row %q", name)
	}
	run, end, err := all[i].open()
	if err != nil {
		return err
	}
	defer end()
	w := newWorker(0)
	if err := run(w, 200_000); err != nil {
		return err
	}
	return measured(run, w, n)
}

// measured is what callgrind counts the instructions of.
//
//go:noinline
func measured(run loop, w *worker, n int) error { return run(w, n) }
