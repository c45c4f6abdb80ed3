package main

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// TestMain lets the test binary be its own child process.
func TestMain(m *testing.M) {
	if plan, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(plan, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestNoIDIsHandedOutTwiceInChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Setenv("TMPDIR", t.TempDir())
	var out, errs strings.Builder
	err := run(t.Context(), strings.Fields("-procs 4 -for 6s -seed 7 -kill -server-restart -v"), &out, &errs)
	if errors.Is(err, emulator.ErrNotInstalled) && os.Getenv(emulator.RequireEnv) != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, errs.String(), out.String())
	}
	t.Log(out.String())
	if !regexp.MustCompile(`(?m)^ids=[1-9]\d* leases=[1-9]\d* kills=\d+ faults=[1-9]\d* recovered=\d+ gaps=\d+ duplicates=0 violations=0 `).MatchString(out.String()) {
		t.Errorf("the summary is %q", out.String())
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"-procs 0", "-for 1ms", "-faults 2", "-seed x", "more"} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}

func TestFaultRulesMakeTheShareAskedFor(t *testing.T) {
	left := 1.0
	for _, r := range faultRules(0.4) {
		if r.Match == nil { // the others come on top
			left *= 1 - r.Probability
		}
	}
	if got := 1 - left; got < 0.399 || got > 0.401 {
		t.Errorf("a call fails with probability %v, want 0.4", got)
	}
	if rules := faultRules(0); len(rules) > 0 {
		t.Errorf("no faults make %d rules", len(rules))
	}
}
