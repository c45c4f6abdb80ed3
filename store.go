package ddbseq

import (
	"context"
	"crypto/rand"
	"math/big"
	"time"
)

// A Store is where sequences are kept: a DynamoDB table, made with [DynamoDB],
// or the memory of this process, made with [Memory]. What Allocators say to a
// Store is not part of the API and changes with it. A Store may serve any
// number of Allocators at once.
type Store struct {
	backend backend
}

// backend is one table. All its calls are one attempt: the retry loop is the
// Allocator's. Failures are *LeaseError; ErrCorrupt and ErrLayout are verdicts.
type backend interface {
	// get reads an item with strong consistency; nil if there is none.
	get(ctx context.Context, key string) (*item, error)
	// apply makes one conditional write and returns the item as it left it, or
	// a *conditionError.
	apply(ctx context.Context, ch *change) (*item, error)
	// page returns some of the items whose key is longer than prefix and begins
	// with it, and where to go on, which is nil at the end and at the start.
	page(ctx context.Context, prefix string, at cursor) ([]listed, cursor, error)
	// createTable makes the table and waits until it can be used.
	createTable(ctx context.Context) error
	// table names the store in errors.
	table() string
	// peek reads an item, perhaps not the newest; nil if there is none.
	peek(ctx context.Context, key string) (*item, error)
	// clock is the time of the store.
	clock() time.Time
	// check refuses options that no call could work with.
	check() error
}

// cursor is a place in a list of items, known to the backend alone.
type cursor any

// listed is an item, or why it cannot be read.
type listed struct {
	*item
	err error
}

// layoutVersion is the item layout that this package reads and writes. An item
// without one is read as version 1.
const layoutVersion = 1

// item is one sequence as it is stored. Pointers are nil where the attribute is
// absent: absent differs from 0.
type item struct {
	key    string
	lastID *int64 // last value leased; absent = nothing leased since from
	at     *int64 // lastID as the write that carries tok left it
	n      int64  // how many IDs that write leased
	tok    string
	born   string
	epoch  int64
	ver    string
	def    *clauses // never changed in place; nil = says nothing
	from   *int64   // where a Restart begins, while lastID is absent
	v      int64    // 0 = absent
	tune   *tuning  // nil = none
	paused bool     // as tune says
	day    string   // the day that used belongs to, as 2006-01-02
	used   int64    // IDs leased on it
	days   []int64  // totals of the days before it, newest first; never changed in place
	totals totals
}

// totals is the waste ledger: IDs of all processes, ever.
type totals struct{ leased, issued, returned int64 }

// stored returns c as an item has it.
func (c clauses) stored() *clauses {
	if c == noClauses {
		return nil
	}
	return &c
}

// said returns what the item says of its definition.
func (it *item) said() clauses {
	if it.def == nil {
		return noClauses
	}
	return *it.def
}

// definition returns the item's definition with its defaults.
func (it *item) definition() Definition { return it.said().definition() }

// first returns the value that a lease begins with while lastID is absent.
func (it *item) first() int64 {
	if it.from != nil {
		return *it.from
	}
	return it.definition().Start
}

// room returns how many values can be leased in one block.
func (it *item) room() uint64 { return it.roomOf(it.definition()) }

// roomOf is room where the definition is at hand.
func (it *item) roomOf(d Definition) uint64 {
	switch {
	case it.lastID != nil:
		return d.room(*it.lastID)
	case it.from != nil:
		return d.roomFrom(*it.from)
	}
	return d.roomFrom(d.Start)
}

// behindAt reports whether lastID lies behind the newest write that we know
// made it: somebody lowered or removed it by hand.
func (it *item) behindAt() bool {
	return it.at != nil && (it.lastID == nil || it.definition().after(*it.at, *it.lastID))
}

// sane refuses an item that no lease can be judged on.
func (it *item) sane(table string) error {
	if it.v > layoutVersion {
		return &layoutError{key: it.key, table: table, v: it.v}
	}
	d := it.definition()
	if err := d.check(it.key, it.said()); err != nil {
		return &corruptError{key: it.key, table: table, what: err.Error()}
	}
	return nil
}

