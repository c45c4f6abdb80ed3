package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// maxRounds bounds how often one attempt starts anew because somebody else
// changed the item in between. Each round costs a write, so it goes back to the
// queue, and to a delay, after that.
const maxRounds = 8

// facts are what a process knows of a sequence for as long as it runs, to tell
// a counter that moved on from one that moved back.
type facts struct {
	known bool // anything of the below
	def   Definition
	born  string
	epoch int64
	// seen is the furthest lastID that was seen under born and epoch; nil for a
	// CYCLE sequence, of which any value may come again.
	seen *int64
	// high is the last ID of the newest block: an ID issued or still held. The
	// next block must lie beyond it. Give-backs of others never lower lastID
	// below it, because they need it to be the end of their own block.
	high *int64
	// least and most bound all IDs that this process has leased, under whatever
	// epoch: what an item that was rolled back over a Restart must be beyond.
	least, most *int64
}

// before reports whether it stands before, or among, what f knows was leased.
func (f *facts) before(it *item) bool {
	d := it.definition()
	ever := f.most
	if !d.ascending() {
		ever = f.least
	}
	if d.Cycle {
		ever = nil
	}
	for _, known := range []*int64{f.seen, ever} {
		if known == nil {
			continue
		}
		if it.lastID == nil && !d.after(it.first(), *known) || it.lastID != nil && d.after(*known, *it.lastID) {
			return true
		}
	}
	return false
}

// furthest returns the furthest ID that f knows was leased, nil if none.
func (f *facts) furthest(d Definition) *int64 {
	out := f.seen
	for _, v := range []*int64{f.least, f.most} {
		if v != nil && (out == nil || d.after(*v, *out)) {
			out = v
		}
	}
	return out
}

// lease is the state of a lease over all its attempts.
type lease struct {
	gen       int64
	code      *clauses      // what the code says, when this attempt began
	sizing    *Sizing       // and what it says of that
	issued    int64         // IDs issued by then, for the totals
	first     bool          // this process has not leased yet
	began     time.Duration // when its first attempt was made; 0 = not yet
	throttled bool          // since then
	item      *item         // as last seen; nil = not known, or there is none
	missing   bool          // there is none
	fresh     bool          // seen since the last write of ours
	blind     bool          // it cannot be read: a refused write teaches it
	open      *change       // an attempt that may have been applied
	timeouts  int           // attempts in a row
}

func (l *lease) learn(it *item) {
	l.item, l.missing, l.fresh, l.blind = it, it == nil, true, false
}

func (l *lease) forget() { l.item, l.missing, l.fresh, l.blind = nil, false, false, false }

// follows reports whether the newest lease came after changed.
func (l *lease) follows(changed *item) bool {
	it := l.item
	return changed != nil && it != nil && !l.fresh && it.born == changed.born && it.epoch == changed.epoch && it.ver == changed.ver
}

// leased is a block, and what an attempt found out.
type leased struct {
	first, step, n int64
	before         *int64 // the last ID leased before, if it has to precede first
	recovered      bool
	attempts       int64
	facts          facts
	short          *shortage // with errShort
	reported       int64     // IDs issued, as the totals have it now
}

// attempt tries once to lease a block of up to n IDs: one UpdateItem, and a
// GetItem before it where the item is not known. It starts anew at once when
// the answer is that somebody changed the item, and waits for nothing.
//
// An attempt whose fate is unknown stays open: the next one sends the same
// token and count again, until an answer settles it. Either it is applied now,
// or the item says that it was before, with the block in at and n.
//
// want is the largest number of IDs that one caller waits for, and total the
// largest that one asked for.
func (s *core) attempt(ctx context.Context, f facts, n, want, total int64) (got leased, err error) {
	got.facts = f
	l := &s.lease
	hurried := false
	for range maxRounds {
		if l.open == nil && l.item == nil && !l.missing && !l.blind {
			it, err := s.get(ctx, &got)
			switch {
			case errors.Is(err, ErrAccessDenied), errors.Is(err, ErrUnsupported):
				l.blind = true
			case err != nil && worthHurry(err) && !hurried:
				hurried = true
				continue
			case err != nil:
				return got, err
			default:
				l.learn(it)
			}
		}
		ch := l.open
		if ch == nil {
			ch, err = s.draft(l, &got.facts, n)
			if err == nil && !l.blind {
				if got.short = s.shortage(ch, want, total); got.short != nil {
					err = errShort
				}
			}
			if err != nil && !l.fresh {
				l.forget() // it may have changed since
				continue
			}
			if err != nil {
				l.forget()
				return got, err
			}
		}
		it, err := s.apply(ctx, &got, ch)
		l.fresh = false
		if ce, ok := errors.AsType[*conditionError](err); ok {
			// A definite answer. If an earlier attempt of ch is not what the item
			// shows, it was not applied or is a gap by now.
			l.open = nil
			own := ce.old != nil && ch.own(ce.old)
			l.learn(ce.old)
			if own {
				got.recovered = true
				return got, s.accept(l, &got, ch)
			}
			continue
		}
		if err != nil {
			if le, ok := asLeaseError(err); ok && le.MaybeApplied {
				l.open = ch
			}
			if worthHurry(err) && !hurried && ctx.Err() == nil {
				hurried = true
				continue
			}
			return got, err
		}
		l.open = nil
		l.learn(it)
		return got, s.accept(l, &got, ch)
	}
	return got, &LeaseError{Sequence: s.name, Table: s.a.store.table(), Op: "UpdateItem",
		Err: fmt.Errorf("the item changed %d times in a row before it could be leased from", maxRounds)}
}

