package ddbseq

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// FuzzPlanner calls a planner with anything, int64 ends, standing and backward
// clocks included, and checks what an Allocator relies on.
func FuzzPlanner(f *testing.F) {
	ops := func(v ...uint64) (b []byte) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		return b
	}
	f.Add(int64(time.Minute), int64(time.Minute), int64(time.Minute), int64(100), int64(1e8), int64(0), 0.5,
		ops(0, 0, 0, 1, 1<<32, 5, 2, 3, 1<<40, 3, 1, 1, 4, 2, 2))
	f.Add(int64(0), int64(-1), int64(1), int64(1), int64(1), int64(math.MinInt64), math.NaN(),
		ops(0, 1<<63, 1<<63, 3, 1<<63-1, 1<<63-1, 1, 0, 1<<63-1, 3, 0, 0))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), math.Inf(1),
		ops(0, 1<<63-1, 1<<63-1, 3, 0, 1<<63-1))

	f.Fuzz(func(t *testing.T, runway, leaseEvery, rateWindow, minBlock, maxBlock, first int64, jitter float64, data []byte) {
		p := newPlanner(sizing{time.Duration(runway), time.Duration(leaseEvery), time.Duration(rateWindow), minBlock, maxBlock, first, jitter})
		for ; len(data) >= 24; data = data[24:] {
			op := binary.LittleEndian.Uint64(data)
			now := time.Duration(binary.LittleEndian.Uint64(data[8:]))
			n := int64(binary.LittleEndian.Uint64(data[16:]))
			switch op % 5 {
			case 0:
				p.observe(now, n)
			case 1:
				p.granted(now, time.Duration(n))
			case 2:
				p.throttled(now)
			case 3:
				stock, demand := n, int64(op>>3)
				if op&(1<<60) != 0 {
					demand = 0
				}
				checkDecision(t, &p, p.plan(now, stock, demand), max(stock, 0), demand)
			case 4:
				cfg := p.cfg
				cfg.rateWindow, cfg.runway = now, time.Duration(n)
				p.setSizing(cfg)
			}
		}
		for _, s := range p.slots {
			if !(s >= 0 && s <= math.MaxInt64) {
				t.Fatalf("slots %v", p.slots)
			}
		}
		for _, v := range []float64{p.peak, p.stretched(), p.leaseTime()} {
			if !(v >= 0 && v <= math.MaxFloat64) {
				t.Fatalf("%+v", p)
			}
		}
	})
}

func checkDecision(t *testing.T, p *planner, d decision, stock, demand int64) {
	t.Helper()
	switch {
	case d.lease != 0 && (d.lease < p.cfg.minBlock || d.lease > p.cfg.maxBlock):
		t.Fatalf("lease outside %d..%d: %+v", p.cfg.minBlock, p.cfg.maxBlock, d)
	case demand > 0 && d.lease == 0:
		t.Fatalf("callers wait for %d and nothing is leased: %+v", demand, d)
	case d.lease == 0 && d.trigger >= stock && stock > 0:
		t.Fatalf("stock %d is at the trigger and nothing is leased: %+v", stock, d)
	case d.trigger < -1 || d.trigger > max(p.cfg.maxBlock, stock), d.tick < 0, d.left < 0:
		t.Fatalf("stock %d: %+v", stock, d)
	case p.cfg.runway > 0 && d.tick == 0 && d.lease == 0 && d.trigger != stock-1:
		t.Fatalf("idle, and the next call wakes nobody: %+v", d)
	}
}
