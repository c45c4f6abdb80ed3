package ddbseq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Create makes a sequence, as CREATE SEQUENCE does. If it exists that is fine as
// long as its definition and daily limit agree with the clauses that are given
// (what is left out may have been altered since), and otherwise it is
// ErrDefinitionMismatch.
func (a *Allocator) Create(ctx context.Context, name string, cs ...Clause) error {
	c := gather(cs)
	if err := errors.Join(a.checkName(name), c.checkCreate(name)); err != nil {
		return err
	}
	def := c.explicit()
	key := a.opts.KeyPrefix + name
	ch := &change{key: key, token: randomID(), base: &item{key: key, def: &def}, create: true, def: &def, ver: randomID(), born: randomID()}
	_, err := a.administer(ctx, name, func(it *item) (*change, error) {
		if it == nil {
			return ch, nil
		}
		if why := c.disagreesWith(it); why != "" {
			return nil, a.mismatch(name, why)
		}
		return nil, nil
	})
	a.nudge(name)
	return err
}

// Alter changes a sequence, as ALTER SEQUENCE does. Clauses that are not named
// keep their value. It is refused, and nothing changes, if START or the last
// value leased would lie outside of the new bounds; RESTART in the same call
// replaces the last value first. A change of direction, and a RESTART that goes
// back, needs [AllowReuse].
//
// After a change of the definition or a RESTART this process drops what it holds;
// it is abandoned. Pause, Tune and a daily limit stop leases only: what is in
// memory is handed out, here too. Other processes hand out what they hold and obey
// with their next lease, or at once after Refresh.
func (a *Allocator) Alter(ctx context.Context, name string, cs ...Clause) error {
	c := gather(cs)
	if err := a.checkName(name); err != nil {
		return err
	}
	if !c.defines() && !c.restarts() && c.tune == nil {
		return nil
	}
	token, ver, born := randomID(), randomID(), randomID()
	it, err := a.administer(ctx, name, func(it *item) (*change, error) {
		if it == nil {
			return nil, a.notFound(name)
		}
		return a.alteration(name, it, c, token, ver, born)
	})
	if c.sql() || c.restarts() {
		a.changed(name, it, err)
	} else if err == nil {
		a.retuned(name, it)
	}
	return err
}

func (a *Allocator) alteration(name string, it *item, c clauses, token, ver, born string) (*change, error) {
	old := it.definition()
	d := c.over(old)
	oldLimit := it.said().limit(dailyLimit{})
	limit := c.limit(oldLimit)
	if err := cmp.Or(d.check(name, clauses{widthMin: c.widthMin, widthMax: c.widthMax}), limit.check(name)); err != nil {
		return nil, err
	}
	position := it.first()
	if it.lastID != nil {
		position = *it.lastID
	}
	if c.restart != nil {
		position = *c.restart
	} else if c.restartStart {
		position = d.Start
	}
	if err := d.checkPosition(name, position, !c.restarts() && it.lastID != nil); err != nil {
		return nil, err
	}
	ch := &change{key: it.key, token: token, base: it, fence: !c.restarts(), born: born}
	if c.tune != nil {
		t, bad := it.tune.change(*c.tune)
		if bad != "" {
			return nil, fmt.Errorf("%w: Tune of sequence %q in table %q: %s", ErrInvalidOptions, name, a.store.table(), bad)
		}
		ch.tune = t
	}
	if (!c.defines() || d == old && limit == oldLimit) && !c.restarts() {
		if ch.tune == nil {
			return nil, nil
		}
		ch.fence, ch.present, ch.absent = false, true, it.lastID == nil
		return ch, nil
	}
	if c.defines() {
		def := d.all().with(limit)
		ch.def, ch.ver = &def, ver
	}
	turns := d.ascending() != old.ascending()
	if turns && !c.allowReuse && !it.untouched() {
		return nil, a.reuse(name, "turning round goes back through the IDs")
	}
	if c.restarts() {
		ch.clear, ch.epoch = &position, it.nextEpoch()
		return ch, a.guardReuse(ch, name, position, !c.allowReuse)
	}
	// No lease may have gone past the new bounds when this is applied.
	ch.present, ch.absent = it.lastID != nil, it.lastID == nil
	ch.lo, ch.hi = bigOf(d.Min), bigOf(d.Max)
	if it.lastID == nil {
		ch.pin = &position // START moves only where a bare RESTART goes
	}
	ch.follow = turns && it.lastID != nil // at must not look as if it were ahead
	if turns && !it.untouched() {
		ch.epoch = it.nextEpoch() // IDs come again: as after a Restart
	}
	return ch, nil
}

