package ddbseq

import (
	"encoding/json"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Stats are the figures of one sequence, or of all, in this process: counters
// since the Allocator was made, of which Sub takes the difference, and gauges as
// they are now. A Stats is a value that nothing changes later.
//
// As JSON, counters, IDs and durations (in nanoseconds) are strings of digits,
// because most readers of JSON cannot hold an int64 beyond 2^53. With expvar:
//
//	expvar.Publish("ddbseq", expvar.Func(func() any { return seqs.Stats() }))
type Stats struct {
	Issued    int64         `json:",string"` // IDs handed out
	Waited    int64         `json:",string"` // calls that found memory empty and waited
	WaitTime  time.Duration `json:",string"` // for how long, all together; those who still wait are not in it
	Leases    int64         `json:",string"` // blocks leased
	Leased    int64         `json:",string"` // IDs in them
	Attempts  int64         `json:",string"` // calls to the store that Leases took
	Advisory  Outcomes      // attempts to refill while there were IDs in memory
	Mandatory Outcomes      // and while callers waited
	Throttled Throttled
	Recovered int64 `json:",string"` // leases whose reply was lost and found again
	Returned  int64 `json:",string"` // IDs given back to the table
	Abandoned Abandoned
	Latency   Latency // of attempts to refill that leased a block

	// From here on gauges: Sub leaves them as they are.
	Remaining int64         `json:",string"` // IDs in memory
	Next      int64         `json:",string"` // the first of them; it means nothing unless Remaining > 0
	Runway    time.Duration `json:",string"` // how long they last at Rate; the largest Duration if nobody takes any. Of all sequences: the shortest
	Rate      float64       // IDs a second, over half of RateWindow
	BlockSize int64         `json:",string"` // IDs in the newest block. Of all sequences: the largest
	Alerts    AlertSet      // that fire
	LastError string        // of the refill, "" after a success. Of all sequences: of one
	Fleet     Fleet         // of all processes. Empty for all sequences: it does not add up
}

// Outcomes counts attempts to refill by what came of them.
type Outcomes struct {
	OK        int64 `json:",string"` // a block
	Recovered int64 `json:",string"` // a block, leased by an earlier attempt whose reply was lost
	Throttled int64 `json:",string"`
	Failed    int64 `json:",string"` // another error that may pass
	Refused   int64 `json:",string"` // an error that somebody has to act on: access denied, exhausted, paused, ...
}

// Fleet is what the item of a sequence showed of all processes when this one
// last saw it, with a lease or a poll.
type Fleet struct {
	Seen       bool          // false: nothing was seen yet, all else means nothing
	LastID     int64         `json:",string"` // 0 while nothing is leased
	UsedToday  int64         `json:",string"` // IDs leased on the day of the newest lease
	DailyLimit int64         `json:",string"` // 0 = none
	Share      float64       // of the values of the sequence, from its first to its last, that lie behind the counter
	PerDay     float64       // IDs leased a day: the mean of the days kept in the item, or today's if that is more
	Left       time.Duration `json:",string"` // until the end at PerDay, at most 292 years; the largest Duration if never or not known
	GapRatio   float64       // see [Description.GapRatio]
}

// Latency is a histogram of durations, in powers of two from 1 ms on.
type Latency struct {
	buckets [latencyBuckets]uint32 // the last is for all that is longer
	max     time.Duration
}

const latencyBuckets = 16

func (l *Latency) add(d time.Duration) {
	l.max = max(l.max, d)
	l.buckets[min(bits.Len64(uint64(max(0, d)/time.Millisecond)), latencyBuckets-1)]++
}

// Count returns how many there are.
func (l Latency) Count() (n int64) {
	for _, b := range l.buckets {
		n += int64(b)
	}
	return n
}

// Max returns the longest.
func (l Latency) Max() time.Duration { return l.max }

// Quantile returns an upper bound, at most twice the value or 1 ms, of the
// q-quantile, 0 < q <= 1. It is 0 if there are none.
func (l Latency) Quantile(q float64) time.Duration {
	n := float64(l.Count())
	var seen int64
	for i, b := range l.buckets {
		if seen += int64(b); b > 0 && float64(seen) >= q*n {
			if i == latencyBuckets-1 {
				return l.max
			}
			return min(l.max, time.Millisecond<<i)
		}
	}
	return 0
}

// MarshalJSON writes two quantiles and the maximum, in nanoseconds.
func (l Latency) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		P50, P99, Max time.Duration `json:",string"`
	}{l.Quantile(0.5), l.Quantile(0.99), l.max})
}