// A change is one conditional write to one item. Memory and DynamoDB both
// carry it out; judge says, for both, why a condition failed.
type change struct {
	key   string
	token string // random; the same on all attempts of one change

	// Conditions.
	create  bool   // the item must not exist; otherwise it must
	holds   string // tok must be this (a give-back); otherwise it must not be token
	base    *item  // born, epoch, ver and v must be as here
	fence   bool   // lastID must not be behind at
	running bool   // the sequence must not be paused
	absent  bool   // lastID may be absent, if from is as in base
	present bool   // lastID may be present, within lo and hi
	lo, hi  *big.Int
	atLimit *int64 // at must not lie beyond this in the direction of base

	// Effects.
	move   *big.Int // lastID = at = (lastID, or first - Increment if absent) + move
	set    *int64   // lastID = at = set
	clear  *int64   // lastID, at and n go, from = clear
	follow bool     // at = lastID, n = 0: the direction changed
	n      int64    // with any of the above
	epoch  int64    // if > 0
	def    *clauses
	ver    string
	born   string // written if the item has none
	pin    *int64 // from = pin
	limit  *dayLimit
	add    totals  // to the totals
	issued int64   // with add: how many IDs this process had issued then
	unuse  int64   // taken off used
	tune   *tuning // replaces tune, which must be as in base
}

// touches reports whether the change writes lastID or at, and so tok.
func (ch *change) touches() bool {
	return ch.move != nil || ch.set != nil || ch.clear != nil || ch.follow
}

// verdict says why a change was refused, in the order of judgement.
type verdict int

const (
	verdictOK      verdict = iota
	verdictLayout          // an unknown layout version
	verdictMissing         // no item
	verdictOwn             // an earlier attempt of this change was applied
	verdictExists          // an item where none was expected
	verdictBorn            // deleted and made anew
	verdictEpoch           // restarted
	verdictVer             // defined anew
	verdictBehind          // lastID behind at
	verdictPaused          // paused by an operator
	verdictRoom            // no room, or the position is not the expected one
	verdictDay             // another day, or its limit leaves no room
	verdictTune            // tuned by somebody else
	verdictToken           // a give-back of a lease that is not the newest
)

// judge applies ch's condition to the item (nil = missing) and says which part
// fails first. The order matters: an applied earlier attempt must be seen
// before anything that others changed since, and what makes everything known
// about the item void comes before what depends on it.
func (ch *change) judge(it *item) verdict {
	switch {
	case it != nil && it.v > layoutVersion:
		return verdictLayout
	case it == nil && !ch.create:
		return verdictMissing
	case it == nil:
		return verdictOK
	case ch.own(it):
		return verdictOwn
	case ch.create:
		return verdictExists
	case it.born != ch.base.born:
		return verdictBorn
	case it.epoch != ch.base.epoch:
		return verdictEpoch
	case it.ver != ch.base.ver:
		return verdictVer
	case ch.fence && it.behindAt():
		return verdictBehind
	case ch.running && it.paused:
		return verdictPaused
	case !ch.inRoom(it):
		return verdictRoom
	case ch.limit != nil && !ch.limit.allows(it):
		return verdictDay
	case ch.tune != nil && !it.tune.same(ch.base.tune):
		return verdictTune
	case ch.holds != "" && it.tok != ch.holds:
		return verdictToken
	}
	return verdictOK
}

// own reports whether an earlier attempt of ch made the item what it is.
func (ch *change) own(it *item) bool {
	if ch.ver != "" && ch.move == nil {
		return it.ver == ch.ver // which leases after it leave alone
	}
	if ch.touches() || ch.create {
		return it.tok == ch.token
	}
	return ch.tune != nil && !it.tune.same(ch.base.tune) && it.tune.same(&tuning{Tuning: ch.tune.Tuning})
}

func (ch *change) inRoom(it *item) bool {
	if ch.atLimit != nil && it.at != nil && ch.base.definition().after(*it.at, *ch.atLimit) {
		return false
	}
	if it.lastID == nil {
		return ch.absent && equal(it.from, ch.base.from)
	}
	if !ch.present {
		return false
	}
	last := bigOf(*it.lastID)
	return (ch.lo == nil || last.Cmp(ch.lo) >= 0) && (ch.hi == nil || last.Cmp(ch.hi) <= 0)
}

// origin is what move is added to while lastID is absent: first - Increment,
// which can lie outside int64.
func (ch *change) origin() *big.Int {
	return ch.base.definition().minus(ch.base.first(), 1)
}

func equal(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }

// A conditionError is the answer to a change whose condition did not hold. old
// is the item that was found, nil if there is none.
type conditionError struct{ old *item }

func (*conditionError) Error() string { return "ddbseq: condition failed" }

// randomID returns a value that is never made twice: tokens, born and ver.
func randomID() string { return rand.Text() }