func (s *core) get(ctx context.Context, got *leased) (*item, error) {
	ctx, cancel := s.attemptContext(ctx)
	defer cancel()
	it, err := s.a.store.get(ctx, s.key())
	s.attempted(ctx, got, err)
	return it, err
}

func (s *core) apply(ctx context.Context, got *leased, ch *change) (*item, error) {
	ctx, cancel := s.attemptContext(ctx)
	defer cancel()
	it, err := s.a.store.apply(ctx, ch)
	s.attempted(ctx, got, err)
	return it, err
}

// attemptContext bounds an attempt. After time-outs it allows more, up to four
// times as much: a store that is slower than the bound would otherwise never be
// heard. What hangs when an outage ends is noticed only then.
func (s *core) attemptContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.a.opts.AttemptTimeout<<min(s.lease.timeouts, 2))
}

func (s *core) attempted(ctx context.Context, got *leased, err error) {
	got.attempts++
	if err != nil && ctx.Err() != nil {
		s.lease.timeouts++
	} else {
		s.lease.timeouts = 0
	}
}

func worthHurry(err error) bool {
	le, ok := asLeaseError(err)
	return ok && le.now
}

func asLeaseError(err error) (*LeaseError, bool) { return errors.AsType[*LeaseError](err) }

// errShort is the verdict on a lease for somebody who wants more IDs than can be
// had: a lease of fewer would use them up and then fail.
var errShort = errors.New("ddbseq: more IDs wanted than there are")

// A shortage is how many IDs a caller may want at the most.
type shortage struct {
	most   uint64
	all    bool                // that the caller asked for, and not only what it still lacks
	reason func(n int64) error // for n IDs
}

// shortage returns what stands in the way of a caller who wants, or has asked for,
// so many IDs when ch leases, nil if nothing does.
func (s *core) shortage(ch *change, want, total int64) *shortage {
	it := ch.base
	d := it.definition()
	if size := d.size(); uint64(max(want, total)) > size {
		return &shortage{most: size, all: true, reason: func(n int64) error { return s.tooMany(n, d) }}
	}
	if room := it.room(); !d.Cycle && uint64(want) > room {
		return &shortage{most: room, reason: func(n int64) error {
			return fmt.Errorf("%w; %d IDs are left and %d were wanted", s.exhausted(it), room, n)
		}}
	}
	if left, e := it.leftToday(ch.limit); e != nil && want > left {
		return &shortage{most: uint64(left), reason: func(n int64) error {
			return fmt.Errorf("%w; %d are left and %d were wanted", s.limited(e), left, n)
		}}
	}
	return nil
}

