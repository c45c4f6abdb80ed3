package ddbseq

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// MaxSafeInteger is 2^53-1, the largest integer that a float64, and so every
// JavaScript and most JSON consumers, can hold together with all smaller ones.
// MaxValue(MaxSafeInteger) keeps a sequence within it; see also [SafeInteger].
const MaxSafeInteger = 1<<53 - 1

// Definition is what a sequence is, with every default filled in. The words and
// their meaning are those of SQL's CREATE SEQUENCE, and where databases differ
// PostgreSQL's are followed.
type Definition struct {
	Start     int64 // first value, and where a bare RESTART goes
	Increment int64 // never 0; negative for a descending sequence
	Min, Max  int64 // inclusive; Min < Max
	Cycle     bool  // go on at Min (ascending) or Max (descending) at the end
}

// String returns the definition as the clauses of CREATE SEQUENCE.
func (d Definition) String() string {
	cycle := "NO CYCLE"
	if d.Cycle {
		cycle = "CYCLE"
	}
	return fmt.Sprintf("START %d INCREMENT %d MINVALUE %d MAXVALUE %d %s", d.Start, d.Increment, d.Min, d.Max, cycle)
}

// A Clause is one clause of CREATE SEQUENCE or ALTER SEQUENCE. The zero value
// of nothing is a clause: a clause that is left out is different from one that
// is given as 0. Of a clause given twice the later one counts.
type Clause func(*clauses)

// clauses is what a caller or an item says of a definition: nil = not said.
type clauses struct {
	start, increment, min, max *int64
	cycle                      *bool
	noMin, noMax               bool
	daily                      *int64
	zone                       *string
	tune                       *[]func(*Tuning)

	// width bounds the far end when nothing else does; see Int32.
	widthMin, widthMax int64

	restart      *int64 // RESTART WITH v
	restartStart bool   // bare RESTART
	allowReuse   bool
}

// StartWith is START WITH v: the first value. Defaults to MINVALUE for an
// ascending sequence and to MAXVALUE for a descending one.
func StartWith(v int64) Clause { return func(c *clauses) { c.start = &v } }

// IncrementBy is INCREMENT BY v. Its sign is the direction; 0 is refused, any
// other value is allowed, also one larger than the range. Defaults to 1.
func IncrementBy(v int64) Clause { return func(c *clauses) { c.increment = &v } }

// MinValue is MINVALUE v. Defaults to 1 for an ascending sequence and to -2^63
// for a descending one.
func MinValue(v int64) Clause {
	return func(c *clauses) { c.min, c.noMin = &v, false }
}

// MaxValue is MAXVALUE v. Defaults to 2^63-1 for an ascending sequence and to
// -1 for a descending one.
func MaxValue(v int64) Clause {
	return func(c *clauses) { c.max, c.noMax = &v, false }
}

// NoMinValue is NO MINVALUE: back to the default of [MinValue].
func NoMinValue() Clause { return func(c *clauses) { c.min, c.noMin = nil, true } }

// NoMaxValue is NO MAXVALUE: back to the default of [MaxValue].
func NoMaxValue() Clause { return func(c *clauses) { c.max, c.noMax = nil, true } }

// Cycle is CYCLE: at its end an ascending sequence goes on at MINVALUE and a
// descending one at MAXVALUE. IDs of such a sequence repeat.
func Cycle() Clause { return setCycle(true) }

// NoCycle is NO CYCLE, the default: at its end a sequence is exhausted.
func NoCycle() Clause { return setCycle(false) }

func setCycle(v bool) Clause { return func(c *clauses) { c.cycle = &v } }

// Int32 keeps a sequence within int32, as CREATE SEQUENCE AS integer does: the
// far bound defaults to 2^31-1 (ascending) or -2^31 (descending), and a bound
// outside int32 is refused.
func Int32() Clause { return width(math.MinInt32, math.MaxInt32) }

// SafeInteger keeps a sequence within ±[MaxSafeInteger], in the way of [Int32].
func SafeInteger() Clause { return width(-MaxSafeInteger, MaxSafeInteger) }

