package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

func TestMain(m *testing.M) {
	if plan, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(plan))
	}
	os.Exit(m.Run())
}

func TestBucketGrantsItsRateAndNoMore(t *testing.T) {
	b := newBucket(100, 0)
	granted := 0
	for now := time.Duration(0); now < 10*time.Second; now += time.Millisecond {
		if b.take(now) {
			granted++
		}
	}
	if granted < 1005 || granted > 1011 {
		t.Errorf("granted %d in 10 s at 100/s and a depth of 10", granted)
	}
	slow := newBucket(0.1, 0)
	if !slow.take(0) || slow.take(9*time.Second) || !slow.take(10*time.Second) {
		t.Error("a bucket of less than one a second does not grant one in 10 s")
	}
}

func TestOverlapCountsEachIDTwiceHandedOut(t *testing.T) {
	for _, c := range []struct {
		runs []run
		want int64
	}{
		{nil, 0},
		{[]run{{11, 21}, {1, 11}}, 0},
		{[]run{{1, 11}, {10, 20}}, 1},
		{[]run{{1, 100}, {10, 20}, {15, 25}}, 20},
		{[]run{{1, 2}, {1, 2}, {1, 2}}, 2},
	} {
		if got := overlap(c.runs); got != c.want {
			t.Errorf("overlap of %v is %d, want %d", c.runs, got, c.want)
		}
	}
}

// reportOf runs a simulation with a command line and returns what it measured.
func reportOf(t *testing.T, args ...string) (r *report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := parseFlags(args, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if r, err = simulate(s, &out); err != nil {
			t.Fatal(err)
		}
		if r.duplicates != 0 || !strings.HasPrefix(out.String(), "processes=") {
			t.Errorf("the result is %s", out.String())
		}
	})
	return r
}

func TestStartIsCloseToTheIdeal(t *testing.T) {
	r := reportOf(t, "-processes", "500", "-wcu", "100", "-rcu", "300")
	if last, p99 := r.ready[499], percentile99(r.ready); last > 5*time.Second*135/100 || p99 > 5*time.Second*115/100 {
		t.Errorf("99 %% are ready after %v and all after %v, the ideal is 5 s", p99, last)
	}
	if n := ratio(r.counts.leases+r.counts.throttled(), r.counts.leases); n > 8 || r.counts.issued != 500 {
		t.Errorf("%.1f attempts for each lease: %+v", n, r.counts)
	}
}

func TestSplayedStartIsHardlyThrottled(t *testing.T) {
	r := reportOf(t, "-processes", "500", "-wcu", "100", "-rcu", "300", "-warm")
	if n := ratio(r.counts.leases+r.counts.throttled(), r.counts.leases); n > 2 || r.ready[499] > 7*time.Second {
		t.Errorf("%.1f attempts for each lease, all ready after %v", n, r.ready[499])
	}
}

func TestSteadyFleetIsQuiet(t *testing.T) {
	r := reportOf(t, "-mode", "steady", "-processes", "200", "-wcu", "60", "-rcu", "180", "-rate", "50", "-splay", "60s", "-for", "5m")
	if c := r.counts; c.waits+c.shed != 0 || c.throttled() != 0 || c.issued != 200*50*300 || c.leases < 600 || c.leases > 1100 {
		t.Errorf("%+v", c)
	}
}

func TestAFleetBeyondItsItemSettlesBelowWhatThatTakes(t *testing.T) {
	// With a write a minute each they would need 1.7 times what there is. Without
	// -burst there would be room for one write in so small a bucket.
	r := reportOf(t, "-mode", "steady", "-processes", "200", "-wcu", "2", "-rcu", "6", "-burst", "5s", "-rate", "20", "-for", "5m")
	writes := float64(r.counts.writes) / r.span.Seconds()
	if c := r.counts; c.waits+c.shed != 0 || writes >= 2 || c.throttled()*20 >= c.calls() || c.leases == 0 {
		t.Errorf("%.2f writes/s: %+v", writes, c)
	}
}

func TestWaitingCallersAreSeen(t *testing.T) {
	// Two writes a second for ten processes with a lease a second each.
	r := reportOf(t, "-mode", "steady", "-processes", "10", "-wcu", "2", "-rate", "1000", "-runway", "1s", "-leaseevery", "1s", "-warmup", "20s", "-for", "10s")
	if c := r.warmUp; c.waits == 0 || c.shed == 0 {
		t.Errorf("nobody waited: %+v", c)
	}
}

func TestFleetIsRefilledAfterAnOutage(t *testing.T) {
	r := reportOf(t, "-mode", "outage", "-processes", "200", "-wcu", "20", "-rcu", "60", "-rate", "10", "-splay", "60s",
		"-runway", "6m", "-warmup", "10m", "-for", "4m")
	if c := r.counts; c.waits+c.shed != 0 || r.stranded < 190 || r.refill > 20*time.Second || r.late.writes > 10 {
		t.Errorf("%d stranded, refilled after %v, then up to %.0f writes/s: %+v", r.stranded, r.refill, r.late.writes, c)
	}
}

func TestRealProcessesDoNotWaitOnceTheyAreWarm(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s, err := parseFlags(strings.Fields("-real -processes 4 -rate 500 -wcu 20 -rcu 60 -warmup 2s -for 2s"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = runReal(t.Context(), s, &out)
	if errors.Is(err, emulator.ErrNotInstalled) && os.Getenv(emulator.RequireEnv) != "1" {
		t.Skip(err)
	}
	if err != nil || !strings.Contains(out.String(), "processes=4 ") || !strings.Contains(out.String(), " duplicates=0 ") || !strings.Contains(out.String(), " waits=0 ") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
