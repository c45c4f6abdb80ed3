package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ddbseq/ddbseq"
)

// fillSize is how many IDs one Fill takes.
const fillSize = 1000

// names of the rows that the last line is about.
const (
	nameAdd    = "bare locked add"
	nameNext   = "Sequence.Next"
	nameByName = "Allocator.Next, by name"

	nameObserved = "Sequence.Next, observed"
)

// observe sets all hooks, and a logger of everything.
func observe(o *ddbseq.Options) {
	var events atomic.Int64
	o.Hooks = ddbseq.Hooks{
		Lease: func(ddbseq.LeaseEvent) { events.Add(1) },
		Wait:  func(ddbseq.WaitEvent) { events.Add(1) },
		Alert: func(ddbseq.Alert) { events.Add(1) },
	}
	//nolint:sloglint // slog.DiscardHandler is not enabled, and nothing would be written
	o.Logger = slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// watch reads the figures of a every second, as a collector of metrics does.
func watch(a *ddbseq.Allocator) {
	go func() {
		for range time.Tick(time.Second) {
			if _, err := json.Marshal(a.Stats()); err != nil {
				panic(err)
			}
		}
	}()
}

// A cell is a counter alone on its cache line.
type cell struct {
	_ [64]byte
	n atomic.Int64
	_ [56]byte
}

func noEnd() {}

func floors() []contender {
	return []contender{
		{name: nameAdd, kind: floor, open: func() (loop, func(), error) {
			c := new(cell)
			return func(w *worker, n int) error {
				for range n {
					w.out = c.n.Add(1)
				}
				return nil
			}, noEnd, nil
		}},
		{name: "bare compare-and-swap", kind: floor, open: func() (loop, func(), error) {
			c := new(cell)
			return func(w *worker, n int) error {
				for range n {
					old := c.n.Load()
					for !c.n.CompareAndSwap(old, old+1) {
						old = c.n.Load()
					}
					w.out = old + 1
				}
				return nil
			}, noEnd, nil
		}},
	}
}

// mine are this library's own rows, each on a sequence of its own, with the
// settings that a user gets who sets none.
func mine() []contender {
	with := func(body func(a *ddbseq.Allocator, s *ddbseq.Sequence) loop, optFns ...func(*ddbseq.Options)) func() (loop, func(), error) {
		return func() (loop, func(), error) {
			a, err := ddbseq.New(ddbseq.Memory(), optFns...)
			if err != nil {
				return nil, nil, err
			}
			s, err := a.Sequence("orders")
			if err != nil {
				return nil, nil, err
			}
			return body(a, s), func() { _ = a.Close(context.Background()) }, nil // nothing to lose in memory
		}
	}
	ctx := context.Background()
	next := func(_ *ddbseq.Allocator, s *ddbseq.Sequence) loop {
		return func(w *worker, n int) error {
			for range n {
				id, err := s.Next(ctx)
				if err != nil {
					return err
				}
				w.out = id
			}
			return nil
		}
	}
	return []contender{
		{name: nameNext, kind: ours, open: with(next)},
		{name: nameObserved, kind: ours, open: with(func(a *ddbseq.Allocator, s *ddbseq.Sequence) loop {
			watch(a)
			return next(a, s)
		}, observe)},
		{name: "Sequence.TryNext", kind: ours, open: with(func(_ *ddbseq.Allocator, s *ddbseq.Sequence) loop {
			return func(w *worker, n int) error {
				for range n {
					id, ok := s.TryNext()
					if !ok { // memory is empty while the first blocks grow
						var err error
						if id, err = s.Next(ctx); err != nil {
							return err
						}
					}
					w.out = id
				}
				return nil
			}
		})},
		{name: nameByName, kind: ours, open: with(func(a *ddbseq.Allocator, _ *ddbseq.Sequence) loop {
			return func(w *worker, n int) error {
				for range n {
					id, err := a.Next(ctx, "orders")
					if err != nil {
						return err
					}
					w.out = id
				}
				return nil
			}
		})},
		{name: fmt.Sprintf("Sequence.Fill of %d, an ID", fillSize), kind: ours, batch: fillSize, open: with(func(_ *ddbseq.Allocator, s *ddbseq.Sequence) loop {
			return func(w *worker, n int) error {
				for ; n > 0; n -= fillSize {
					if err := s.Fill(ctx, w.ids); err != nil {
						return err
					}
					w.out = w.ids[0]
				}
				return nil
			}
		})},
	}
}
