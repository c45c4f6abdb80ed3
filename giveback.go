package ddbseq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// A tail is what was left of a sequence when its memory was emptied. It left
// memory before anything is written and is never used again, whatever the reply:
// once a give-back has been sent, someone else may have leased those IDs.
type tail struct {
	s       *core
	closed  bool  // by Close, otherwise by Refresh and the like
	newest  *item // as the lease of the newest block left it
	dropped int64 // IDs, in all blocks

	// The IDs up to the end of the newest block that follow each other without
	// a gap and of which none was handed out: these can be given back.
	n, first, step int64

	unuse            int64 // of these, leased on the day that is stored
	issued, reported int64 // by this process: in all, and as the totals have it
}

// giveBack returns tails to the table, the largest first and up to MaxParallel
// at a time, all within one deadline. What others have leased behind is
// abandoned, and so is what the answer leaves unknown.
func (a *Allocator) giveBack(ctx context.Context, tails []*tail) error {
	tails = slices.DeleteFunc(tails, func(t *tail) bool { return t == nil || t.n == 0 || t.newest == nil })
	if len(tails) == 0 || a.opts.forfeit {
		return nil
	}
	slices.SortFunc(tails, func(x, y *tail) int { return cmp.Compare(y.n, x.n) })
	ctx, cancel := context.WithTimeout(ctx, a.opts.CloseTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(a.opts.MaxParallel)
	errs := make([]error, len(tails))
	for i, t := range tails {
		g.Go(func() error {
			errs[i] = t.giveBack(ctx)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs, all of them
	return errors.Join(errs...)
}

// giveBack moves the counter back to before the tail, on two conditions: the
// newest write to the item is the lease of our newest block, and the counter is
// where that lease left it. Either alone makes duplicates: lastID alone when
// someone leased the same numbers after an earlier give-back, the token alone
// when a late attempt of that lease, or a writer without tokens, moved lastID.
func (t *tail) giveBack(ctx context.Context) error {
	s := t.s
	it := t.newest
	if it.lastID == nil || *it.lastID != t.first+(t.n-1)*t.step {
		return nil // somebody without tokens was behind us already
	}
	ch := &change{
		key: s.key(), token: randomID(), base: it, holds: it.tok,
		present: true, lo: bigOf(*it.lastID), hi: bigOf(*it.lastID),
		unuse: t.unuse,
	}
	if it.ver != "" {
		ch.add = totals{returned: t.n}
		if t.closed { // otherwise the next lease reports it
			ch.add.issued = t.issued - t.reported
		}
	}
	d := it.definition()
	if low := d.minus(t.first, 1); low.IsInt64() && (d.contains(low.Int64()) || it.ver == "") {
		ch.set = new(low.Int64())
	} else {
		// Nothing lies before the tail: it begins a sequence or a lap. Then it
		// is as if nothing had been leased, and first comes first again. (The
		// generator that an adopted item has knows no such thing.)
		ch.clear = &t.first
	}
	done := true
	_, err := s.a.carry(ctx, s.name, it, func(now *item) (*change, error) {
		if now != nil && ch.judge(now) == verdictOK {
			return ch, nil
		}
		done = false
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("ddbseq: %d IDs of sequence %q in table %q could not be given back: %w", t.n, s.name, s.a.store.table(), err)
	}
	if done {
		s.returned(t)
	}
	return nil
}