// draft makes the change that leases up to n IDs from the item as known, or
// says why there can be none.
func (s *core) draft(l *lease, f *facts, n int64) (*change, error) {
	switch {
	case l.missing:
		return s.draftCreate(l, f, n)
	case l.blind:
		return refused(s.key()), nil // the answer is the item
	}
	it := l.item
	if err := s.admit(f, it); err != nil {
		return nil, err
	}
	d := it.definition()
	if why := l.code.disagreesWith(it); why != "" {
		return nil, s.a.mismatch(s.name, why)
	}
	ch := &change{
		key: s.key(), token: randomID(), base: it,
		fence: true, running: true, present: true,
		absent: it.lastID == nil && (f.high == nil || d.after(it.first(), *f.high)),
	}
	if it.born == "" {
		ch.born = randomID()
	}
	if l.first {
		n = max(n, it.tune.first(*l.sizing))
	}
	room := it.room()
	wrap := room == 0 && d.Cycle
	if wrap {
		room = d.roomFrom(d.first())
	}
	if room == 0 {
		return nil, s.exhausted(it)
	}
	ch.n = limitN(n, room)
	if it.ver != "" { // an adopted item gets no more than it needs
		var err error
		if ch.limit, ch.n, err = it.limitFor(ch.n, s.a.store.clock()); err != nil {
			return nil, s.limited(err)
		}
		ch.add, ch.issued = totals{leased: ch.n, issued: l.issued - s.reported}, l.issued
	}
	switch {
	case !wrap:
		ch.move = d.delta(ch.n)
		ch.lo, ch.hi = d.window(ch.n)
		if uint64(ch.n) == room && ch.n < n {
			// Cut short by the end, as far as we know. Others may have wrapped it
			// since: then there is more to have.
			ch.present = it.lastID != nil
			if ch.present {
				ch.lo, ch.hi = maxBig(ch.lo, bigOf(*it.lastID)), minBig(ch.hi, bigOf(*it.lastID))
			}
		}
		if f.high != nil && d.ascending() {
			ch.lo = maxBig(ch.lo, bigOf(*f.high))
		} else if f.high != nil {
			ch.hi = minBig(ch.hi, bigOf(*f.high))
		}
	default:
		ch.set = new(d.nth(d.first(), ch.n))
		ch.lo, ch.hi = d.spent()
	}
	if l.fresh {
		if v := ch.judge(it); v != verdictOK {
			return nil, s.explain(v, f, it)
		}
	}
	return ch, nil
}

// refused makes a change that is refused, because no item has its ver.
func refused(key string) *change {
	return &change{key: key, token: randomID(), base: &item{key: key, ver: randomID()}, present: true, move: bigOf(0)}
}

// draftCreate makes the change that makes the sequence and leases from it.
func (s *core) draftCreate(l *lease, f *facts, n int64) (*change, error) {
	if f.known && (f.seen != nil || f.def.Cycle) {
		return nil, s.movedBack(reasonDeleted, nil, f.seen)
	}
	if !s.a.opts.CreateMissing {
		return nil, fmt.Errorf("%w: %q in table %q: make it with Create, or set CreateMissing", ErrNotFound, s.name, s.a.store.table())
	}
	if err := l.code.checkCreate(s.name); err != nil {
		return nil, err
	}
	def := l.code.explicit()
	base := &item{key: s.key(), def: &def}
	ch := &change{
		key: s.key(), token: randomID(), base: base,
		create: true, def: &def, ver: randomID(), born: randomID(),
		add: totals{issued: l.issued - s.reported}, issued: l.issued,
	}
	var err error
	if ch.limit, ch.n, err = base.limitFor(limitN(n, base.room()), s.a.store.clock()); err != nil {
		return nil, s.limited(err)
	}
	ch.add.leased = ch.n
	ch.move = base.definition().delta(ch.n)
	return ch, nil
}

// admit takes it as the item that this process leased from before, or as its
// rightful successor, and otherwise says why not.
func (s *core) admit(f *facts, it *item) error {
	d := it.definition()
	switch {
	case !f.known:
		*f = facts{known: true, born: it.born, epoch: it.epoch}
	case it.born != f.born && f.born != "":
		if it.epoch > f.epoch { // and restarted, by someone who knew
			f.seen, f.high = nil, nil
		} else if f.before(it) {
			return s.movedBack("its item was deleted and made anew", it, f.furthest(d))
		}
		f.epoch = it.epoch
	case it.epoch < f.epoch:
		if f.before(it) {
			return s.movedBack("it is as it was before a Restart", it, f.furthest(d))
		}
		f.epoch = it.epoch
	case it.epoch > f.epoch:
		f.epoch, f.seen, f.high = it.epoch, nil, nil
	}
	if d.Cycle || f.def.Cycle {
		// It may have wrapped: what came after is before now.
		f.seen, f.high = nil, nil
	}
	f.born, f.def = it.born, d
	if !d.Cycle && it.lastID != nil && (f.seen == nil || d.after(*it.lastID, *f.seen)) {
		f.seen = it.lastID
	}
	return nil
}

// explain turns a verdict on a freshly seen item into the error for callers.
func (s *core) explain(v verdict, f *facts, it *item) error {
	d := it.definition()
	switch {
	case v == verdictBehind:
		return s.movedBack("its counter was lowered", it, it.at)
	case v == verdictPaused:
		return fmt.Errorf("%w: %q in table %q: Alter it with Resume to go on", ErrPaused, s.name, s.a.store.table())
	case v == verdictRoom && f.high != nil && (it.lastID == nil || d.after(*f.high, *it.lastID)):
		return s.movedBack("its counter was lowered", it, f.high)
	case v == verdictRoom && it.lastID != nil:
		return s.corrupt(fmt.Sprintf("lastID %d lies outside of the bounds %d to %d", *it.lastID, d.Min, d.Max))
	}
	return s.corrupt(fmt.Sprintf("the item cannot be leased from (verdict %d)", v))
}

