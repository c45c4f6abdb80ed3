package ddbseq

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Hooks are called when something happens that is worth a metric; never for an
// ID. Those that are nil are not called.
//
// Lease and Alert are called on a goroutine of the Allocator, one at a time and
// in order for one sequence, at once for different ones; Wait on that of the
// caller who waited. No lock is held meanwhile, so that a hook may ask for
// Stats, or for anything else but two things: one that waits for an ID may wait
// for itself, and Close waits for all hooks that are under way. A hook that takes
// long takes one of the MaxParallel places of refills for as long, and what it is
// to be told next about its sequence is kept until then; of leases a thousand at
// most, and Stats counts those that come on top.
type Hooks struct {
	// Lease is called after each attempt to refill, of one call to the store or
	// a few.
	Lease func(LeaseEvent)

	// Wait is called when a caller who found memory empty has waited, for one
	// thing or another.
	Wait func(WaitEvent)

	// Alert is called when an alert begins and when it ends.
	Alert func(Alert)
}

// An Outcome says what came of an attempt to refill, as [Outcomes] count them.
type Outcome string

// The outcomes.
const (
	OutcomeOK        Outcome = "ok"
	OutcomeRecovered Outcome = "recovered"
	OutcomeThrottled Outcome = "throttled"
	OutcomeFailed    Outcome = "failed"
	OutcomeRefused   Outcome = "refused"
)

// A LeaseEvent is an attempt to refill a sequence.
type LeaseEvent struct {
	Sequence, Table string
	Mandatory       bool // callers found memory empty
	Outcome         Outcome
	Block           Block         // what was leased; N is 0 if nothing was
	Calls           int64         // to the store
	Took            time.Duration // all of them
	Err             error         // nil if something was leased
}

// A WaitEvent is a caller's wait.
type WaitEvent struct {
	Sequence, Table string
	Want            int64 // IDs that were not in memory
	Waited          time.Duration
	Err             error // why it got none; nil if it did
}

func outcomeOf(got leased, err error) Outcome {
	switch {
	case err == nil && got.recovered:
		return OutcomeRecovered
	case err == nil:
		return OutcomeOK
	case errors.Is(err, ErrThrottled):
		return OutcomeThrottled
	case permanent(err) || errors.Is(err, errShort):
		return OutcomeRefused
	}
	return OutcomeFailed
}

func (o *Outcomes) count(what Outcome) {
	switch what {
	case OutcomeOK:
		o.OK++
	case OutcomeRecovered:
		o.Recovered++
	case OutcomeThrottled:
		o.Throttled++
	case OutcomeFailed:
		o.Failed++
	case OutcomeRefused:
		o.Refused++
	}
}

// event is what is to be told outside: of a lease, or of an alert.
type event struct {
	lease LeaseEvent
	level slog.Level
	alert *Alert
}

// maxEvents bounds what a hook that never returns, or is slower than the leases of
// its sequence for good, makes a process keep.
const maxEvents = 1000

// attemptedLease counts an attempt and returns it as an event. requires mu
func (s *core) attemptedLease(mandatory bool, took time.Duration, got leased, err error) event {
	e := event{level: slog.LevelDebug, lease: LeaseEvent{Sequence: s.name, Table: s.a.store.table(), Mandatory: mandatory,
		Outcome: outcomeOf(got, err), Calls: got.attempts, Took: took, Err: err}}
	if err == nil {
		e.lease.Block = Block{First: got.first, Step: got.step, N: got.n}
		s.tally.latency.add(took)
		s.tally.blockSize = got.n
	} else if s.err == nil {
		e.level = slog.LevelWarn // and not for each of the attempts that follow
	}
	of := &s.tally.advisory
	if mandatory {
		of = &s.tally.mandatory
	}
	of.count(e.lease.Outcome)
	var hot float32
	if e.lease.Outcome == OutcomeThrottled {
		hot = 1
	}
	s.throttling += (hot - s.throttling) / throttleOf
	return e
}

