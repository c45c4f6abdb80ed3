package ddbseq

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"
	"unicode/utf8"
)

// Sizing says how far ahead a process leases, in time. It can be given for all
// sequences of an Allocator and, with [WithSizing], for one.
type Sizing struct {
	// Runway is for how long, at the present rate, the IDs in memory should
	// last: when less remains a refill starts. It is the outage of the store
	// that callers do not notice. 0 leases only when memory is empty, as a
	// database's CACHE does. Defaults to one minute.
	Runway time.Duration

	// LeaseEvery is how long one leased block should last at the present rate,
	// and so about how often a busy sequence costs a write. Defaults to one
	// minute.
	LeaseEvery time.Duration

	// RateWindow is the time over which the present rate is measured. Defaults
	// to one minute.
	RateWindow time.Duration

	// MinBlock is the smallest block that is leased, and the first one of a
	// process: what a crash loop costs each time. The later ones of a quiet
	// process are up to a quarter larger, at random, so that processes that
	// started together part. Defaults to 100.
	MinBlock int64

	// MaxBlock is the largest block that is leased: a bound on what a kill can
	// lose. Only Reserve may ask for more. MinBlock = MaxBlock = 1 with Runway
	// 0 is a sequence without a cache: slow, one write for each ID, and ordered
	// across processes. Defaults to 100,000,000: a minute at 1.6 million IDs/s.
	MaxBlock int64
}

// Options are the settings of an [Allocator].
type Options struct {
	Sizing

	// CreateMissing lets the first lease of a sequence that does not exist make
	// it, with the clauses given to Sequence. Without it such a sequence is
	// ErrNotFound, so that a misspelt name, a wrong region or an empty restored
	// table cannot start again at the first ID. Defaults to false for a
	// DynamoDB table and to true for Memory.
	CreateMissing bool

	// KeyPrefix is put before the name of every sequence to make its key in the
	// table; the two may have 255 bytes together. Defaults to none.
	KeyPrefix string

	// AttemptTimeout bounds one call to the store. A call that times out is
	// made again; it doubles for the attempts that follow a time-out, up to
	// four times this. Defaults to 3 seconds.
	AttemptTimeout time.Duration

	// MaxParallel bounds the number of leases in flight at once, over all
	// sequences; those of sequences whose last one got no answer in time may
	// take half of it. A sequence that waits to try again counts for none.
	// Defaults to 32.
	MaxParallel int

	// WarmSplay spreads the first leases that Warm asks for over this time, at
	// random, so that a fleet that starts at once does not meet on one item,
	// which takes 1,000 writes a second: processes / 1000 s is right. A caller
	// who waits for an ID is not made to wait for it. Defaults to 0.
	WarmSplay time.Duration

	// CloseTimeout bounds, together with its context, how long Close tries to
	// give back what is left in memory. Defaults to 5 seconds.
	CloseTimeout time.Duration

	// ConfigPoll makes the process read the items of the sequences it uses once
	// in this interval (eventually consistent, half a read unit each, jittered),
	// so that what operators set reaches also those that do not lease. 0 leaves
	// it to the leases. Defaults to 0.
	ConfigPoll time.Duration

	// Hooks are called for leases, waits and alerts. Defaults to none.
	Hooks Hooks

	// Logger gets leases at Debug level; at Warn level the first failure after a
	// success, of a call of administration its first, and alerts; and at Info level
	// the end of an alert. Defaults to
	// nil, which is silent.
	Logger *slog.Logger

	// ExhaustionWarning is how long before a sequence ends, at the present rate
	// of all processes, AlertExhaustion should fire. 0 never fires. Defaults to
	// 90 days.
	ExhaustionWarning time.Duration

	errorHold time.Duration
	forfeit   bool           // give nothing back: tests of what a crash leaves
	rand      func() float64 // in [0,1)
}

// Delays between attempts: full jitter between 0 and backoffBase*2^k, at most
// backoffCap. A fleet that starts at once on one hot item is ready within 1.3
// times the ideal time with these; a cap of 20 s strands stragglers.
const (
	backoffBase = 50 * time.Millisecond
	backoffCap  = 2 * time.Second

	// While nobody waits there is time: up to an eighth of what memory holds
	// passes between attempts, so that those who wait come first, but no more
	// than this, so that a fleet is refilled soon after an outage.
	advisoryBackoffCap = 10 * time.Second

	// errorHold is for how long a permanent error, found out once, is handed to
	// callers without asking the store again.
	defaultErrorHold = time.Second

	maxName = 255

	maxWarning = 20 * 365 * day

	// maxRun bounds a block in memory, so that its cursor can never come round
	// however many calls overshoot its end. A larger lease makes several.
	maxRun = 1 << 61

	// maxChain bounds the blocks in memory. Only Reserve, which leaves the ends
	// of blocks behind that are too short for it, ever gets there.
	maxChain = 64
)

