package ddbseq

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestStatsAsJSONKeepsEveryInteger(t *testing.T) {
	ctx := t.Context()
	a := newTest(t, Memory(), fixed(10))
	if err := a.Create(ctx, "s", StartWith(1<<62), DailyLimit(1<<61)); err != nil {
		t.Fatal(err)
	}
	must(a.Next(ctx, "s"))
	text := string(must(json.Marshal(sequenceOf(t, a, "s").Stats())))
	for _, want := range []string{`"Issued":"1"`, `"Next":"4611686018427387905"`, `"LastID":"4611686018427387913"`, `"DailyLimit":"2305843009213693952"`,
		`"UsedToday":"10"`, `"Alerts":[]`, `"Mandatory":{"OK":"1","Recovered":"0"`, `"LastError":""`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	top := string(must(json.Marshal(a.TopStats(1, func(x, y NamedStats) int { return 0 }))))
	if !strings.Contains(top, `"Name":"s"`) || !strings.Contains(top, `"Issued":"1"`) {
		t.Error(top)
	}
	want := Stats{Issued: 1<<63 - 1, WaitTime: time.Hour, Alerts: 1<<AlertWaste | 1<<AlertRunway, Runway: forever, Rate: 1.5, LastError: "why", Fleet: Fleet{Seen: true, Share: 0.5}}
	text = string(must(json.Marshal(want)))
	if !strings.Contains(text, `"Alerts":["waste","runway"]`) {
		t.Error(text)
	}
	var got Stats
	if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"Alerts":["joy"]}`), &got); err == nil {
		t.Error("an alert that there is not")
	}
}

func TestSubTakesTheDifferenceOfCountersAlone(t *testing.T) {
	var x, y Stats
	for i, c := range x.counters() {
		*c, *y.counters()[i] = int64(10*i), int64(i)
	}
	x.WaitTime, y.WaitTime = 5, 2
	for range 3 {
		x.Latency.add(5 * time.Millisecond)
	}
	y.Latency.add(5 * time.Millisecond)
	x.Remaining, x.Rate, x.Runway, x.BlockSize, x.LastError, x.Fleet.LastID, y.Remaining = 7, 3, 2, 9, "why", 8, 100
	d := x.Sub(y)
	for i, c := range d.counters() {
		if *c != int64(9*i) {
			t.Errorf("counter %d is %d", i, *c)
		}
	}
	if d.WaitTime != 3 || d.Latency.Count() != 2 || d.Remaining != 7 || d.Rate != 3 || d.Runway != 2 || d.BlockSize != 9 || d.LastError != "why" || d.Fleet.LastID != 8 {
		t.Errorf("%+v", d)
	}
	if x.Issued != 0 || x.Waited != 10 || x.Latency.Count() != 3 {
		t.Error("Sub changed its operand")
	}
}

func TestLatencyQuantiles(t *testing.T) {
	var l Latency
	if l.Quantile(0.5) != 0 || l.Max() != 0 {
		t.Error("none")
	}
	for range 98 {
		l.add(3 * time.Millisecond)
	}
	l.add(700 * time.Millisecond)
	l.add(time.Hour)
	if l.Quantile(0.5) != 4*time.Millisecond || l.Quantile(0.99) != 1024*time.Millisecond || l.Quantile(1) != time.Hour || l.Count() != 100 {
		t.Error(l.Quantile(0.5), l.Quantile(0.99), l.Quantile(1))
	}
	l = Latency{}
	l.add(-time.Second)
	l.add(3 * time.Microsecond)
	if l.Quantile(0.99) != 3*time.Microsecond {
		t.Error(l.Quantile(0.99))
	}
}

func TestStatsShowRateRunwayAndFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := Memory()
		a, b := newTest(t, store), newTest(t, store, fixed(500))
		if err := a.Create(ctx, "s", MaxValue(1_000_000)); err != nil {
			t.Fatal(err)
		}
		s := sequenceOf(t, a, "s")
		if st := s.Stats(); st.Fleet.Seen || st.Runway != forever || st.Rate != 0 {
			t.Errorf("before: %+v", st)
		}
		must(b.Next(ctx, "s"))
		for range 3000 {
			must(s.Next(ctx))
			time.Sleep(50 * time.Millisecond)
		}
		st := s.Stats()
		if st.Rate < 19 || st.Rate > 21 || st.Runway < 55*time.Second || st.Issued != 3000 {
			t.Errorf("rate %v, runway %v", st.Rate, st.Runway)
		}
		d := must(a.Describe(ctx, "s"))
		f := st.Fleet
		if f.LastID != d.LastID || f.UsedToday != d.LastID || f.PerDay != float64(d.LastID) || f.Share != float64(d.LastID)/1_000_000 || f.GapRatio != d.GapRatio() ||
			f.Left < 24*time.Hour {
			t.Errorf("%+v, and %+v", f, d)
		}
	})
}

// TestCase131OnlyTheWorstOfManySequencesAreListed is pgmonitor#77 and
// pg_exporter#28.
func TestCase131OnlyTheWorstOfManySequencesAreListed(t *testing.T) {
	a := newTest(t, Memory(), fixed(1), func(o *Options) { o.forfeit = true })
	const n = 20_000
	for i := range n {
		s := sequenceOf(t, a, fmt.Sprint("s", i))
		s.mu.Lock()
		s.retired = int64(i * 7919 % n)
		s.mu.Unlock()
	}
	sequenceOf(t, a, Shadow("s")).retired = n + 1
	began := time.Now()
	top := a.TopStats(5, func(x, y NamedStats) int { return cmp.Compare(y.Issued, x.Issued) })
	t.Logf("%v for %d", time.Since(began), n)
	if len(top) != 5 || len(a.TopStats(0, nil)) != 0 {
		t.Fatal(len(top))
	}
	for i, s := range top {
		if s.Issued != int64(n-1-i) {
			t.Errorf("place %d: %s with %d", i, s.Name, s.Issued)
		}
	}
}

func TestAnIdleSequenceTakesLittleMemory(t *testing.T) {
	const n = 10_000
	a := newTest(t, Memory(), fixed(1), func(o *Options) { o.forfeit = true })
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		sequenceOf(t, a, fmt.Sprint("s", i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%d bytes each", each)
	if each > 2048 {
		t.Errorf("%d bytes each", each)
	}
	runtime.KeepAlive(a)
}

// What Refresh gives back while Close is under way was not abandoned by Close.
func TestAGiveBackIsTakenOffWhereItWasCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, fixed(10))
		s := sequenceOf(t, a, "s")
		must(s.Next(ctx))
		faults.set(slow(time.Second))
		done := make(chan error)
		go func() { done <- a.Refresh(ctx, "s") }()
		synctest.Wait()
		if err := a.Close(ctx); err != nil {
			t.Fatal(err)
		}
		<-done // ErrClosed: it may not read the item
		if st := s.Stats(); st.Returned != 9 || st.Abandoned != (Abandoned{}) {
			t.Errorf("%d returned, %+v", st.Returned, st.Abandoned)
		}
	})
}

// Every ID leased is handed out, in memory, given back, or abandoned for a reason
// that is counted; and every lease has an outcome.
func TestTheBooksBalance(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			rng := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
			mem := Memory()
			store, faults := withFaults(mem, func(op, _ string, _ int) fault {
				switch d := time.Duration(roll(50)) * time.Millisecond; roll(12) {
				case 0:
					return fault{err: lost(), after: true, delay: d}
				case 1:
					return fault{err: throttled(), delay: d}
				case 2:
					return fault{err: transient(), delay: d}
				default:
					return fault{delay: d}
				}
			})
			a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock, o.MaxBlock = 5, 40 })
			other := newTest(t, mem, createMissing, fixed(3))
			s := sequenceOf(t, a, "s")
			balance := func(what string) {
				t.Helper()
				st := s.Stats()
				if st.Leased != st.Issued+st.Remaining+st.Returned+st.Abandoned.Total() || st.Leases != st.Advisory.OK+st.Advisory.Recovered+st.Mandatory.OK+st.Mandatory.Recovered {
					t.Fatalf("seed %d, after %s: the books do not balance: %+v", seed, what, st)
				}
			}
			must(s.Next(ctx))
			for range 200 {
				short, cancel := context.WithTimeout(ctx, time.Duration(1+roll(300))*time.Millisecond)
				what := "Next"
				switch roll(20) {
				case 0:
					what = "Refresh"
					_ = a.Refresh(short, "s")
				case 1:
					what = "Restart"
					_ = a.Restart(short, "s", int64(roll(100)+1), AllowReuse())
				case 2:
					what = "Advance"
					_, _ = a.Advance(short, "s", int64(roll(2000)))
				case 3:
					what = "a lease of another"
					_, _ = other.Next(short, "s")
				case 4, 5:
					what = "Reserve"
					_, _ = s.Reserve(short, int64(1+roll(30)))
				case 6, 7:
					what = "Fill"
					_ = s.Fill(short, make([]int64, 1+roll(60)))
				case 8:
					what = "a fence"
					_ = other.Restart(short, "s", int64(roll(100)+1), AllowReuse())
				default:
					_, _ = s.Next(short)
				}
				cancel()
				synctest.Wait()
				balance(what)
			}
			faults.set(nil)
			if err := a.Close(ctx); err != nil {
				t.Fatal(err)
			}
			balance("Close")
			if st := s.Stats(); st.Remaining != 0 {
				t.Errorf("%d IDs remain after Close", st.Remaining)
			}
		})
	}
}

// What the table says was issued by all processes is what this one, the only one,
// issued by its last report: not twice what it had when it was refreshed, fenced
// or restarted, and never less than nothing.
func TestTheTableCountsEachIDIssuedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, faults := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, fixed(100))
		s := sequenceOf(t, a, "s")
		check := func(when string, mostMissing int64) {
			t.Helper()
			d, st := must(a.Describe(ctx, "s")), s.Stats()
			if d.Issued > st.Issued || d.Issued < st.Issued-mostMissing {
				t.Errorf("%s the table has %d issued, and we %d", when, d.Issued, st.Issued)
			}
		}
		draw := func(n int) {
			for range n {
				must(s.Next(ctx))
			}
		}
		draw(10)
		for range 3 {
			ok(t, a.Refresh(ctx, "s"))
			draw(10)
			check("after a refresh", 10)
		}
		// A lease that is under way while the sequence is refreshed.
		draw(95)
		faults.set(slow(time.Second))
		var wg sync.WaitGroup
		wg.Go(func() { draw(100) })
		time.Sleep(500 * time.Millisecond)
		faults.set(nil)
		s.refresh(nil)
		wg.Wait()
		draw(101)
		check("after a lease that nobody used", 101)

		// A Fill that is given up has claimed IDs that nobody got.
		began := faults.count("s")
		faults.set(func(_, _ string, call int) fault { return fault{hang: call > began+8} })
		timeout, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := s.Fill(timeout, make([]int64, 5000)); err == nil {
			t.Fatal("all 5000")
		}
		faults.set(nil)
		if s.Stats().Abandoned.Caller < 500 {
			t.Fatalf("abandoned %d", s.Stats().Abandoned.Caller)
		}
		draw(200) // the next lease corrects what it had reported of them
		for range 10 {
			draw(100)
			check("after a Fill that was given up", 1000)
		}
		draw(1050) // so that there is something to give back, which reports the rest
		check("at the end", 101)
		ok(t, a.Close(ctx))
		b := newTest(t, store)
		d, st := must(b.Describe(ctx, "s")), s.Stats()
		if d.Issued != st.Issued {
			t.Errorf("after Close the table has %d issued, and we %d", d.Issued, st.Issued)
		}
	})
}
