package ddbseq_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/ddbseq/ddbseq"
)

// How these compare with other ways to make IDs: make bench.

var sink int64

// benchSequence returns a sequence on a store in memory that has handed out an
// ID. Its blocks need not grow first, as those of a real one would.
func benchSequence(b *testing.B) (*ddbseq.Allocator, *ddbseq.Sequence) {
	b.Helper()
	a, err := ddbseq.New(ddbseq.Memory(), func(o *ddbseq.Options) { o.MinBlock = 10_000_000 })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := a.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	s, err := a.Sequence("orders")
	if err != nil {
		b.Fatal(err)
	}
	if err := a.Warm(b.Context(), "orders"); err != nil {
		b.Fatal(err)
	}
	return a, s
}

func BenchmarkNext(b *testing.B) {
	_, s := benchSequence(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		id, err := s.Next(ctx)
		if err != nil {
			b.Fatal(err)
		}
		sink = id
	}
}

func BenchmarkNextParallel(b *testing.B) {
	_, s := benchSequence(b)
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var last int64
		for pb.Next() {
			id, err := s.Next(ctx)
			if err != nil {
				b.Error(err)
				return
			}
			if id <= last {
				b.Errorf("%d came after %d", id, last)
				return
			}
			last = id
		}
	})
}

func BenchmarkNextByName(b *testing.B) {
	a, _ := benchSequence(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		id, err := a.Next(ctx, "orders")
		if err != nil {
			b.Fatal(err)
		}
		sink = id
	}
}

func BenchmarkFill(b *testing.B) {
	_, s := benchSequence(b)
	ctx := b.Context()
	ids := make([]int64, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Fill(ctx, ids); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/ID")
}

// What a sequence takes that has handed out one ID and then rests.
func BenchmarkIdleSequences(b *testing.B) {
	const n = 10_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("sequence-%d", i)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var bytes, goroutines int64
	for b.Loop() {
		store := ddbseq.Memory()
		a, err := ddbseq.New(store)
		if err != nil {
			b.Fatal(err)
		}
		before := runtime.NumGoroutine()
		for _, name := range names {
			if _, err := a.Next(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
		// The refills have ended, but for their last instructions.
		for range 1000 {
			if runtime.NumGoroutine() <= before {
				break
			}
			runtime.Gosched()
		}
		goroutines += int64(runtime.NumGoroutine() - before)
		with := heap()
		if err := a.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		bytes += with - heap() // what the store keeps is not a process's
		runtime.KeepAlive(store)
	}
	runtime.KeepAlive(names)
	b.ReportMetric(float64(bytes)/float64(b.N*n), "bytes/sequence")
	b.ReportMetric(float64(goroutines)/float64(b.N), "goroutines")
}