func defaultOptions(s *Store) Options {
	_, inMemory := s.backend.(*memory)
	return Options{
		Sizing: Sizing{
			Runway:     defaultRunway,
			LeaseEvery: defaultLeaseEvery,
			RateWindow: defaultRateWindow,
			MinBlock:   defaultMinBlock,
			MaxBlock:   defaultMaxBlock,
		},
		CreateMissing:  inMemory,
		AttemptTimeout: 3 * time.Second,
		MaxParallel:    32,
		CloseTimeout:   5 * time.Second,
		errorHold:      defaultErrorHold,

		ExhaustionWarning: 90 * day,
		rand:              rand.Float64,
	}
}

func (o Options) validate() error {
	if err := o.Sizing.validate(); err != nil {
		return err
	}
	switch {
	case o.AttemptTimeout <= 0:
		return invalidOption("AttemptTimeout", o.AttemptTimeout, "must be positive")
	case o.WarmSplay < 0:
		return invalidOption("WarmSplay", o.WarmSplay, "must not be negative")
	case o.ConfigPoll < 0 || o.ConfigPoll > 0 && o.ConfigPoll < time.Second:
		return invalidOption("ConfigPoll", o.ConfigPoll, "must be 0 or a second or more")
	case o.ExhaustionWarning < 0 || o.ExhaustionWarning > maxWarning:
		return invalidOption("ExhaustionWarning", o.ExhaustionWarning, "must be between 0 and 20 years")
	case o.CloseTimeout <= 0:
		return invalidOption("CloseTimeout", o.CloseTimeout, "must be positive")
	case o.MaxParallel < 1:
		return invalidOption("MaxParallel", o.MaxParallel, "must be 1 or more")
	case !utf8.ValidString(o.KeyPrefix):
		return invalidOption("KeyPrefix", strconv.Quote(o.KeyPrefix), "must be UTF-8")
	case len(o.KeyPrefix) >= maxName:
		return invalidOption("KeyPrefix", o.KeyPrefix, "leaves no room for a name")
	}
	return nil
}

// sizing returns z for a planner, with jitter in [0, 1).
func (z Sizing) sizing(jitter float64) sizing {
	return sizing{
		runway: z.Runway, leaseEvery: z.LeaseEvery, rateWindow: z.RateWindow,
		minBlock: z.MinBlock, maxBlock: z.MaxBlock, jitter: jitter,
	}
}

func (z Sizing) validate() error {
	switch {
	case z.Runway < 0:
		return invalidOption("Runway", z.Runway, "must not be negative")
	case z.LeaseEvery <= 0:
		return invalidOption("LeaseEvery", z.LeaseEvery, "must be positive")
	case z.RateWindow < time.Second:
		return invalidOption("RateWindow", z.RateWindow, "must be a second or more")
	case z.MinBlock < 1:
		return invalidOption("MinBlock", z.MinBlock, "must be 1 or more")
	case z.MaxBlock < z.MinBlock:
		return invalidOption("MaxBlock", z.MaxBlock, "must not be below MinBlock")
	}
	return nil
}

func invalidOption(field string, value any, why string) error {
	return fmt.Errorf("%w: %s is %v, it %s", ErrInvalidOptions, field, value, why)
}

// A SequenceOption is a [Clause], or what [WithSizing] returns.
type SequenceOption interface{ configure(*sequenceConfig) }

type sequenceConfig struct {
	clauses clauses
	sizing  []func(*Sizing)
}

func (c Clause) configure(cfg *sequenceConfig) {
	if c != nil {
		c(&cfg.clauses)
	}
}

type sizingOption func(*Sizing)

func (fn sizingOption) configure(cfg *sequenceConfig) {
	if fn != nil {
		cfg.sizing = append(cfg.sizing, fn)
	}
}

// WithSizing changes the sizing of one sequence from that of its Allocator.
func WithSizing(fn func(*Sizing)) SequenceOption { return sizingOption(fn) }