// accept turns the item that ch left behind into a block. The block comes from
// at and n, which that same write set: lastID may have been moved since by
// others.
func (s *core) accept(l *lease, got *leased, ch *change) error {
	it := l.item
	l.fresh = false
	d := ch.base.definition()
	if it.at == nil || it.n != ch.n || it.tok != ch.token {
		l.forget()
		return s.corrupt(fmt.Sprintf("the store's answer (at %s, n %d) does not belong to a lease of %d IDs", text(it.at), it.n, ch.n))
	}
	last := *it.at
	first := new(big.Int).Add(bigOf(last), d.delta(1))
	first.Sub(first, d.delta(ch.n))
	if !first.IsInt64() || !d.contains(first.Int64()) || !d.contains(last) || d.roomFrom(first.Int64()) < uint64(ch.n) {
		l.forget()
		return s.corrupt(fmt.Sprintf("a block of %d IDs up to %d lies outside of the bounds %d to %d", ch.n, last, d.Min, d.Max))
	}
	// It may be less than before: what a Fill had claimed when it was given up
	// does not count any more.
	if got.reported = s.reported; ch.add.leased > 0 { // an adopted item has no totals
		got.reported = ch.issued
	}
	f := &got.facts
	if !f.known { // made by this lease
		*f = facts{known: true, def: d, born: it.born, epoch: it.epoch}
	}
	if f.born == "" {
		f.born = it.born // an adopted item was given one
	}
	if f.high != nil && !d.after(first.Int64(), *f.high) {
		got.n = ch.n // leased, and not to be used
		l.forget()
		return s.movedBack("a lease began at or before an ID given out", &item{lastID: new(first.Int64() - d.Increment)}, f.high)
	}
	for _, id := range []int64{first.Int64(), last} {
		if f.least == nil || id < *f.least {
			f.least = &id
		}
		if f.most == nil || id > *f.most {
			f.most = &id
		}
	}
	got.first, got.step, got.n, got.before = first.Int64(), d.Increment, ch.n, f.high
	if !d.Cycle {
		f.high = &last
		if f.seen == nil || d.after(last, *f.seen) {
			f.seen = &last
		}
	}
	return nil
}

// limited completes an error of limitFor.
func (s *core) limited(err error) error {
	if e, ok := errors.AsType[*DailyLimitError](err); ok {
		e.Sequence, e.Table = s.name, s.a.store.table()
	}
	return err
}

func (s *core) movedBack(reason string, it *item, known *int64) error {
	e := &MovedBackError{Sequence: s.name, Table: s.a.store.table(), Reason: reason, Known: known}
	if it != nil {
		e.Stored = it.lastID
	}
	return e
}

func (s *core) corrupt(what string) error {
	return &corruptError{key: s.name, table: s.a.store.table(), what: what}
}

func (s *core) exhausted(it *item) error {
	d := it.definition()
	e := &ExhaustedError{Sequence: s.name, Table: s.a.store.table(), Bound: "max", Limit: d.Max}
	if !d.ascending() {
		e.Bound, e.Limit = "min", d.Min
	}
	if it.lastID != nil {
		e.LastID = *it.lastID
	}
	return e
}

// window returns the positions from which n values fit, and none of them lies
// before the range: Min - Increment <= lastID <= Max - n*Increment going up.
func (d Definition) window(n int64) (lo, hi *big.Int) {
	if d.ascending() {
		return d.minus(d.Min, 1), d.minus(d.Max, n)
	}
	return d.minus(d.Min, n), d.minus(d.Max, 1)
}

// spent returns the positions from which no value fits; nil is unbounded.
func (d Definition) spent() (lo, hi *big.Int) {
	one := big.NewInt(1)
	if d.ascending() {
		lo = d.minus(d.Max, 1)
		return lo.Add(lo, one), nil
	}
	hi = d.minus(d.Min, 1)
	return nil, hi.Sub(hi, one)
}

func limitN(n int64, room uint64) int64 {
	if uint64(n) > room {
		return int64(room)
	}
	return n
}

func maxBig(a, b *big.Int) *big.Int {
	if a.Cmp(b) >= 0 {
		return a
	}
	return b
}

func minBig(a, b *big.Int) *big.Int {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

func text(v *int64) string {
	if v == nil {
		return "absent"
	}
	return fmt.Sprint(*v)
}