func width(lo, hi int64) Clause {
	return func(c *clauses) { c.widthMin, c.widthMax = lo, hi }
}

// RestartWith is the RESTART WITH v of ALTER SEQUENCE, only for
// [Allocator.Alter]: the next value is v.
func RestartWith(v int64) Clause {
	return func(c *clauses) { c.restart, c.restartStart = &v, false }
}

// RestartAtStart is the bare RESTART of ALTER SEQUENCE, only for
// [Allocator.Alter]: the next value is the START of the definition.
func RestartAtStart() Clause {
	return func(c *clauses) { c.restart, c.restartStart = nil, true }
}

// AllowReuse lets [Allocator.Restart], [Allocator.RestartAfter] and
// [Allocator.Alter] move a sequence into values that were leased before, so
// that IDs repeat. Without it such a move is refused with [ErrReuse].
func AllowReuse() Clause { return func(c *clauses) { c.allowReuse = true } }

func gather(cs []Clause) clauses {
	var c clauses
	for _, f := range cs {
		if f != nil {
			f(&c)
		}
	}
	return c
}

func (c clauses) restarts() bool { return c.restart != nil || c.restartStart }

// defines reports whether c names anything of a definition.
func (c clauses) defines() bool { return c.sql() || c.daily != nil || c.zone != nil }

// sql reports whether c names anything that ALTER SEQUENCE knows.
func (c clauses) sql() bool {
	return c.start != nil || c.increment != nil || c.min != nil || c.max != nil ||
		c.cycle != nil || c.noMin || c.noMax || c.widthMax != 0
}

// over returns the definition that c makes of old, as ALTER SEQUENCE would:
// what is not named keeps its value, also when the sign of the increment
// changes, and NO MINVALUE and NO MAXVALUE go to the default of the new sign.
func (c clauses) over(old Definition) Definition {
	d := old
	if c.increment != nil {
		d.Increment = *c.increment
	}
	if c.min != nil {
		d.Min = *c.min
	} else if c.noMin {
		d.Min = defaultMin(d.Increment)
	}
	if c.max != nil {
		d.Max = *c.max
	} else if c.noMax {
		d.Max = defaultMax(d.Increment)
	}
	if c.start != nil {
		d.Start = *c.start
	}
	if c.cycle != nil {
		d.Cycle = *c.cycle
	}
	if c.widthMax != 0 && d.Increment > 0 && c.max == nil {
		d.Max = min(d.Max, c.widthMax)
	}
	if c.widthMax != 0 && d.Increment < 0 && c.min == nil {
		d.Min = max(d.Min, c.widthMin)
	}
	return d
}

// definition returns the definition that c makes on its own, as CREATE
// SEQUENCE would.
func (c clauses) definition() Definition {
	d := Definition{Increment: 1}
	if c.increment != nil {
		d.Increment = *c.increment
	}
	c.noMin, c.noMax = c.min == nil, c.max == nil
	d = c.over(d)
	if c.start == nil {
		d.Start = d.Min
		if d.Increment < 0 {
			d.Start = d.Max
		}
	}
	return d
}

func defaultMin(increment int64) int64 {
	if increment < 0 {
		return math.MinInt64
	}
	return 1
}

func defaultMax(increment int64) int64 {
	if increment < 0 {
		return -1
	}
	return math.MaxInt64
}

// explicit returns what has to be stored of c so that a reader that knows
// nothing of widths finds the same definition: the clauses given, and the far
// bound that a width implies.
func (c clauses) explicit() clauses {
	d := c.definition()
	out := clauses{start: c.start, increment: c.increment, min: c.min, max: c.max, cycle: c.cycle}.with(c.limit(dailyLimit{}))
	if c.widthMax != 0 {
		if d.Increment < 0 {
			out.min = &d.Min
		} else {
			out.max = &d.Max
		}
	}
	return out
}

// all returns d as clauses with nothing left out.
func (d Definition) all() clauses {
	return clauses{start: &d.Start, increment: &d.Increment, min: &d.Min, max: &d.Max, cycle: &d.Cycle}
}

