package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The errors of this package, for [errors.Is]. What is returned says in words
// what happened, to which sequence and table, and what to do.
var (
	// ErrClosed is returned by everything that needs the store, and by every
	// caller who waits, after Close.
	ErrClosed = errors.New("ddbseq: allocator is closed")

	// ErrInvalidName is returned for a sequence name that is empty, longer than
	// 255 bytes with [Options.KeyPrefix], or not UTF-8. No store call was made.
	ErrInvalidName = errors.New("ddbseq: invalid sequence name")

	// ErrInvalidCount is returned by Fill and Reserve for fewer than one ID, or
	// for more than the sequence has in all. No store call was made if the code or
	// a lease of the last second says how many those are.
	ErrInvalidCount = errors.New("ddbseq: invalid number of IDs")

	// ErrInvalidOptions is returned by New and Open, also for what DynamoDB was
	// given, by Sequence for a WithSizing, and by Alter for a Tune, that make no
	// sense; the message names the field.
	ErrInvalidOptions = errors.New("ddbseq: invalid options")

	// ErrInvalidDefinition is returned for clauses that PostgreSQL would refuse
	// as well. The details are in a [DefinitionError].
	ErrInvalidDefinition = errors.New("ddbseq: invalid sequence definition")

	// ErrNotFound is returned when the sequence has no item in the table.
	// Create it, or set [Options.CreateMissing]. An item that this process has
	// leased from and that is gone is [ErrCounterMovedBack] as well.
	ErrNotFound = errors.New("ddbseq: sequence not found")

	// ErrTableNotFound is returned when the table does not exist in that region
	// and account, or is still being made.
	ErrTableNotFound = errors.New("ddbseq: table not found")

	// ErrAccessDenied is returned when the credentials may not do what the
	// message names, are refused, or, by Open, cannot be had.
	ErrAccessDenied = errors.New("ddbseq: access denied")

	// ErrSchema is returned when the table's key is not one string partition
	// key of the expected name.
	ErrSchema = errors.New("ddbseq: unsuitable table")

	// ErrExhausted is returned when a sequence without CYCLE has reached its
	// end, and ends by itself when the bound is raised. The details are in an
	// [ExhaustedError].
	ErrExhausted = errors.New("ddbseq: sequence exhausted")

	// ErrDefinitionMismatch is returned when the clauses given in code say
	// otherwise than the stored definition, or than the same process said
	// before.
	ErrDefinitionMismatch = errors.New("ddbseq: definition mismatch")

	// ErrCounterMovedBack is returned when the stored counter is behind what it
	// has already given out: it was restored, deleted and made anew, or lowered
	// by hand. No ID is served from it until Advance or Restart puts it right.
	// The numbers are in a [MovedBackError].
	ErrCounterMovedBack = errors.New("ddbseq: counter moved back")

	// ErrReuse is returned when Restart, RestartAfter or Alter would go into
	// values that were leased before, without [AllowReuse].
	ErrReuse = errors.New("ddbseq: values were leased before")

	// ErrOutOfBounds is returned when a value given to Restart, RestartAfter or
	// Advance lies outside the bounds of the sequence.
	ErrOutOfBounds = errors.New("ddbseq: value out of bounds")

	// ErrPaused is returned while an operator has paused the sequence.
	ErrPaused = errors.New("ddbseq: sequence is paused")

	// ErrCorrupt is returned when an item or a reply holds what no version of
	// this package writes, such as a fractional or an oversized number.
	ErrCorrupt = errors.New("ddbseq: corrupt item")

	// ErrLayout is returned when the item has a layout version that this
	// version of the package does not know: it was locked out on purpose.
	ErrLayout = errors.New("ddbseq: unknown item layout")

	// ErrThrottled is matched by the error of a call that DynamoDB throttled.
	ErrThrottled = errors.New("ddbseq: throttled")

	// ErrUnsupported is returned for an operation that the client given to
	// [DynamoDB] has no method for.
	ErrUnsupported = errors.New("ddbseq: client cannot do this")

	// ErrOutcomeUnknown is returned when a change to a sequence may or may not
	// have been made and cannot be repeated safely.
	ErrOutcomeUnknown = errors.New("ddbseq: outcome unknown")
)

// A DefinitionError says which rule a definition breaks. It matches
// [ErrInvalidDefinition].
type DefinitionError struct {
	Sequence string
	// Rule is the first broken rule in PostgreSQL's order: increment_zero,
	// max_out_of_width, min_out_of_width, min_not_below_max, start_below_min,
	// start_above_max, restart_below_min, restart_above_max, and then
	// daily_limit_negative, daily_limit_zone; or misplaced_clause for a clause
	// that the call does not take.
	Rule   string
	Detail string
}

func (e *DefinitionError) Error() string {
	return fmt.Sprintf("ddbseq: invalid definition of sequence %q: %s", e.Sequence, e.Detail)
}

// Is matches ErrInvalidDefinition.
func (e *DefinitionError) Is(target error) bool { return target == ErrInvalidDefinition }

// An ExhaustedError says at which side a sequence has reached its end. It
// matches [ErrExhausted].
type ExhaustedError struct {
	Sequence, Table string
	Bound           string // "max" or "min"
	Limit           int64  // the bound
	LastID          int64  // the last value leased
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("ddbseq: sequence %q in table %q has reached its %simum %d (last leased %d): raise the bound with Alter, or allow CYCLE",
		e.Sequence, e.Table, e.Bound, e.Limit, e.LastID)
}

// Is matches ErrExhausted.
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// A MovedBackError holds the evidence that a counter moved back. It matches
// [ErrCounterMovedBack].
type MovedBackError struct {
	Sequence, Table string
	Reason          string // in words: what was seen
	Stored          *int64 // what the table says was leased last; nil if it says nothing
	Known           *int64 // what was leased before; nil if only known to have been something
}