// checkPosition is the part of ALTER SEQUENCE's checks that comes after those
// of the definition. PostgreSQL's word for v is RESTART also where nobody gave one.
func (d Definition) checkPosition(name string, v int64, leased bool) error {
	what := fmt.Sprintf("RESTART value (%d)", v)
	if leased {
		what = fmt.Sprintf("RESTART value (%d, the last value leased)", v)
	}
	switch {
	case v < d.Min:
		return &DefinitionError{Sequence: name, Rule: "restart_below_min", Detail: fmt.Sprintf("%s cannot be less than MINVALUE (%d)", what, d.Min)}
	case v > d.Max:
		return &DefinitionError{Sequence: name, Rule: "restart_above_max", Detail: fmt.Sprintf("%s cannot be greater than MAXVALUE (%d)", what, d.Max)}
	}
	return nil
}

// nextEpoch returns an epoch above all earlier ones: also above those of an
// earlier item of that name, or of this one before it was restored, which only
// the clock knows of.
func (it *item) nextEpoch() int64 { return max(it.epoch+1, time.Now().UnixMilli()) }

// untouched reports whether nothing has been leased and kept.
func (it *item) untouched() bool { return it.lastID == nil && it.at == nil && it.epoch == 0 }

// reached returns the furthest value that is known to have been leased, nil if
// none is: lastID, or at if lastID was lowered by hand.
func (it *item) reached() *int64 {
	if it.behindAt() {
		return it.at
	}
	return it.lastID
}

// guardReuse lets ch, which makes next the next value, through only while
// everything leased lies before it, if guarded. The condition holds that against
// leases between our reading and our writing.
func (a *Allocator) guardReuse(ch *change, name string, next int64, guarded bool) error {
	it, d := ch.base, ch.base.definition()
	ch.present, ch.absent = true, true
	if !guarded {
		return nil
	}
	if it.untouched() {
		ch.present = false
		return nil
	}
	if reached := it.reached(); reached == nil {
		if d.after(it.first(), next) {
			return a.reuse(name, fmt.Sprintf("%d comes before %d, where the last Restart went", next, it.first()))
		}
	} else if !d.after(next, *reached) {
		return a.reuse(name, fmt.Sprintf("%d does not come after %d, the last value leased", next, *reached))
	}
	if one := bigOf(1); d.ascending() {
		ch.hi = bigOf(next)
		ch.hi.Sub(ch.hi, one)
	} else {
		ch.lo = bigOf(next)
		ch.lo.Add(ch.lo, one)
	}
	return nil
}

// Restart makes v the next value, as setval(v, false) and RESTART WITH do. v
// need not be on the stride but must lie within the bounds, otherwise it is
// ErrOutOfBounds. Going back, into values that were leased before, needs
// [AllowReuse].
//
// This process drops what it holds. Other processes hand out what they hold, and
// obey with their next lease.
func (a *Allocator) Restart(ctx context.Context, name string, v int64, cs ...Clause) error {
	return a.restart(ctx, name, v, false, cs)
}

// RestartAfter makes v the last value, as setval(v, true) does: the next one is
// v + Increment. In everything else it is [Allocator.Restart].
func (a *Allocator) RestartAfter(ctx context.Context, name string, v int64, cs ...Clause) error {
	return a.restart(ctx, name, v, true, cs)
}

func (a *Allocator) restart(ctx context.Context, name string, v int64, called bool, cs []Clause) error {
	c := gather(cs)
	if err := a.checkName(name); err != nil {
		return err
	}
	if c.defines() || c.restarts() || c.tune != nil {
		return &DefinitionError{Sequence: name, Rule: "misplaced_clause", Detail: "Restart takes no clause but AllowReuse"}
	}
	token, born := randomID(), randomID()
	it, err := a.administer(ctx, name, func(it *item) (*change, error) {
		if it == nil {
			return nil, a.notFound(name)
		}
		d := it.definition()
		if !d.contains(v) {
			return nil, a.outOfBounds(name, v, d)
		}
		ch := &change{key: it.key, token: token, base: it, born: born, epoch: it.nextEpoch()}
		if !called {
			ch.clear = &v
			return ch, a.guardReuse(ch, name, v, !c.allowReuse)
		}
		ch.set = &v
		if d.room(v) == 0 {
			// Nothing follows, or a wrap does: only what was leased beyond v is
			// in question, and v itself may have been.
			if it.lastID != nil && *it.lastID == v && !it.behindAt() {
				ch.present, ch.absent = true, true
				ch.lo, ch.hi = bigOf(v), bigOf(v)
				return ch, nil
			}
			return ch, a.guardReuse(ch, name, v, !c.allowReuse)
		}
		return ch, a.guardReuse(ch, name, v+d.Increment, !c.allowReuse)
	})
	a.changed(name, it, err)
	return err
}

