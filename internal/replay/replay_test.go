package main

import (
	"bytes"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/bridge"
)

var published = map[string]func() Policy{
	"monday":    func() Policy { return newFixedTopUp(1000, 0.8) },
	"coupang":   func() Policy { return newCoupang(500, 50, 5) },
	"leaf":      func() Policy { return newLeaf(2000, 1_000_000) },
	"hibernate": func() Policy { return newPooled(50) },
}

func oursDefault() Policy { return newOurs(bridge.DefaultSizing()) }

func every(n int, gap time.Duration) []int64 {
	a := make([]int64, n)
	for i := range a {
		a[i] = int64(i) * int64(gap)
	}
	return a
}

func TestLatencyIsLognormal(t *testing.T) {
	mu, sigma := defaultStore.lognormal()
	rng := rand.New(rand.NewPCG(1, 1))
	v := make([]float64, 200_000)
	for i := range v {
		v[i] = math.Exp(mu+sigma*rng.NormFloat64()) / 1e6
	}
	slices.Sort(v)
	if m, p := quantile(v, 0.5), quantile(v, 0.99); math.Abs(m-5) > 0.1 || math.Abs(p-30) > 1 {
		t.Fatalf("median %.2f ms, p99 %.2f ms", m, p)
	}
}

// One call per second: every 50th call waits for one lease, nobody else does.
func TestHibernateWaitsOncePerBlock(t *testing.T) {
	r := run(every(5000, time.Second), published["hibernate"](), defaultStore, nil, 1)
	if r.Cold != 1 || r.Waits != 99 || r.Writes != 100 || r.Issued != 5000 || r.EndQueued != 0 || r.MaxWait > 200*time.Millisecond {
		t.Fatalf("%+v", r)
	}
}

// At a calm rate: one write per 1,000 IDs, refilled at 799.
func TestMondayTopsUp(t *testing.T) {
	r := run(every(100_000, 10*time.Millisecond), published["monday"](), defaultStore, nil, 1)
	if r.Waits != 0 || r.Cold != 0 || r.Writes < 100 || r.Writes > 101 || r.MaxStock > 1799 || r.MaxStock < 1790 {
		t.Fatalf("%+v", r)
	}
}

// Below 10/s: threshold 50, lease 450. At 200/s 5 s of rate is over the limit,
// so each call leases what is missing.
func TestCoupangThreshold(t *testing.T) {
	r := run(every(4501, time.Second), published["coupang"](), defaultStore, nil, 1)
	if r.Writes != 11 || r.Waits != 0 || r.MaxLease != 500 {
		t.Fatalf("%+v", r)
	}
	r = run(every(200_000, 5*time.Millisecond), published["coupang"](), defaultStore, nil, 1)
	if per := float64(r.Writes) / 200_000; per < 0.3 {
		t.Fatalf("writes per id %.2f", per)
	}
}

type granted struct {
	Policy
	n *[]int64
}

func (g granted) OnGrant(v *View, l Grant) int64 {
	*g.n = append(*g.n, l.N)
	return g.Policy.OnGrant(v, l)
}

// Leaf at 100 IDs/s: 2000, 2000, then x2 while the time between two loads (90%
// of one segment and 10% of the next) is under 15 min = 90,000 IDs at this
// rate: 57,600 + 12,800 doubles to 256,000, 115,200 + 25,600 keeps, 230,400 +
// 25,600 halves. At most 512,000.
func TestLeafSteps(t *testing.T) {
	var steps []int64
	run(every(2_000_000, 10*time.Millisecond), granted{published["leaf"](), &steps}, defaultStore, nil, 1)
	want := []int64{2000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 256000, 128000, 64000, 64000}
	if !slices.Equal(steps[:len(want)], want) {
		t.Fatalf("steps %v", steps)
	}
	steps = nil
	run(every(5_000_000, 100*time.Microsecond), granted{published["leaf"](), &steps}, defaultStore, nil, 1)
	if m := slices.Max(steps); m != 512000 {
		t.Fatalf("max step %d", m)
	}
}

// audit checks that granted = issued + stock, and that nobody waits beside stock.
type audit struct {
	Policy
	t       *testing.T
	granted int64
}

func (a *audit) OnGrant(v *View, g Grant) int64 {
	a.granted += g.N
	if a.granted != v.Issued+v.Stock || v.Issued+v.Waiting != v.Arrived || v.Waiting > 0 && v.Stock > 0 {
		a.t.Fatalf("granted %d, view %+v", a.granted, *v)
	}
	return a.Policy.OnGrant(v, g)
}

func TestRunConservesIDsAndIsDeterministic(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	arrivals := make([]int64, 300_000)
	var at float64
	for i := range arrivals {
		at += rng.ExpFloat64() / []float64{50, 9000}[i/20_000%2]
		arrivals[i] = int64(at * 1e9)
	}
	store := defaultStore
	store.Outages = outages(arrivals[len(arrivals)-1], 60*second, 10*second, 3)
	all := map[string]func() Policy{"ours": oursDefault}
	maps.Copy(all, published)
	for name, mk := range all {
		a := run(arrivals, &audit{Policy: mk(), t: t}, store, nil, 1)
		b := run(arrivals, mk(), store, nil, 1)
		if a.Issued != int64(len(arrivals)) || a.EndQueued != 0 {
			t.Errorf("%s: issued %d, queued %d", name, a.Issued, a.EndQueued)
		}
		if a.Waits != b.Waits || a.MaxWait != b.MaxWait || a.Writes != b.Writes {
			t.Errorf("%s: not deterministic", name)
		}
	}
}