func (e *MovedBackError) Error() string {
	advice := "Advance it beyond every ID in your data"
	if e.Reason == reasonDeleted {
		advice = "stop the processes and Create it with a StartWith beyond every ID in your data"
	}
	return fmt.Sprintf("ddbseq: sequence %q in table %q moved back: %s; last leased by the table: %s, as known before: %s; "+
		"make sure that the right table is in use, then %s",
		e.Sequence, e.Table, e.Reason, text(e.Stored), text(e.Known), advice)
}

// Is matches ErrCounterMovedBack, and ErrNotFound when the item is gone.
func (e *MovedBackError) Is(target error) bool {
	return target == ErrCounterMovedBack || target == ErrNotFound && e.Reason == reasonDeleted
}

const reasonDeleted = "its item was deleted"

// A LeaseError is what a call to the store failed with. It unwraps to the SDK's
// error, so that errors.As finds the types of the SDK.
type LeaseError struct {
	Sequence string
	Table    string
	Op       string // the DynamoDB operation
	// Throttled is set when DynamoDB refused the call for its rate; Reasons then
	// holds what it gave as ThrottlingReasons, if anything.
	Throttled bool
	Reasons   []string
	// MaybeApplied is set when the write may have happened although no answer
	// came. The retry finds that out by the token of the lease.
	MaybeApplied bool
	// Permanent is set when a retry cannot help until somebody acts.
	Permanent bool
	Err       error

	kind       error // sentinel to match, or nil
	unknown    bool  // the credentials, not what they allow, are what is refused
	now        bool  // worth one immediate retry: the connection was stale
	retryAfter time.Duration
}

func (le *LeaseError) Error() string {
	advice := ""
	switch le.kind {
	case ErrTableNotFound:
		advice = ": check table name, region and account, or make it with CreateTable"
	case ErrAccessDenied:
		advice = ": allow dynamodb:" + le.Op + " on the table and its leading keys"
		if le.unknown {
			advice = ": check the credentials, their region and the clock"
		}
	case ErrSchema:
		advice = ": the table must have one string partition key and no sort key; TableOptions.KeyAttribute names it"
	case ErrThrottled:
		advice = throttleAdvice(le.Reasons)
	}
	what := ""
	if le.Sequence != "" {
		what = fmt.Sprintf(" for sequence %q", le.Sequence)
	}
	return fmt.Sprintf("ddbseq: %s%s on table %q: %v%s", le.Op, what, le.Table, le.Err, advice)
}

func (le *LeaseError) Unwrap() error { return le.Err }

// Is matches the sentinel that names the kind of failure.
func (le *LeaseError) Is(target error) bool { return le.kind != nil && target == le.kind }

// permanent reports whether waiting callers should learn of err at once.
func permanent(err error) bool {
	if le, ok := errors.AsType[*LeaseError](err); ok {
		return le.Permanent
	}
	return true // whatever is not a failed call is a verdict on the item
}

// waitError is what a caller gets whose context ended while it waited: both its
// own error and the store's last one.
type waitError struct {
	doing     string // for what: "waiting for sequence ..."
	table     string
	ctx, last error
}

func (e *waitError) Error() string {
	if e.last == nil {
		return fmt.Sprintf("ddbseq: %s in table %q: %v", e.doing, e.table, e.ctx)
	}
	return fmt.Sprintf("ddbseq: %s in table %q: %v (last store error: %v)", e.doing, e.table, e.ctx, e.last)
}

func (e *waitError) Unwrap() []error {
	if e.last == nil {
		return []error{e.ctx}
	}
	return []error{e.ctx, foreign{e.last}}
}

// foreign is the store's error beside a caller's own: a time-out or a cancel in
// it is that of an attempt of ours, and must not pass for the caller's.
type foreign struct{ error }

func (f foreign) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(f.error, target)
}

func (f foreign) As(target any) bool { return errors.As(f.error, target) }

// contextErr returns ctx's error joined with its cause when that says more.
func contextErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause != nil && !errors.Is(cause, err) {
		return errors.Join(err, cause)
	}
	return err
}

// A corruptError is what an item, or a reply, is that cannot be understood. It
// matches ErrCorrupt.
type corruptError struct{ key, table, what string }

func (e *corruptError) Error() string {
	return fmt.Sprintf("ddbseq: sequence %q in table %q: %s: repair the item by hand; or, if the attribute is another program's, give ours another name with TableOptions.Rename",
		e.key, e.table, e.what)
}

func (e *corruptError) Is(target error) bool { return target == ErrCorrupt }

// A layoutError locks this version of the package out. It matches ErrLayout.
type layoutError struct {
	key, table string
	v          int64
}

func (e *layoutError) Error() string {
	return fmt.Sprintf("ddbseq: sequence %q in table %q has layout version %d, this version of ddbseq knows %d: upgrade it; or, if the attribute is another program's, give ours another name with TableOptions.Rename",
		e.key, e.table, e.v, layoutVersion)
}

func (e *layoutError) Is(target error) bool { return target == ErrLayout }

// throttleAdvice says what to do about the reasons that DynamoDB gives.
func throttleAdvice(reasons []string) string {
	var t Throttled
	t.count(reasons)
	switch {
	case t.KeyRange > 0:
		return ": the item is hot (1,000 writes/s at the most): raise LeaseEvery or MaxBlock"
	case t.Provisioned > 0:
		return ": raise the table's provisioned capacity, or make it on-demand"
	case t.MaxOnDemand > 0:
		return ": raise the table's maximum on-demand throughput"
	case t.Account > 0:
		return ": the account's quota is used up: ask for more, or move the table"
	}
	return ": raise LeaseEvery, or the capacity of the table"
}