// Advance makes sure that no ID up to atLeast (down to it, for a descending
// sequence) will be leased from now on, and returns the value that all later IDs
// lie beyond. It only moves forward: if the sequence is there already it writes
// nothing. It is what to do after a restore or an import, with the highest ID in
// your data. IDs that processes hold in memory by then are still handed out, or
// given back and leased again: stop the processes, or Refresh them, first.
//
// A counter that was moved back by hand must be advanced at least to where it
// had been, otherwise the answer is ErrCounterMovedBack.
func (a *Allocator) Advance(ctx context.Context, name string, atLeast int64) (int64, error) {
	if err := a.checkName(name); err != nil {
		return 0, err
	}
	token, born := randomID(), randomID()
	current := atLeast
	_, err := a.administer(ctx, name, func(it *item) (*change, error) {
		if it == nil {
			return nil, fmt.Errorf("%w, and a StartWith beyond every ID in your data", a.notFound(name))
		}
		d := it.definition()
		if it.behindAt() && d.after(*it.at, atLeast) {
			return nil, &MovedBackError{Sequence: name, Table: a.store.table(), Reason: "its counter was lowered", Stored: it.lastID, Known: it.at}
		}
		switch {
		case it.lastID != nil && !d.after(atLeast, *it.lastID):
			current = *it.lastID
			return nil, nil
		case it.lastID == nil && d.after(it.first(), atLeast):
			return nil, nil
		case !d.contains(atLeast):
			return nil, a.outOfBounds(name, atLeast, d)
		}
		current = atLeast
		ch := &change{key: it.key, token: token, base: it, born: born, set: &atLeast, atLimit: &atLeast,
			present: true, absent: it.lastID == nil}
		if d.ascending() {
			ch.hi = bigOf(atLeast)
		} else {
			ch.lo = bigOf(atLeast)
		}
		return ch, nil
	})
	a.nudge(name)
	return current, err
}

// retry makes a call that changes nothing until it succeeds, ctx or the
// Allocator ends, or its error is permanent.
func (a *Allocator) retry(ctx context.Context, doing string, call func(context.Context) error) error {
	if err := a.open(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	for tries := 0; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, a.opts.AttemptTimeout)
			defer cancel()
			return call(ctx)
		}()
		if err == nil || permanent(err) {
			return err
		}
		if !sleep(ctx, a.delay(err, tries)) {
			return errors.Join(a.open(), &waitError{doing: doing, table: a.store.table(), ctx: contextErr(ctx), last: err})
		}
	}
}

// delay returns how long to wait after err, which came after so many others.
func (a *Allocator) delay(err error, tries int) time.Duration {
	d := time.Duration(a.opts.rand() * float64(min(backoffCap, backoffBase<<min(tries, 16))))
	if le, ok := asLeaseError(err); ok {
		d = max(d, min(le.retryAfter, d+5*time.Second))
	}
	return d
}

// Refresh drops what this process holds of the named sequences, or of all it has
// used if none is named, so that the next ID comes from a new lease under the
// definition and at the position of that moment. What is dropped is given back
// to the table as by Close. It reads each item and returns what is wrong with
// it, joined.
func (a *Allocator) Refresh(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		for _, s := range a.sequences() {
			names = append(names, s.name)
		}
	}
	var tails []*tail
	var errs []error
	for _, name := range names {
		if err := a.checkName(name); err != nil {
			return err
		}
		if s := a.known(name); s != nil {
			tails = append(tails, s.refresh(nil))
		}
	}
	errs = append(errs, a.giveBack(ctx, tails))
	for _, name := range names {
		_, err := a.Describe(ctx, name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// known returns the sequence of that name if this process has used it.
func (a *Allocator) known(name string) *Sequence {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := (*a.names.Load())[name]; ok {
		return s
	}
	return a.fresh[name]
}

// nudge makes this process forget the errors it keeps of a sequence.
func (a *Allocator) nudge(name string) {
	if s := a.known(name); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = 0
	}
}

// retuned makes this process follow what it has just set in the table.
func (a *Allocator) retuned(name string, it *item) {
	if s := a.known(name); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = 0
		s.retune(it.tune)
	}
}