func (l Latency) combine(o Latency, sign int64) Latency {
	for i := range l.buckets {
		l.buckets[i] += uint32(sign) * o.buckets[i]
	}
	if sign > 0 {
		l.max = max(l.max, o.max)
	}
	return l
}

// Abandoned says why IDs that were leased will never be handed out. What a
// crash loses is not among them: nobody is left to count it.
type Abandoned struct {
	Close   int64 `json:",string"` // left at Close and not given back
	Refresh int64 `json:",string"` // dropped by Refresh, Restart and Alter and not given back
	Fence   int64 `json:",string"` // leased from a counter that had moved back
	Caller  int64 `json:",string"` // claimed by a Fill that then failed
	Rest    int64 `json:",string"` // ends of blocks, too short for Reserve, that had to make room
}

// Throttled counts the attempts that were refused for their rate, by what
// DynamoDB gave as the reason.
type Throttled struct {
	KeyRange    int64 `json:",string"` // the item is hot: 1,000 writes/s at the most
	Provisioned int64 `json:",string"` // the table's provisioned capacity
	MaxOnDemand int64 `json:",string"` // the table's maximum on-demand throughput
	Account     int64 `json:",string"` // the account's quota
	Unsaid      int64 `json:",string"` // no reason was given
}

// Total returns their sum.
func (t Throttled) Total() int64 {
	return t.KeyRange + t.Provisioned + t.MaxOnDemand + t.Account + t.Unsaid
}

func (t *Throttled) count(reasons []string) {
	counter := &t.Unsaid
	for _, r := range reasons {
		switch {
		case strings.HasSuffix(r, "KeyRangeThroughputExceeded"):
			counter = &t.KeyRange
		case strings.HasSuffix(r, "ProvisionedThroughputExceeded"):
			counter = &t.Provisioned
		case strings.HasSuffix(r, "MaxOnDemandThroughputExceeded"):
			counter = &t.MaxOnDemand
		case strings.HasSuffix(r, "AccountLimitExceeded"):
			counter = &t.Account
		}
	}
	*counter++
}

// Total returns their sum.
func (a Abandoned) Total() int64 { return a.Close + a.Refresh + a.Fence + a.Caller + a.Rest }

// Total returns their sum.
func (o Outcomes) Total() int64 {
	return o.OK + o.Recovered + o.Throttled + o.Failed + o.Refused
}

// Sub returns what came after older: the difference of the counters, and the
// gauges of s.
func (s Stats) Sub(older Stats) Stats {
	for i, c := range s.counters() {
		*c -= *older.counters()[i]
	}
	s.WaitTime -= older.WaitTime
	s.Latency = s.Latency.combine(older.Latency, -1)
	return s
}

// plus returns the sum of two sequences.
func (s Stats) plus(o Stats) Stats {
	for i, c := range s.counters() {
		*c += *o.counters()[i]
	}
	s.WaitTime += o.WaitTime
	s.Latency = s.Latency.combine(o.Latency, 1)
	s.Remaining = addSat(s.Remaining, o.Remaining)
	s.Rate += o.Rate
	s.Runway = min(s.Runway, o.Runway)
	s.BlockSize = max(s.BlockSize, o.BlockSize)
	s.Alerts |= o.Alerts
	if s.LastError == "" {
		s.LastError = o.LastError
	}
	return s
}

