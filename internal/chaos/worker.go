package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ddbseq/ddbseq"
)

// worker is a goroutine that hands out IDs. An ID counts as handed out, and
// would be used, once it is in the history.
type worker struct {
	*child

	number int
	rng    *rand.Rand
}

func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		s := w.pick()
		call, cancel := context.WithTimeout(ctx, w.patience())
		err := w.call(call, s)
		cancel()
		if errors.Is(err, ddbseq.ErrClosed) {
			if !w.closing.Load() {
				w.problem("closed before Close: sequence "+s.name, err)
			}
			return
		}
		if errors.Is(err, ddbseq.ErrExhausted) && s.size == 0 {
			w.problem("sequence "+s.name, err)
		} else if !errors.Is(err, ddbseq.ErrExhausted) {
			w.check("sequence "+s.name, err)
		}
		if w.rng.IntN(20) > 0 {
			time.Sleep(time.Duration(w.rng.IntN(30)) * time.Millisecond)
		}
	}
}

// pick returns the sequence of the next call. Each process is busy on some and
// asks others now and then: what it leaves of a block can be given back only if
// nobody has leased since.
func (w *worker) pick() *sequence {
	i := w.rng.IntN(w.busy[len(w.busy)-1])
	for seq, upTo := range w.busy {
		if i < upTo {
			return w.seqs[seq]
		}
	}
	panic("unreachable")
}

// patience is how long a caller waits: too short for anything, or long enough
// for several attempts.
func (w *worker) patience() time.Duration {
	if w.rng.IntN(5) == 0 {
		return time.Duration(w.rng.IntN(5)) * time.Millisecond
	}
	return time.Duration(50+w.rng.IntN(2500)) * time.Millisecond
}

func (w *worker) call(ctx context.Context, s *sequence) error {
	n := 1 + w.rng.IntN(20)
	if s.quiet && w.rng.IntN(3) == 0 || w.rng.IntN(40) == 0 {
		return w.comeAndGo(ctx, s)
	}
	if w.rng.IntN(20) == 0 {
		n *= 10
	}
	switch w.rng.IntN(8) {
	case 0:
		ids := make([]int64, n)
		if err := s.Fill(ctx, ids); err != nil {
			return err
		}
		w.rec.ids('f', w.number, s.index, -1, ids)
		return nil
	case 1:
		blk, err := s.Reserve(ctx, int64(n))
		if err != nil {
			return err
		}
		w.rec.line("r %d %d -1 %d %d %d", w.number, s.index, blk.First, blk.Step, blk.N)
		return nil
	case 2, 3:
		return w.several('t', s, n, func() (int64, error) {
			id, ok := s.TryNext()
			if !ok {
				return 0, errEmpty
			}
			return id, nil
		})
	}
	return w.several('n', s, n, func() (int64, error) { return s.Next(ctx) })
}

// comeAndGo leases a block and, with luck, gives it back before anybody has
// leased behind it, whole or after one ID. Others then lease the same numbers.
func (w *worker) comeAndGo(ctx context.Context, s *sequence) (err error) {
	if w.rng.IntN(2) == 0 {
		err = w.all.Warm(ctx, s.name)
	} else {
		err = w.several('n', s, 1, func() (int64, error) { return s.Next(ctx) })
	}
	w.refreshOne(ctx, s.index)
	return err
}

var errEmpty = errors.New("memory is empty")

// several asks for n IDs one after the other and writes down those it got.
func (w *worker) several(op byte, s *sequence, n int, next func() (int64, error)) (err error) {
	floor := s.front.Load()
	var ids []int64
	for len(ids) < n {
		var id int64
		if id, err = next(); err != nil {
			break
		}
		s.returned(id)
		ids = append(ids, id)
	}
	w.rec.ids(op, w.number, s.index, floor, ids)
	return err
}