// changed makes this process drop what it holds of a sequence that it has
// restarted or altered, it being the item after that, or may have.
func (a *Allocator) changed(name string, it *item, err error) {
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		return
	}
	if s := a.known(name); s != nil {
		s.refresh(it)
	}
}

func (a *Allocator) mismatch(name, why string) error {
	return fmt.Errorf("%w: sequence %q in table %q: %s; change the code, or the table with Alter", ErrDefinitionMismatch, name, a.store.table(), why)
}

func (a *Allocator) notFound(name string) error {
	return fmt.Errorf("%w: %q in table %q: make it with Create", ErrNotFound, name, a.store.table())
}

func (a *Allocator) outOfBounds(name string, v int64, d Definition) error {
	return fmt.Errorf("%w: %d of sequence %q in table %q (%d..%d): Alter moves the bounds", ErrOutOfBounds, v, name, a.store.table(), d.Min, d.Max)
}

func (a *Allocator) reuse(name, why string) error {
	return fmt.Errorf("%w: sequence %q in table %q: %s; AllowReuse lets IDs repeat", ErrReuse, name, a.store.table(), why)
}

// administer is carry for a caller of this package: on its ctx, until Close.
func (a *Allocator) administer(ctx context.Context, name string, plan func(*item) (*change, error)) (*item, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	it, err := a.carry(ctx, name, nil, plan)
	if err != nil && a.open() != nil {
		return nil, fmt.Errorf("%w: %w", a.closedError(), err)
	}
	if s := a.known(name); s != nil && err == nil && it != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = it
	}
	return it, err
}

// carry carries out what plan makes of the item, nil if there is none: one
// conditional write, planned anew when the item has changed in between, and made
// again with the same token when its fate is unknown, until ctx ends. It returns
// the item as it is then. The item is read first if known is nil. Plan returns
// no change when there is nothing to do.
func (a *Allocator) carry(ctx context.Context, name string, known *item, plan func(*item) (*change, error)) (*item, error) {
	key := a.opts.KeyPrefix + name
	it, read := known, known != nil
	var ch *change
	open := false // an attempt of ch may have been applied
	logged := false
	for tries := 0; ; {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, a.opts.AttemptTimeout)
			defer cancel()
			var err error
			if !read {
				if it, err = a.store.get(ctx, key); err != nil {
					return err
				}
				read = true
			}
			if ch == nil {
				if ch, err = plan(it); err != nil || ch == nil {
					return err
				}
				if v := ch.judge(it); v == verdictBehind {
					ch = nil
					return &MovedBackError{Sequence: name, Table: a.store.table(), Reason: "its counter was lowered", Stored: it.lastID, Known: it.at}
				}
			}
			now, err := a.store.apply(ctx, ch)
			if err == nil {
				it, ch = now, nil
			}
			return err
		}()
		if err == nil {
			return it, nil
		}
		if ce, ok := errors.AsType[*conditionError](err); ok {
			if ce.old != nil && ch.own(ce.old) {
				return ce.old, nil
			}
			if open && ch.epoch > 0 && (ce.old == nil || ce.old.epoch != ch.base.epoch) {
				return nil, fmt.Errorf("%w: sequence %q in table %q: the reply to a Restart or a change of direction was lost and the sequence was restarted since; look with Describe",
					ErrOutcomeUnknown, name, a.store.table())
			}
			it, read, ch, open = ce.old, true, nil, false
			tries++
			if tries < maxRounds {
				continue
			}
		} else if permanent(err) {
			return nil, err
		}
		le, ok := asLeaseError(err)
		open = open || ok && le.MaybeApplied && ch != nil
		if l := a.logger(slog.LevelWarn); l != nil && !logged {
			logged = true
			l.LogAttrs(ctx, slog.LevelWarn, "ddbseq: call failed, trying again",
				slog.String("sequence", name), slog.String("table", a.store.table()), slog.Any("error", err))
		}
		d := a.delay(err, tries)
		tries++
		if !sleep(ctx, d) {
			if open {
				err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			}
			doing := "changing"
			if ch == nil {
				doing = "reading"
			}
			return nil, &waitError{doing: fmt.Sprintf("%s sequence %q", doing, name), table: a.store.table(), ctx: contextErr(ctx), last: err}
		}
	}
}

// sleep waits for d, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
