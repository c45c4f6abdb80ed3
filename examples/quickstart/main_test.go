package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := emulator.StopAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// TestTwoProcessesShareATable runs the program twice at once on one table, and
// then once more.
func TestTwoProcessesShareATable(t *testing.T) {
	endpoint := emulator.Endpoint(t, emulator.Default())
	program := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const n = 20_000
	table := fmt.Sprintf("quickstart-%d", os.Getpid())
	run := func(n int) []int64 {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, "-n", strconv.Itoa(n), "-table", table, "-endpoint", endpoint, "-create")
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%v\n%s", err, &stderr)
			return nil
		}
		var ids []int64
		for line := range strings.Lines(string(out)) {
			id, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				t.Error(err)
				return nil
			}
			ids = append(ids, id)
		}
		if len(ids) != n || !strings.Contains(stderr.String(), fmt.Sprintf("%d IDs", n)) {
			t.Errorf("%d IDs on stdout, on stderr: %s", len(ids), &stderr)
		}
		return ids
	}

	var both [2][]int64
	var wg sync.WaitGroup
	for i := range both {
		wg.Go(func() { both[i] = run(n) })
	}
	wg.Wait()
	seen := map[int64]bool{}
	var last int64
	for _, ids := range both {
		for i, id := range ids {
			if seen[id] {
				t.Fatalf("%d was handed out twice", id)
			}
			if seen[id] = true; i > 0 && id <= ids[i-1] {
				t.Fatalf("%d after %d", id, ids[i-1])
			}
			last = max(last, id)
		}
	}
	if len(seen) != 2*n {
		t.Fatalf("%d distinct IDs, want %d", len(seen), 2*n)
	}
	for _, id := range run(10) {
		if id <= last {
			t.Errorf("the third run handed out %d, not beyond %d", id, last)
		}
	}
}

func TestWithoutFlagsItRunsInMemory(t *testing.T) {
	if err := run(t.Context(), []string{"-n", "0"}); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"-endpoint", "http://127.0.0.1:1"}, {"-create"}, {"extra"}, {"-no-such-flag"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
