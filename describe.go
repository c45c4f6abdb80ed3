package ddbseq

import (
	"context"
	"iter"
)

// A Description is a sequence as the table has it.
type Description struct {
	Name       string
	Definition Definition
	// LastID is the last value leased; issued or not, no process will lease it
	// or one before it again. It means nothing unless Called.
	LastID int64
	// Called is false while nothing has been leased since the sequence was made
	// or restarted: the next value is then Next.
	Called bool
	// Next is the first value of the next block, unless Exhausted.
	Next      int64
	Exhausted bool
	Epoch     int64 // raised by Restart and by a change of direction; 0 before
	Paused    bool
	Tuning    Tuning

	// DailyLimit and its zone ("" is UTC), 0 if there is none, and how many IDs
	// were leased on the day of the last lease. Days are counted also without a
	// limit, in UTC, and then the first leases after midnight may count for the
	// day before; not for adopted items.
	DailyLimit     int64
	DailyLimitZone string
	Day            string // as 2006-01-02
	Used           int64
	Days           [7]int64 // of the seven days before Day, the newest first, to six digits

	// Totals of all processes since the sequence was made, approximate where
	// replies were lost or a process was killed. What was leased and neither
	// issued nor returned is in memory somewhere, or a gap.
	Leased, Issued, Returned int64
}

// GapRatio is the part of what was leased that was neither issued nor returned:
// in memory somewhere, or a gap. Much of it, in a sequence that has been used for
// long, suggests processes that crash in a loop.
func (d Description) GapRatio() float64 {
	return totals{leased: d.Leased, issued: d.Issued, returned: d.Returned}.gapRatio()
}

func (t totals) gapRatio() float64 {
	if t.leased <= 0 {
		return 0
	}
	return max(0, 1-(float64(t.issued)+float64(t.returned))/float64(t.leased))
}

func (a *Allocator) describe(it *item) Description {
	d := it.definition()
	out := Description{Name: it.key[min(len(a.opts.KeyPrefix), len(it.key)):], Definition: d, Epoch: it.epoch, Paused: it.paused,
		Tuning: it.tune.get().clone(), Day: it.day, Used: it.used, Leased: it.totals.leased, Issued: it.totals.issued, Returned: it.totals.returned}
	copy(out.Days[:], it.days)
	limit := it.said().limit(dailyLimit{})
	out.DailyLimit, out.DailyLimitZone = limit.max, limit.zone
	switch {
	case it.lastID == nil:
		out.Next = it.first()
	default:
		out.LastID, out.Called = *it.lastID, true
		switch {
		case d.room(*it.lastID) > 0:
			out.Next = *it.lastID + d.Increment
		case d.Cycle:
			out.Next = d.first()
		default:
			out.Exhausted = true
		}
	}
	return out
}

// Describe reads a sequence, with strong consistency. It never leases.
func (a *Allocator) Describe(ctx context.Context, name string) (Description, error) {
	if err := a.checkName(name); err != nil {
		return Description{}, err
	}
	it, err := a.administer(ctx, name, func(it *item) (*change, error) {
		if it == nil {
			return nil, a.notFound(name)
		}
		return nil, nil
	})
	if err != nil {
		return Description{}, err
	}
	return a.describe(it), nil
}

// List yields the sequences of the table whose key begins with the Allocator's
// prefix, page by page, in no order and not as of one moment. An item that cannot
// be read is yielded as an error; a call that fails is made again until ctx ends,
// and then ends the list.
func (a *Allocator) List(ctx context.Context) iter.Seq2[Description, error] {
	return func(yield func(Description, error) bool) {
		var at cursor
		for first := true; first || at != nil; first = false {
			var page []listed
			err := a.retry(ctx, "listing the sequences", func(ctx context.Context) error {
				var next cursor
				var err error
				if page, next, err = a.store.page(ctx, a.opts.KeyPrefix, at); err == nil {
					at = next
				}
				return err
			})
			if err != nil {
				yield(Description{}, err)
				return
			}
			for _, l := range page {
				var d Description
				if l.err == nil {
					d = a.describe(l.item)
				}
				if !yield(d, l.err) {
					return
				}
			}
		}
	}
}