// look judges the alerts anew and has the change of each told. requires mu
func (s *core) look() {
	now := s.a.now()
	runway := s.plan.cfg.runway
	left := forever
	if stock, rate := s.stock(), s.plan.rate(reserveOver, 0); stock == 0 && s.demand() > 0 {
		left = 0 // nobody has got any for long, so that there is no rate
	} else if rate > 0 {
		left = duration(float64(stock) / rate)
	}
	switch {
	case left < runway/2 && s.lowSince == 0:
		s.lowSince = max(now, 1)
	case left >= runway*5/8:
		s.lowSince = 0
	}
	x := signals{it: s.seen, warning: s.a.opts.ExhaustionWarning, throttled: float64(s.throttling), runway: runway, badTune: s.badTune}
	if s.lowSince > 0 {
		x.low = now - s.lowSince
	}
	if errors.Is(s.err, ErrCounterMovedBack) || s.alerts.Has(AlertMovedBack) && s.err != nil && !permanent(s.err) {
		x.movedBack = s.err // or an error that says nothing of it
	}
	after := x.judge(s.alerts)
	for _, k := range (after ^ s.alerts).Kinds() {
		level, text := x.level(k)
		// There are few of them, and one that is lost would be taken to fire, or
		// not to, for ever.
		s.events = append(s.events, event{alert: &Alert{Sequence: s.name, Table: s.a.store.table(), Kind: k, Firing: after.Has(k), Level: finite(level), Text: text}})
	}
	s.alerts = after
}

// tell calls the hooks for all events, in order, unless somebody else is doing
// that. Must be called without mu.
func (s *core) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.telling {
		return
	}
	s.telling = true
	defer func() { s.telling = false }()
	for len(s.events) > 0 {
		e := s.events[0]
		if s.events = s.events[1:]; len(s.events) == 0 {
			s.events = nil
		}
		s.tellOne(e)
	}
}

// tellOne lets go of mu while hooks are called, also one that panics or ends its
// goroutine. requires mu
func (s *core) tellOne(e event) {
	s.mu.Unlock()
	defer s.mu.Lock()
	s.a.tell(e)
}

func (a *Allocator) tell(e event) {
	ctx := context.Background()
	if al := e.alert; al != nil {
		attrs := []slog.Attr{slog.String("sequence", al.Sequence), slog.String("table", al.Table),
			slog.String("alert", al.Kind.String()), slog.Float64("level", al.Level), slog.String("text", al.Text)}
		if l := a.logger(slog.LevelWarn); l != nil && al.Firing {
			l.LogAttrs(ctx, slog.LevelWarn, "ddbseq: alert", attrs...)
		} else if l := a.logger(slog.LevelInfo); l != nil && !al.Firing {
			l.LogAttrs(ctx, slog.LevelInfo, "ddbseq: alert is over", attrs...)
		}
		if a.opts.Hooks.Alert != nil {
			a.opts.Hooks.Alert(*al)
		}
		return
	}
	if l := a.logger(e.level); l != nil {
		le := e.lease
		attrs := []slog.Attr{slog.String("sequence", le.Sequence), slog.String("table", le.Table), slog.Bool("mandatory", le.Mandatory),
			slog.String("outcome", string(le.Outcome)), slog.Int64("calls", le.Calls), slog.Duration("took", le.Took)}
		if le.Err != nil {
			l.LogAttrs(ctx, e.level, "ddbseq: lease failed", append(attrs, slog.Any("error", le.Err))...)
		} else {
			l.LogAttrs(ctx, e.level, "ddbseq: leased", append(attrs,
				slog.Int64("first", le.Block.First), slog.Int64("step", le.Block.Step), slog.Int64("ids", le.Block.N))...)
		}
	}
	if a.opts.Hooks.Lease != nil {
		a.opts.Hooks.Lease(e.lease)
	}
}

// logger returns the logger if it wants records of that level.
func (a *Allocator) logger(level slog.Level) *slog.Logger {
	if l := a.opts.Logger; l != nil && l.Enabled(context.Background(), level) {
		return l
	}
	return nil
}

// waitedFor counts a caller's wait that began at the time from, and tells of it.
// Must be called without mu.
func (s *core) waitedFor(w waiter, from time.Duration, err error) {
	if w.want == 0 {
		return
	}
	d := s.a.now() - from
	s.waitTime.Add(int64(d))
	if s.a.opts.Hooks.Wait != nil {
		s.a.opts.Hooks.Wait(WaitEvent{Sequence: s.name, Table: s.a.store.table(), Want: w.want, Waited: d, Err: err})
	}
}