// disagrees returns the clauses of c that d does not meet, in words.
func (c clauses) disagrees(d Definition) string {
	if !c.defines() {
		return ""
	}
	want := c.over(d)
	var out []string
	differ := func(clause string, want, have any) {
		if want != have {
			out = append(out, fmt.Sprintf("%s is %v in the code and %v in the table", clause, want, have))
		}
	}
	differ("START", want.Start, d.Start)
	differ("INCREMENT", want.Increment, d.Increment)
	differ("MINVALUE", want.Min, d.Min)
	differ("MAXVALUE", want.Max, d.Max)
	differ("CYCLE", want.Cycle, d.Cycle)
	if c.widthMax != 0 && (d.Min < c.widthMin || d.Max > c.widthMax) {
		out = append(out, fmt.Sprintf("the type asked for holds %d to %d and the table has %d to %d", c.widthMin, c.widthMax, d.Min, d.Max))
	}
	return strings.Join(out, ", ")
}

// disagreesWith returns what of c the item does not meet, in words.
func (c clauses) disagreesWith(it *item) string {
	var out []string
	for _, why := range []string{c.disagrees(it.definition()), c.disagreesLimit(it.said().limit(dailyLimit{}))} {
		if why != "" {
			out = append(out, why)
		}
	}
	return strings.Join(out, ", ")
}

// check applies PostgreSQL's checks in PostgreSQL's order and reports the first
// that fails. c holds the clauses that led to d.
func (d Definition) check(sequence string, c clauses) error {
	fail := func(rule, format string, args ...any) error {
		return &DefinitionError{Sequence: sequence, Rule: rule, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case d.Increment == 0:
		return fail("increment_zero", "INCREMENT must not be zero")
	case c.widthMax != 0 && (d.Max > c.widthMax || d.Max < c.widthMin):
		return fail("max_out_of_width", "MAXVALUE (%d) is out of range of the type asked for", d.Max)
	case c.widthMax != 0 && (d.Min < c.widthMin || d.Min > c.widthMax):
		return fail("min_out_of_width", "MINVALUE (%d) is out of range of the type asked for", d.Min)
	case d.Min >= d.Max:
		return fail("min_not_below_max", "MINVALUE (%d) must be less than MAXVALUE (%d)", d.Min, d.Max)
	case d.Start < d.Min:
		return fail("start_below_min", "START value (%d) cannot be less than MINVALUE (%d)", d.Start, d.Min)
	case d.Start > d.Max:
		return fail("start_above_max", "START value (%d) cannot be greater than MAXVALUE (%d)", d.Start, d.Max)
	}
	return c.limit(dailyLimit{}).check(sequence)
}

// contains reports whether v lies within the bounds; it need not be on the
// stride, as with setval.
func (d Definition) contains(v int64) bool { return d.Min <= v && v <= d.Max }

func (d Definition) ascending() bool { return d.Increment > 0 }

// stride is |Increment|, which for -2^63 does not fit int64.
func (d Definition) stride() uint64 {
	if d.Increment < 0 {
		return -uint64(d.Increment)
	}
	return uint64(d.Increment)
}

// room returns how many values follow last before the end, exactly, in uint64:
// the distance between two int64 can be 2^64-1.
func (d Definition) room(last int64) uint64 {
	if d.ascending() {
		if last >= d.Max {
			return 0
		}
		return (uint64(d.Max) - uint64(last)) / d.stride()
	}
	if last <= d.Min {
		return 0
	}
	return (uint64(last) - uint64(d.Min)) / d.stride()
}

// roomFrom returns how many values there are from first on, first included.
func (d Definition) roomFrom(first int64) uint64 {
	if !d.contains(first) {
		return 0
	}
	n := d.room(first)
	if n == math.MaxUint64 {
		return n
	}
	return n + 1
}

// size returns how many values a lap of the sequence has at the most.
func (d Definition) size() uint64 { return max(d.roomFrom(d.first()), d.roomFrom(d.Start)) }

// first is where a lap begins after a wrap.
func (d Definition) first() int64 {
	if d.ascending() {
		return d.Min
	}
	return d.Max
}

// after reports whether a comes strictly after b in the direction of the
// sequence.
func (d Definition) after(a, b int64) bool {
	if d.ascending() {
		return a > b
	}
	return a < b
}

// nth returns the value n-1 steps after first. The caller knows that it lies
// within the bounds; the intermediate wrap-around of int64 then cancels out.
func (d Definition) nth(first, n int64) int64 { return first + (n-1)*d.Increment }

// The numbers of a condition can lie outside int64 (START - INCREMENT of a
// sequence that starts at -2^63 does), though never outside DynamoDB's 38
// digits: |v| <= 2^63 + 2^63 * 2^63 < 10^38.

func bigOf(v int64) *big.Int { return big.NewInt(v) }

// minus returns v - n*Increment.
func (d Definition) minus(v, n int64) *big.Int {
	delta := new(big.Int).Mul(big.NewInt(n), big.NewInt(d.Increment))
	return delta.Sub(big.NewInt(v), delta)
}

// delta returns n*Increment.
func (d Definition) delta(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(d.Increment))
}