// A fixed stock of 100 at 10 calls/s survives 10 s; the arrivals wrap around.
func TestSurvival(t *testing.T) {
	got := survival(every(1000, 100*time.Millisecond), 100*second, []Probe{
		{At: 50 * second, Stock: 100, Arrived: 500},
		{At: 99 * second, Stock: 100, Arrived: 990},
		{At: 0, Stock: 2500, Arrived: 0},
		{At: 50 * second, Stock: 0, Waiting: 1, Arrived: 500},
	})
	for i, want := range []float64{10, 10, 250, 0} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Fatalf("probe %d: got %v, want %v", i, got[i], want)
		}
	}
}

// During an outage leases fail and are retried every 250 ms; the first attempt
// after it is granted, and those who queued are served then.
func TestOutageDelaysLeases(t *testing.T) {
	store := defaultStore
	store.Outages = [][2]int64{{10 * second, 20 * second}}
	r := run(every(3000, 10*time.Millisecond), published["hibernate"](), store, nil, 1)
	if r.Failed < 39 || r.Failed > 41 || r.MaxWait < 9*time.Second || r.MaxWait > 11*time.Second {
		t.Fatalf("%+v", r)
	}
}

// waker leases from OnWake only.
type waker struct{ base }

func (w waker) OnStart(v *View) int64 { w.OnWake(v); return 100 }
func (waker) OnWake(v *View) int64 {
	v.WakeAt = v.Now + second/10
	if v.InFlight == 0 && v.Stock < 100 {
		return 100 - v.Stock
	}
	return 0
}

func TestWakes(t *testing.T) {
	r := run(every(10_000, 10*time.Millisecond), waker{}, defaultStore, nil, 1)
	if r.Waits != 0 || r.Writes < 900 || r.Writes > 1001 {
		t.Fatalf("%+v", r)
	}
}

// watched counts how often ours looks at the counts.
type watched struct {
	bridge.Planner
	plans *int
}

func (w watched) Plan(now time.Duration, stock, demand int64) bridge.Decision {
	*w.plans++
	return w.Planner.Plan(now, stock, demand)
}

// The planner must be asked about once a second however many calls there are.
func TestOursDoesNotSeeEveryCall(t *testing.T) {
	p, plans := newOurs(bridge.DefaultSizing()), 0
	p.planner = watched{p.planner, &plans}
	if r := run(every(1_000_000, 100*time.Microsecond), p, defaultStore, nil, 1); r.Waits > 0 || plans > 130 {
		t.Fatalf("%d plans in 100 s, %d waits", plans, r.Waits)
	}
}

func traces(t *testing.T) []Trace {
	root, err := fs.Sub(testdata, "testdata")
	if err != nil {
		t.Fatal(err)
	}
	ts, err := loadManifest(root)
	if err != nil || len(ts) == 0 {
		t.Fatal(ts, err)
	}
	return ts
}

func TestBuildKeepsCounts(t *testing.T) {
	for _, tr := range traces(t) {
		bs, _, err := tr.read()
		if err != nil {
			t.Fatal(err)
		}
		l, err := build(tr, "x1", 1)
		if err != nil {
			t.Fatal(err)
		}
		if want := count(bs, 0, tr.Dur); len(l.Arrivals) != int(want) || !slices.IsSorted(l.Arrivals) || l.Arrivals[len(l.Arrivals)-1] >= l.Period {
			t.Errorf("%s: %d calls of %.0f, last at %d of %d", tr.Name, len(l.Arrivals), want, l.Arrivals[len(l.Arrivals)-1], l.Period)
		}
		h, err := build(tr, "500/s", 1)
		if err != nil {
			t.Fatal(err)
		}
		if m := h.mean(); math.Abs(m-500) > 0.5 {
			t.Errorf("%s: mean %.1f/s", tr.Name, m)
		}
	}
}

// Ours keeps the bars on the built-in traces, at rates that take no time to replay.
func TestOursKeepsTheBars(t *testing.T) {
	var rows []Row
	for _, scale := range []string{"x1", "x100", "300/s"} {
		for _, tr := range traces(t) {
			l, err := build(tr, scale, 1)
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, evaluate(l, "ours", onEngine(oursDefault), 1000))
		}
	}
	var out bytes.Buffer
	if printTable(&out, rows); !check(&out, rows) {
		t.Error(out.String())
	}
	var csv bytes.Buffer
	if err := writeCSV(&csv, rows); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(csv.String()) {
		if strings.Count(line, ",") != strings.Count(columns, ",") {
			t.Fatalf("line %q", line)
		}
	}
}

func TestCheckMissesABar(t *testing.T) {
	l, err := build(traces(t)[0], "x1", 1)
	if err != nil {
		t.Fatal(err)
	}
	row := evaluate(l, "ours", onEngine(published["hibernate"]), 100)
	if check(&bytes.Buffer{}, []Row{row}) {
		t.Error("a policy that waits for every block kept all bars")
	}
}
