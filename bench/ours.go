package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ddbseq/ddbseq"
)

// fillSize is how many IDs one Fill takes.
const fillSize = 1000

// names of the rows that the last line is about.
const (
	nameAdd    = "bare locked add"
	nameNext   = "Sequence.Next"
	nameByName = "Allocator.Next, by name"
)

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
	with := func(body func(a *ddbseq.Allocator, s *ddbseq.Sequence) loop) func() (loop, func(), error) {
		return func() (loop, func(), error) {
			a, err := ddbseq.New(ddbseq.Memory())
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
	return []contender{
		{name: nameNext, kind: ours, open: with(func(_ *ddbseq.Allocator, s *ddbseq.Sequence) loop {
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
		})},
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
