package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/emulator"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// latency is what the proxy adds to each call of the store.
const latency = 5 * time.Millisecond

// wholeSystem prints what a process gets with real leases. d is the length of
// the steady load; the rest is in proportion.
func wholeSystem(out io.Writer, d time.Duration) error {
	fmt.Fprintln(out, machine())
	if err := memory(out); err != nil {
		return err
	}
	r, err := newRig()
	if errors.Is(err, emulator.ErrNotInstalled) {
		fmt.Fprintf(out, "\nthe rest is skipped: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer r.close()
	if err := throughput(out, r, d/12); err != nil {
		return err
	}
	return steady(out, r, d)
}

// A rig is a table in an emulator behind a slow proxy.
type rig struct {
	server *emulator.Server
	proxy  *faultproxy.Proxy
	store  *ddbseq.Store
	idle   func()
}

func newRig() (*rig, error) {
	server, err := startDynoxide()
	if err != nil {
		return nil, err
	}
	proxy, err := faultproxy.New(server.Endpoint(), func(o *faultproxy.Options) {
		o.Rules = []faultproxy.Rule{{Action: faultproxy.Delay(faultproxy.Exactly(latency), faultproxy.Span{})}}
		o.DiscardLog = true
	})
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	client, idle := newClient(proxy.URL())
	r := &rig{server: server, proxy: proxy, store: ddbseq.DynamoDB(client, "sequences"), idle: idle}
	a, err := r.allocator()
	if err == nil {
		err = errors.Join(a.CreateTable(context.Background()), a.Close(context.Background()))
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rig) allocator() (*ddbseq.Allocator, error) {
	return ddbseq.New(r.store, func(o *ddbseq.Options) { o.CreateMissing = true })
}

func (r *rig) close() {
	r.idle()
	_ = r.proxy.Close() // nothing in it is of use any more
	_ = r.server.Stop()
}

// throughput takes as many IDs as can be had, from a cold start on.
func throughput(out io.Writer, r *rig, d time.Duration) error {
	fmt.Fprintf(out, "\nall that can be had, from a cold start, for %v (store: dynoxide + %v)\n", d, latency)
	fmt.Fprintf(out, "%12s %14s %14s %10s %22s %10s\n", "goroutines", "IDs/s", "2nd half", "leases", "leases/1,000,000 IDs", "waits")
	for _, g := range []int{1, 8, 64} {
		a, err := r.allocator()
		if err != nil {
			return err
		}
		s, err := a.Sequence(fmt.Sprintf("throughput-%d", g))
		if err != nil {
			return err
		}
		var (
			stop atomic.Bool
			wg   sync.WaitGroup
			errs = make([]error, g)
		)
		start := time.Now()
		for i := range g {
			wg.Go(func() {
				for errs[i] == nil && !stop.Load() {
					for range 100 {
						if _, errs[i] = s.Next(context.Background()); errs[i] != nil {
							return
						}
					}
				}
			})
		}
		time.Sleep(d / 2)
		half, halfTime := s.Stats(), time.Since(start)
		time.Sleep(d / 2)
		stop.Store(true)
		wg.Wait()
		took, all := time.Since(start), s.Stats()
		second := all.Sub(half)
		if err := errors.Join(append(errs, a.Close(context.Background()))...); err != nil {
			return err
		}
		fmt.Fprintf(out, "%12d %14s %14s %10d %22.4f %10d\n", g,
			digits0(float64(all.Issued)/took.Seconds()), digits0(float64(second.Issued)/(took-halfTime).Seconds()),
			all.Leases, perMillion(all), all.Waited)
	}
	return nil
}

func perMillion(s ddbseq.Stats) float64 { return 1e6 * float64(s.Leases) / float64(max(1, s.Issued)) }

// memory prints what a sequence takes that was looked up, and that has handed
// out an ID, without what the store in memory keeps of it.
func memory(out io.Writer) error {
	const n = 10_000
	fmt.Fprintf(out, "\n%d sequences\n", n)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("sequence-%d", i)
	}
	for _, active := range []bool{false, true} {
		store := ddbseq.Memory()
		a, err := ddbseq.New(store)
		if err != nil {
			return err
		}
		goroutines := runtime.NumGoroutine()
		for _, name := range names {
			s, err := a.Sequence(name)
			if err == nil && active {
				_, err = s.Next(context.Background())
			}
			if err != nil {
				return err
			}
		}
		extra := settle(goroutines)
		with := heap()
		if err := a.Close(context.Background()); err != nil {
			return err
		}
		without := heap() // a is gone
		runtime.KeepAlive(store)
		runtime.KeepAlive(names)
		what := "looked up"
		if active {
			what = "after one Next"
		}
		fmt.Fprintf(out, "%-16s %6d bytes each, %d goroutines\n", what, (with-without)/n, extra)
	}
	return nil
}

// settle waits until there are no more goroutines than before, or a second has
// passed, and returns how many there are.
func settle(before int) int {
	for range 100 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return runtime.NumGoroutine() - before
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