// counters returns the counters but for durations, in the order of their names.
func (s *Stats) counters() []*int64 {
	a, m, t, b := &s.Advisory, &s.Mandatory, &s.Throttled, &s.Abandoned
	return []*int64{
		&s.Issued, &s.Waited, &s.Leases, &s.Leased, &s.Attempts,
		&a.OK, &a.Recovered, &a.Throttled, &a.Failed, &a.Refused,
		&m.OK, &m.Recovered, &m.Throttled, &m.Failed, &m.Refused,
		&t.KeyRange, &t.Provisioned, &t.MaxOnDemand, &t.Account, &t.Unsaid,
		&s.Recovered, &s.Returned, &b.Close, &b.Refresh, &b.Fence, &b.Caller, &b.Rest,
	}
}

// A tally holds the counters of one sequence, which Stats has under the same
// names. Of many thousands of sequences most are idle, and a Stats is large.
type tally struct {
	waited, leases, leased, attempts, recovered, returned int64

	advisory, mandatory Outcomes
	throttled           Throttled
	abandoned           Abandoned
	latency             Latency
	blockSize           int64
}

// Stats returns the figures of the sequence.
func (s *Sequence) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tally
	out := Stats{
		Waited: t.waited, WaitTime: time.Duration(s.waitTime.Load()),
		Leases: t.leases, Leased: t.leased, Attempts: t.attempts, Advisory: t.advisory, Mandatory: t.mandatory,
		Throttled: t.throttled, Recovered: t.recovered, Returned: t.returned, Abandoned: t.abandoned, Latency: t.latency,
		BlockSize: t.blockSize, Alerts: s.alerts, Fleet: seenOf(s.seen),
	}
	s.stock() // forgets what is used up
	issued := s.retired
	for _, b := range s.chain {
		left := b.left() // once: callers go on meanwhile
		if left > 0 && out.Remaining == 0 {
			out.Next = b.at(b.end - left)
		}
		issued += b.end - left
		out.Remaining = addSat(out.Remaining, left)
	}
	out.Issued = issued - t.abandoned.Caller
	plan := s.plan // to look must not change what is planned
	plan.observe(s.a.now(), issued)
	out.Rate = plan.rate(reserveOver, 0)
	out.Runway = forever
	if out.Rate > 0 {
		out.Runway = duration(float64(out.Remaining) / out.Rate)
	}
	if s.err != nil {
		out.LastError = s.err.Error()
	}
	return out
}

// Stats returns the figures of all sequences together, without the shadow ones.
func (a *Allocator) Stats() Stats { return a.sum(false) }

func (a *Allocator) sum(shadows bool) Stats {
	sum := Stats{Runway: forever}
	for name, s := range a.Each() {
		if isShadow(name) == shadows {
			sum = sum.plus(s)
		}
	}
	return sum
}

// Each yields the name and the Stats of every sequence that this process has
// used, shadow sequences included, in no order.
func (a *Allocator) Each() iter.Seq2[string, Stats] {
	return func(yield func(string, Stats) bool) {
		for _, s := range a.sequences() {
			if !yield(s.name, s.Stats()) {
				return
			}
		}
	}
}

// NamedStats are the Stats of one sequence.
type NamedStats struct {
	Name string
	Stats
}

// TopStats returns the n sequences that come first by cmp, and of equals those
// whose name comes first: of many thousands only the worst are worth a time
// series each. It leaves shadow sequences out, and takes about 2 µs for each of
// all. The order for those that come nearest to their end is:
//
//	func(x, y ddbseq.NamedStats) int { return cmp.Compare(y.Fleet.Share, x.Fleet.Share) }
func (a *Allocator) TopStats(n int, cmp func(x, y NamedStats) int) []NamedStats {
	order := func(x, y NamedStats) int {
		if c := cmp(x, y); c != 0 {
			return c
		}
		return strings.Compare(x.Name, y.Name)
	}
	var top []NamedStats // in order, at most n
	for name, s := range a.Each() {
		if n <= 0 || isShadow(name) {
			continue
		}
		x := NamedStats{name, s}
		if len(top) == n && order(x, top[n-1]) >= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(top, x, order)
		if len(top) == n {
			top = top[:n-1]
		}
		top = slices.Insert(top, i, x)
	}
	return top
}
