package ddbseq

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// An AlertKind says what an [Alert] is about. The thresholds below are where it
// fires; it ends below 4/5 of them, so that one episode is two events.
//
// Each process judges by itself, with each lease and poll: what is wrong with
// the fleet is told by every process that still leases.
type AlertKind uint8

const (
	// AlertBurnRate fires when today's leases of all processes have passed 1.5
	// times the largest of the last seven daily totals but yesterday's. It
	// compares days and not hours, so that a nightly batch is usual once it has
	// been seen; a run-away consumer of ten times the usual rate is told after
	// 15 % of the day. Yesterday does not count as usual, because what began
	// then, late in the day, would not be told today. To be told of, the excess
	// must be 1,000,000 IDs or 1/1000 of the sequence's values, whichever is less,
	// but at least 1,000: more than a deployment of a large fleet costs a quiet
	// sequence. Before two full days are known nothing is usual. Advance leases
	// nothing. A batch that runs less than once a week does fire.
	AlertBurnRate AlertKind = iota

	// AlertExhaustion fires when at the present fleet rate the end comes within
	// Options.ExhaustionWarning, or within ten times that and 90 % of the values
	// are used. The rate is [Fleet].PerDay, in whole days for the same reason as
	// above. Of an adopted item, whose days are not counted, the 90 % decide
	// alone. CYCLE has no end.
	AlertExhaustion

	// AlertWaste fires when half of what was ever leased was neither issued nor
	// given back, from the second day on and in the amount that AlertBurnRate
	// demands: processes crash in a loop, or MinBlock is too large for what they use.
	AlertWaste

	// AlertThrottled fires when about half of the last attempts of this process
	// were throttled, of eight or so.
	AlertThrottled

	// AlertRunway fires when memory has held less than half of Runway for a
	// quarter of it, and for 10 s at least: the store does not answer, or MaxBlock
	// is too small.
	AlertRunway

	// AlertMovedBack fires when the sequence is refused with ErrCounterMovedBack.
	AlertMovedBack

	// AlertBadTuning fires when tune in the item cannot be used; what was there
	// before holds.
	AlertBadTuning

	alertKinds
)

var alertNames = [alertKinds]string{"burn_rate", "exhaustion", "waste", "throttled", "runway", "counter_moved_back", "bad_tuning"}

// String returns the name, in snake case.
func (k AlertKind) String() string {
	if k < alertKinds {
		return alertNames[k]
	}
	return fmt.Sprintf("AlertKind(%d)", uint8(k))
}

