package ddbseq

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrDailyLimit is returned when the IDs that may be leased today, by all
// processes together, are used up. The details are in a [DailyLimitError].
var ErrDailyLimit = errors.New("ddbseq: daily limit reached")

// A DailyLimitError says how many IDs may be leased a day and when the next day
// begins. It matches [ErrDailyLimit].
type DailyLimitError struct {
	Sequence, Table string
	Limit, Used     int64
	ResetAt         time.Time
}

func (e *DailyLimitError) Error() string {
	return fmt.Sprintf("ddbseq: sequence %q in table %q: %d of %d IDs a day are leased; the next day begins at %s: wait, or raise DailyLimit with Alter",
		e.Sequence, e.Table, e.Used, e.Limit, e.ResetAt.Format(time.RFC3339))
}

// Is matches ErrDailyLimit.
func (e *DailyLimitError) Is(target error) bool { return target == ErrDailyLimit }

// DailyLimit is the number of IDs that all processes together may lease in a
// day; what they give back counts no more. It is enforced by the table itself,
// in the write that leases: callers who find memory empty when it is used up get
// [ErrDailyLimit] until the day ends. The day is that of the store's clock, in
// UTC unless [DailyLimitZone] says otherwise. A Fill or a Reserve of more than is
// left of the day gets it at once, and leases nothing. Defaults to none.
func DailyLimit(n int64) Clause { return func(c *clauses) { c.daily = &n } }

// NoDailyLimit takes a daily limit away.
func NoDailyLimit() Clause { return DailyLimit(0) }

// DailyLimitZone is the IANA time zone, such as "Europe/Berlin", at whose
// midnight the day of [DailyLimit] ends. All processes need its data: a program
// for machines without a time zone database imports time/tzdata. Defaults to
// "UTC".
func DailyLimitZone(zone string) Clause { return func(c *clauses) { c.zone = &zone } }

// dailyLimit is what a definition says of it.
type dailyLimit struct {
	max  int64  // IDs a day; 0 = any number
	zone string // whose midnight counts; "" = UTC
}

func (l dailyLimit) String() string {
	switch {
	case l.max == 0:
		return "none"
	case l.zone == "":
		return fmt.Sprintf("%d (UTC)", l.max)
	}
	return fmt.Sprintf("%d (%s)", l.max, l.zone)
}

// limit returns what c makes of old.
func (c clauses) limit(old dailyLimit) dailyLimit {
	l := old
	set(&l.max, c.daily)
	if set(&l.zone, c.zone); l.zone == "UTC" || l.max == 0 {
		l.zone = ""
	}
	return l
}

// disagreesLimit is disagrees for the limit.
func (c clauses) disagreesLimit(l dailyLimit) string {
	if want := c.limit(l); want != l {
		return fmt.Sprintf("the daily limit is %v in the code and %v in the table", want, l)
	}
	return ""
}

// with returns c, which says all of a definition, with l.
func (c clauses) with(l dailyLimit) clauses {
	c.daily, c.zone = nil, nil
	if l.max != 0 {
		c.daily, c.zone = &l.max, &l.zone
	}
	return c
}

// maxZone bounds the name of a zone, so that the item stays below 1 KB.
const maxZone = 40

func (l dailyLimit) check(sequence string) error {
	if l.max < 0 {
		return &DefinitionError{Sequence: sequence, Rule: "daily_limit_negative", Detail: fmt.Sprintf("DailyLimit (%d) must not be negative", l.max)}
	}
	_, err := l.location()
	if err == nil && (len(l.zone) > maxZone || l.zone == "Local") {
		err = errors.New("it means nothing to other machines")
	}
	if err != nil {
		return &DefinitionError{Sequence: sequence, Rule: "daily_limit_zone", Detail: fmt.Sprintf(
			"DailyLimitZone (%.60q) is not an IANA time zone known here: %v; a machine without a time zone database needs the package time/tzdata", l.zone, err)}
	}
	return nil
}

func (l dailyLimit) location() (*time.Location, error) { return time.LoadLocation(l.zone) }

// A dayLimit is the part of a lease that counts it for a day, and keeps to the
// daily limit if there is one. Without a limit it demands nothing of the item and
// counts for whatever day that has: a condition would cost every process a
// refused write at midnight, and a fleet that starts in the morning one for each
// of its members. Whoever sees then that the day is over begins the next one with
// a write of its own; see newDay.
type dayLimit struct {
	day  string  // the day the lease counts for
	n    int64   // IDs
	max  int64   // IDs a day; 0 = any number
	roll bool    // day begins with this change
	from string  // with roll: the day that is replaced; "" = none
	used int64   // with from: what was leased on it
	days []int64 // with from: the totals of the days before day
}

const dayFormat = "2006-01-02"

// allows reports whether the item leaves room for the lease on its day.
func (l *dayLimit) allows(it *item) bool {
	switch {
	case l.roll:
		return it.day == l.from && (l.from == "" || l.used == math.MaxInt64 || it.used == l.used)
	case l.max == 0:
		return true
	}
	return it.day == l.day && it.used <= l.max-l.n
}