// merge returns c with what more says besides, or in words what they disagree
// about.
func (c clauses) merge(more clauses) (clauses, string) {
	number := func(clause string, have **int64, v *int64) string {
		if v == nil || equal(*have, v) {
			return ""
		}
		if *have != nil {
			return fmt.Sprintf("%s is %d in one call and %d in another", clause, **have, *v)
		}
		*have = v
		return ""
	}
	for _, conflict := range []string{
		number("START", &c.start, more.start),
		number("INCREMENT", &c.increment, more.increment),
		number("MINVALUE", &c.min, more.min),
		number("MAXVALUE", &c.max, more.max),
		number("DailyLimit", &c.daily, more.daily),
	} {
		if conflict != "" {
			return c, conflict
		}
	}
	if more.cycle != nil {
		if c.cycle != nil && *c.cycle != *more.cycle {
			return c, "one call says CYCLE and another NO CYCLE"
		}
		c.cycle = more.cycle
	}
	if more.zone != nil {
		if c.zone != nil && *c.zone != *more.zone {
			return c, "the calls name different time zones"
		}
		c.zone = more.zone
	}
	c.noMin, c.noMax = c.noMin || more.noMin, c.noMax || more.noMax
	if c.noMin && c.min != nil || c.noMax && c.max != nil {
		return c, "one call names a bound of which another says that there is none"
	}
	if more.widthMax != 0 {
		if c.widthMax != 0 && c.widthMax != more.widthMax {
			return c, "the calls ask for different types"
		}
		c.widthMin, c.widthMax = more.widthMin, more.widthMax
	}
	return c, ""
}

// checkSaid checks what clauses say among themselves: the rest is in the table.
func (c clauses) checkSaid(sequence string) error {
	if err := c.misplaced(sequence); err != nil {
		return err
	}
	d := Definition{Increment: 1, Min: math.MinInt64, Max: math.MaxInt64}
	if c.widthMax != 0 {
		d.Min, d.Max = c.widthMin, c.widthMax
	}
	d = clauses{increment: c.increment, min: c.min, max: c.max}.over(d)
	d.Start = d.Min
	if c.start != nil {
		d.Start = *c.start
	}
	return d.check(sequence, c)
}

// misplaced refuses clauses that only ALTER SEQUENCE takes.
func (c clauses) misplaced(sequence string) error {
	if c.restarts() || c.allowReuse || c.tune != nil {
		return &DefinitionError{Sequence: sequence, Rule: "misplaced_clause", Detail: "RESTART, Tune, Pause and Resume belong to Alter, AllowReuse to Alter and Restart"}
	}
	return nil
}

// checkCreate checks clauses where CREATE SEQUENCE would take them.
func (c clauses) checkCreate(sequence string) error {
	if err := c.misplaced(sequence); err != nil {
		return err
	}
	return c.definition().check(sequence, c)
}