// MarshalText returns the name.
func (k AlertKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads it.
func (k *AlertKind) UnmarshalText(b []byte) error {
	i := slices.Index(alertNames[:], string(b))
	if i < 0 {
		return fmt.Errorf("ddbseq: there is no alert %.40q", b)
	}
	*k = AlertKind(i)
	return nil
}

// An AlertSet is a set of kinds.
type AlertSet uint32

// Has reports whether k is in it.
func (s AlertSet) Has(k AlertKind) bool { return s&(1<<k) != 0 }

// Kinds lists them.
func (s AlertSet) Kinds() []AlertKind {
	out := []AlertKind{}
	for k := range alertKinds {
		if s.Has(k) {
			out = append(out, k)
		}
	}
	return out
}

// String lists their names.
func (s AlertSet) String() string { return fmt.Sprint(s.Kinds()) }

// MarshalJSON writes the list of names.
func (s AlertSet) MarshalJSON() ([]byte, error) { return json.Marshal(s.Kinds()) }

// UnmarshalJSON reads it.
func (s *AlertSet) UnmarshalJSON(b []byte) error {
	var kinds []AlertKind
	if err := json.Unmarshal(b, &kinds); err != nil {
		return err
	}
	*s = 0
	for _, k := range kinds {
		*s |= 1 << k
	}
	return nil
}

// An Alert is the beginning or the end of something that an operator should know
// of a sequence.
type Alert struct {
	Sequence, Table string
	Kind            AlertKind
	Firing          bool    // false: it is over
	Level           float64 // 1 is the threshold
	Text            string  // what is the case, in words; empty when it is over
}

const (
	clearBelow  = 0.8 // of the threshold
	burnFactor  = 1.5
	usualDays   = 3 // of which the first may have been a part of a day
	wasteRatio  = 0.5
	usedShare   = 0.9
	throttleTop = 0.5
	throttleOf  = 8 // attempts that the share is over, about
	leastExcess = 1_000
	mostExcess  = 1_000_000

	forever = time.Duration(math.MaxInt64)
	day     = 24 * time.Hour
)

// signals is all that alerts are judged by. The item is nil while none was seen.
type signals struct {
	it        *item
	warning   time.Duration
	throttled float64       // share of attempts
	low       time.Duration // for how long memory has held too little
	runway    time.Duration
	movedBack error
	badTune   string
}

// judge returns which alerts fire, given those that did.
func (x signals) judge(before AlertSet) (after AlertSet) {
	for k := range alertKinds {
		level, _ := x.level(k)
		if level >= 1 || level >= clearBelow && before.Has(k) {
			after |= 1 << k
		}
	}
	return after
}

// level returns how far x is towards the threshold of k, which is 1.
func (x signals) level(k AlertKind) (level float64, text string) {
	it := x.it
	switch {
	case k == AlertThrottled:
		return x.throttled / throttleTop, fmt.Sprintf("%.0f %% of the attempts to lease are throttled", 100*x.throttled)
	case k == AlertRunway && x.runway > 0:
		return float64(x.low) / float64(max(x.runway/4, 10*time.Second)),
			fmt.Sprintf("memory has held less than half of Runway (%v) for %v", x.runway, x.low.Round(time.Second))
	case k == AlertMovedBack && x.movedBack != nil:
		return 1, x.movedBack.Error()
	case k == AlertBadTuning && x.badTune != "":
		return 1, "tune in the item cannot be used: " + x.badTune
	case it == nil:
		return 0, ""
	case k == AlertBurnRate && len(it.days) >= usualDays:
		usual := 0.0
		for _, n := range it.days[1:] {
			usual = max(usual, float64(n))
		}
		used := float64(it.used)
		return min(used/(burnFactor*usual), (used-usual)/it.excess()),
			fmt.Sprintf("%d IDs were leased on %s, the most of the days from %d to 2 before was %.0f", it.used, it.day, len(it.days), usual)
	case k == AlertExhaustion && x.warning > 0 && !it.definition().Cycle:
		share, left := it.share(), it.left()
		within := float64(x.warning) / float64(left)
		nearly := share / usedShare
		if it.ver != "" {
			nearly = min(nearly, 10*within)
		}
		if left == forever {
			return nearly * flag(it.ver == ""), fmt.Sprintf("%.2f %% of its values are used", 100*share)
		}
		return max(within, nearly), fmt.Sprintf("%.2f %% of its values are used, at %.0f a day the rest lasts %.1f days", 100*share, it.perDay(), float64(left)/float64(day))
	case k == AlertWaste && len(it.days) > 0:
		t := it.totals
		wasted := float64(t.leased) - float64(t.issued) - float64(t.returned)
		return min(wasted/float64(max(t.leased, 1))/wasteRatio, wasted/it.excess()),
			fmt.Sprintf("of %d IDs leased %.0f were neither issued nor given back", t.leased, wasted)
	}
	return 0, ""
}

// finite bounds what JSON cannot say.
func finite(level float64) float64 {
	if math.IsNaN(level) {
		return 0
	}
	return min(level, 1e9)
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// excess is how many IDs more than usual are worth an alert.
func (it *item) excess() float64 {
	return min(max(float64(it.definition().size())/1000, leastExcess), mostExcess)
}

// share returns the part of the sequence's values that lie behind the counter.
// The difference is taken in uint64: 123 of 2^64 values are not rounded to 0.
func (it *item) share() float64 {
	d := it.definition()
	return d.share(it.roomOf(d))
}

func (d Definition) share(room uint64) float64 {
	all := d.roomFrom(d.first())
	if all == 0 {
		return 1
	}
	return float64(all-min(room, all)) / float64(all)
}

// perDay returns how many IDs the fleet leases a day, 0 if that is not known.
func (it *item) perDay() float64 {
	sum := 0.0
	for _, n := range it.days {
		sum += float64(n)
	}
	return max(sum/float64(max(len(it.days), 1)), float64(it.used))
}

// left returns the time until the sequence ends, as far as a Duration can say.
func (it *item) left() time.Duration {
	d := it.definition()
	return d.lasts(it.roomOf(d), it.perDay())
}

func (d Definition) lasts(room uint64, perDay float64) time.Duration {
	switch {
	case d.Cycle:
		return forever
	case room == 0:
		return 0
	case perDay <= 0:
		return forever
	}
	return duration(float64(room) / perDay * day.Seconds())
}

func seenOf(it *item) Fleet {
	if it == nil {
		return Fleet{Left: forever}
	}
	d, perDay := it.definition(), it.perDay()
	room := it.roomOf(d)
	f := Fleet{Seen: true, UsedToday: it.used, Share: d.share(room), PerDay: perDay, Left: d.lasts(room, perDay), GapRatio: it.totals.gapRatio()}
	if it.def != nil {
		f.DailyLimit = it.def.limit(dailyLimit{}).max
	}
	if it.lastID != nil {
		f.LastID = *it.lastID
	}
	return f
}