// today returns the day that a lease counts for, given the day that the item
// has: the store's day, but no day ever comes again. A day more than one ahead
// of the store's clock is somebody's mistake and not believed, otherwise a
// single host with a wrong clock would stop the fleet until then.
func today(stored string, now time.Time, zone *time.Location) string {
	day := now.In(zone).Format(dayFormat)
	if tomorrow := now.In(zone).AddDate(0, 0, 1).Format(dayFormat); stored > day && stored <= tomorrow {
		return stored
	}
	return day
}

// dayEnds returns the first moment after day in zone.
func dayEnds(day string, zone *time.Location) time.Time {
	d, err := time.Parse(dayFormat, day)
	if err != nil {
		return time.Time{}
	}
	t := time.Date(d.Year(), d.Month(), d.Day()+1, 0, 0, 0, 0, zone)
	if t.Format(dayFormat) <= day {
		// The clocks go forward at midnight, which time.Date then puts before.
		_, t = t.ZoneBounds()
	}
	return t
}

// limitFor returns how a lease of up to n IDs from it, which has a definition, at
// the time now counts for a day, and how many of them the daily limit allows.
func (it *item) limitFor(n int64, now time.Time) (*dayLimit, int64, error) {
	limit := it.said().limit(dailyLimit{})
	if limit.max == 0 {
		return &dayLimit{day: today(it.day, now, time.UTC), n: n}, n, nil
	}
	zone, err := limit.location()
	if err != nil {
		return nil, 0, limit.check(it.key)
	}
	l := &dayLimit{day: today(it.day, now, zone), max: limit.max, from: it.day}
	left := limit.max
	if l.roll = it.day != l.day; !l.roll {
		left = limit.max - it.used
	} else if l.from != "" {
		l.used, l.days = it.used, it.daysBefore(l.day)
	}
	if left <= 0 {
		return nil, 0, &DailyLimitError{Limit: limit.max, Used: it.used, ResetAt: dayEnds(l.day, zone)}
	}
	l.n = min(n, left)
	return l, l.n, nil
}

// leftToday returns how many IDs l leaves for today, and the error of who wants
// more, nil if there is no limit.
func (it *item) leftToday(l *dayLimit) (left int64, e *DailyLimitError) {
	if l == nil || l.max == 0 {
		return 0, nil
	}
	used := it.used
	if l.roll {
		used = 0
	}
	e = &DailyLimitError{Limit: l.max, Used: used}
	if zone, err := it.said().limit(dailyLimit{}).location(); err == nil { // as l was made with it
		e.ResetAt = dayEnds(l.day, zone)
	}
	return l.max - used, e
}

// newDay returns the change that begins a new day in it, as a lease of n IDs has
// left it at the time now, nil if there is none to begin or the leases do. What
// that lease was counted for goes over to the new day.
func (it *item) newDay(n int64, now time.Time) *change {
	day := today(it.day, now, time.UTC)
	if it.ver == "" || it.day == "" || it.day == day || it.said().limit(dailyLimit{}).max > 0 {
		return nil
	}
	before := *it
	before.used = max(0, it.used-n)
	return &change{key: it.key, token: randomID(), base: it, absent: true, present: true,
		limit: &dayLimit{day: day, n: n, roll: true, from: it.day, used: it.used, days: before.daysBefore(day)}}
}

// keptDays is how many daily totals an item keeps: a week.
const keptDays = 7

// daysBefore returns the totals of the days before day, newest first, when day
// follows the one that the item has.
func (it *item) daysBefore(day string) []int64 {
	out := []int64{sixDigits(it.used)}
	from, err := time.Parse(dayFormat, it.day)
	if to, err2 := time.Parse(dayFormat, day); err == nil && err2 == nil {
		for d := from.AddDate(0, 0, 1); d.Before(to) && len(out) < keptDays; d = d.AddDate(0, 0, 1) {
			out = append([]int64{0}, out...)
		}
		if from.AddDate(0, 0, keptDays).Before(to) {
			return make([]int64, keptDays) // a week without a lease
		}
	}
	out = append(out, it.days...)
	return out[:min(len(out), keptDays)]
}

// sixDigits rounds n down to six digits, of which DynamoDB stores 4 bytes.
func sixDigits(n int64) int64 {
	unit := int64(1)
	for m := n; m >= 1_000_000 || m <= -1_000_000; m /= 10 {
		unit *= 10
	}
	return n / unit * unit
}

// dayNumber returns the day that an item's newest lease counted for, 0 if none or
// if there is no limit that a give-back would have to be taken off.
func dayNumber(it *item) int64 {
	if it.said().limit(dailyLimit{}).max == 0 {
		return 0
	}
	t, err := time.Parse(dayFormat, it.day)
	if err != nil {
		return 0
	}
	return int64(t.Year()*10000 + int(t.Month())*100 + t.Day())
}
