package main

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/ddbseq/ddbseq/internal/bridge"
)

// Without outages the Allocator leases when and what its planner leases on the
// engine, to the ID, so that what is replayed there holds for it.
func TestTheAllocatorDoesWhatItsPlannerSays(t *testing.T) {
	cached := bridge.DefaultSizing()
	cached.Runway, cached.MinBlock, cached.MaxBlock = 0, 50, 50
	short := bridge.DefaultSizing()
	short.Runway, short.LeaseEvery, short.MinBlock = 20e6, 100e6, 10
	for name, z := range map[string]bridge.Sizing{"default": bridge.DefaultSizing(), "cache 50": cached, "short of IDs": short} {
		for _, scale := range []string{"x1", "50/s"} {
			for _, tr := range traces(t) {
				l, err := build(tr, scale, 1)
				if err != nil {
					t.Fatal(err)
				}
				l = busiest(l, 20_000)
				probes := every(500, 1)
				for i := range probes {
					probes[i] = l.Period / 500 * int64(i)
				}
				want := onEngine(func() Policy { return newOurs(z) })(l, defaultStore, probes)
				got := onAllocator(z)(l, defaultStore, probes)
				for i, p := range want.Probes {
					if p != got.Probes[i] {
						t.Errorf("%s, %s %s: %+v, want %+v", name, tr.Name, scale, got.Probes[i], p)
						break
					}
				}
				want.Probes, got.Probes = nil, nil
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %s %s: %+v, want %+v", name, tr.Name, scale, got, want)
				}
				if z.Runway == 0 && got.Waits == 0 {
					t.Errorf("%s, %s %s: nobody waited", name, tr.Name, scale)
				}
			}
		}
	}
}

// With outages too nobody waits, and agreement sees it if somebody does.
func TestAgreementOnTheBuiltInTraces(t *testing.T) {
	z := bridge.DefaultSizing()
	var planned, actual []Row
	for _, tr := range traces(t) {
		l, err := build(tr, "30/s", 1)
		if err != nil {
			t.Fatal(err)
		}
		l = busiest(l, 50_000)
		planned = append(planned, evaluate(l, "ours", onEngine(func() Policy { return newOurs(z) }), 500))
		actual = append(actual, evaluate(l, "real", onAllocator(z), 500))
	}
	var out bytes.Buffer
	if !agreement(&out, planned, actual) {
		t.Error(out.String())
	}
	actual[0].OutageWaitPerM, actual[1].LostMean = 1, 2
	if agreement(&out, planned[:1], actual[:1]) || agreement(&out, planned[1:2], actual[1:2]) {
		t.Error("rows that differ agree")
	}
}

func TestBusiest(t *testing.T) {
	l := Load{Bucket: 1, From: 100, To: 400, Period: 300 * second}
	for i := range int64(300) {
		l.Arrivals = append(l.Arrivals, i*second)
		if i == 200 {
			for j := range int64(50) {
				l.Arrivals = append(l.Arrivals, i*second+j+1)
			}
		}
	}
	got := busiest(l, 70)
	if n := len(got.Arrivals); n != 70 || got.Arrivals[0] != 0 || got.Arrivals[n-1] >= got.Period ||
		got.From < 100+185 || got.To > 100+215 || float64(got.Period) != (got.To-got.From)*float64(second) {
		t.Errorf("%d calls from %g to %g, period %d", n, got.From, got.To, got.Period)
	}
	if got := busiest(l, 0); len(got.Arrivals) != 350 {
		t.Errorf("all is %d calls", len(got.Arrivals))
	}
}
