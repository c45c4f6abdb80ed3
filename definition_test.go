package ddbseq

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

const (
	minInt = math.MinInt64
	maxInt = math.MaxInt64
)

// ruleOf returns the name of the rule that err says is broken, "" for none.
func ruleOf(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	de, ok := errors.AsType[*DefinitionError](err)
	if !ok || !errors.Is(err, ErrInvalidDefinition) {
		t.Fatalf("%v is no DefinitionError", err)
	}
	return de.Rule
}

func TestClausesLeftOutGetTheDefaultsOfTheirDirection(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []Clause
		want Definition
	}{
		{"nothing", nil, Definition{1, 1, 1, maxInt, false}},
		{"descending", []Clause{IncrementBy(-1)}, Definition{-1, -1, minInt, -1, false}},
		{"the steepest descent", []Clause{IncrementBy(minInt)}, Definition{-1, minInt, minInt, -1, false}},
		{"start follows min going up", []Clause{MinValue(-5)}, Definition{-5, 1, -5, maxInt, false}},
		{"start follows max going down", []Clause{IncrementBy(-2), MaxValue(9)}, Definition{9, -2, minInt, 9, false}},
		{"start is unlike no start", []Clause{MinValue(-5), StartWith(0)}, Definition{0, 1, -5, maxInt, false}},
		{"max is unlike no max", []Clause{MinValue(-5), MaxValue(0)}, Definition{-5, 1, -5, 0, false}},
		{"no min, no max", []Clause{NoMinValue(), NoMaxValue(), IncrementBy(-1)}, Definition{-1, -1, minInt, -1, false}},
		{"the later of two counts", []Clause{MaxValue(5), NoMaxValue(), NoMinValue(), MinValue(3)}, Definition{3, 1, 3, maxInt, false}},
		{"cycle and no cycle", []Clause{Cycle(), NoCycle()}, Definition{1, 1, 1, maxInt, false}},
		{"a nil clause says nothing", []Clause{nil, Cycle()}, Definition{1, 1, 1, maxInt, true}},
		{"int32 up", []Clause{Int32()}, Definition{1, 1, 1, math.MaxInt32, false}},
		{"int32 down", []Clause{Int32(), IncrementBy(-1)}, Definition{-1, -1, math.MinInt32, -1, false}},
		{"int32 with a lower max", []Clause{Int32(), MaxValue(7)}, Definition{1, 1, 1, 7, false}},
		{"safe integers up", []Clause{SafeInteger()}, Definition{1, 1, 1, 1<<53 - 1, false}},
		{"safe integers down", []Clause{SafeInteger(), IncrementBy(-3)}, Definition{-1, -3, -(1<<53 - 1), -1, false}},
		{"int32 from its other end", []Clause{Int32(), MinValue(math.MinInt32)}, Definition{math.MinInt32, 1, math.MinInt32, math.MaxInt32, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := gather(c.in)
			if got := all.definition(); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
			if err := all.checkCreate("s"); err != nil {
				t.Error(err)
			}
			// What is stored must say the same to who knows nothing of widths.
			if got := all.explicit().definition(); got != c.want {
				t.Errorf("stored as %v, want %v", got, c.want)
			}
		})
	}
	if f := float64(MaxSafeInteger); f+1 == f || f+1 != f+2 {
		t.Error("MaxSafeInteger is not the last integer before float64 has gaps")
	}
}

func TestTheFirstBrokenRuleIsReported(t *testing.T) {
	for _, c := range []struct {
		rule string
		in   []Clause
	}{
		{"increment_zero", []Clause{IncrementBy(0)}},
		{"increment_zero", []Clause{IncrementBy(0), Int32(), MaxValue(maxInt), MinValue(maxInt), StartWith(minInt)}},
		{"max_out_of_width", []Clause{Int32(), MaxValue(math.MaxInt32 + 1), MinValue(minInt), StartWith(minInt)}},
		{"max_out_of_width", []Clause{Int32(), MaxValue(math.MinInt32 - 1)}},
		{"min_out_of_width", []Clause{Int32(), MinValue(math.MinInt32 - 1), MaxValue(minInt / 2 / 2), MaxValue(5), StartWith(maxInt)}},
		{"min_out_of_width", []Clause{SafeInteger(), IncrementBy(-1), MinValue(minInt)}},
		{"max_out_of_width", []Clause{SafeInteger(), IncrementBy(-1), MaxValue(1 << 53)}},
		{"min_not_below_max", []Clause{MinValue(5), MaxValue(5), StartWith(9)}},
		{"min_not_below_max", []Clause{MinValue(5), MaxValue(4), StartWith(3)}},
		{"min_not_below_max", []Clause{MaxValue(1)}},
		{"min_not_below_max", []Clause{MaxValue(0)}},
		{"min_not_below_max", []Clause{MaxValue(-20)}},
		{"min_not_below_max", []Clause{IncrementBy(-1), MinValue(-1)}},
		{"min_not_below_max", []Clause{IncrementBy(-1), MinValue(20)}},
		{"min_not_below_max", []Clause{MinValue(maxInt)}},
		{"start_below_min", []Clause{StartWith(0)}},
		{"start_below_min", []Clause{StartWith(-10)}},
		{"start_above_max", []Clause{StartWith(11), MaxValue(10)}},
		{"start_above_max", []Clause{IncrementBy(-1), StartWith(0)}},
		{"start_below_min", []Clause{IncrementBy(-1), MinValue(-5), StartWith(-6)}},
		{"", []Clause{MinValue(5), MaxValue(6), StartWith(6)}},
		{"", []Clause{MinValue(5), MaxValue(6), StartWith(5)}},
		{"", []Clause{MinValue(5), MaxValue(6), IncrementBy(maxInt)}},
		{"", []Clause{MinValue(5), MaxValue(6), IncrementBy(minInt)}},
		{"misplaced_clause", []Clause{RestartWith(5)}},
		{"misplaced_clause", []Clause{RestartAtStart()}},
		{"misplaced_clause", []Clause{AllowReuse()}},
	} {
		if got := ruleOf(t, gather(c.in).checkCreate("s")); got != c.rule {
			t.Errorf("%v: %q, want %q", gather(c.in).definition(), got, c.rule)
		}
	}
}

func TestTheOrderOfClausesMakesNoDifference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	kinds := []func(int64) Clause{
		StartWith, IncrementBy, MinValue, MaxValue,
		func(v int64) Clause { return setCycle(v&1 == 0) },
		func(int64) Clause { return Int32() },
	}
	for range 2000 {
		var cs []Clause
		for _, k := range rng.Perm(len(kinds))[:rng.IntN(len(kinds)+1)] {
			cs = append(cs, kinds[k](edgeInt(rng)))
		}
		want, wantErr := gather(cs).definition(), gather(cs).checkCreate("s")
		rng.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
		got, gotErr := gather(cs).definition(), gather(cs).checkCreate("s")
		if got != want || ruleOf(t, gotErr) != ruleOf(t, wantErr) {
			t.Fatalf("%v (%v), in another order %v (%v)", want, wantErr, got, gotErr)
		}
	}
}

// edgeInt returns a number that is likely to be near one where things break.
func edgeInt(rng *rand.Rand) int64 {
	edges := []int64{0, 1, -1, minInt, maxInt, math.MinInt32, math.MaxInt32, 1 << 53, -(1 << 53), 1 << 62, -(1 << 62)}
	switch rng.IntN(3) {
	case 0:
		return edges[rng.IntN(len(edges))] + rng.Int64N(7) - 3 // wraps around on purpose
	case 1:
		return rng.Int64N(41) - 20
	}
	return int64(rng.Uint64())
}

// edgeDefinition returns a valid definition, likely one at an end of int64.
func edgeDefinition(rng *rand.Rand) Definition {
	for {
		d := Definition{Increment: edgeInt(rng), Min: edgeInt(rng), Max: edgeInt(rng), Start: edgeInt(rng), Cycle: rng.IntN(2) == 0}
		if !d.contains(d.Start) {
			d.Start = d.Min
		}
		if d.check("s", clauses{}) == nil {
			return d
		}
	}
}

// bigRoom is room without the limits of any integer type.
func bigRoom(d Definition, last int64) *big.Int {
	gap := new(big.Int).Sub(big.NewInt(d.Max), big.NewInt(last))
	if d.Increment < 0 {
		gap.Sub(big.NewInt(last), big.NewInt(d.Min))
	}
	if gap.Sign() <= 0 {
		return new(big.Int)
	}
	return gap.Quo(gap, new(big.Int).Abs(big.NewInt(d.Increment)))
}

func TestRoomIsExactAtTheEndsOfInt64(t *testing.T) {
	for _, c := range []struct {
		d    Definition
		last int64
		want uint64
	}{
		{Definition{Increment: 1, Min: minInt, Max: maxInt}, minInt, math.MaxUint64},
		{Definition{Increment: -1, Min: minInt, Max: maxInt}, maxInt, math.MaxUint64},
		{Definition{Increment: 1, Min: minInt, Max: maxInt}, maxInt, 0},
		{Definition{Increment: -1, Min: minInt, Max: maxInt}, minInt, 0},
		{Definition{Increment: minInt, Min: minInt, Max: maxInt}, maxInt, 1}, // down to -1
		{Definition{Increment: minInt, Min: minInt, Max: maxInt}, 0, 1},      // -2^63 itself
		{Definition{Increment: minInt, Min: minInt, Max: maxInt}, -1, 0},
		{Definition{Increment: maxInt, Min: minInt, Max: maxInt}, minInt, 2}, // -1 and 2^63-2
		{Definition{Increment: maxInt, Min: minInt, Max: maxInt}, 0, 1},
		{Definition{Increment: maxInt, Min: minInt, Max: maxInt}, 1, 0},
		{Definition{Increment: 3, Min: 1, Max: 10}, 8, 0},
		{Definition{Increment: 3, Min: 1, Max: 10}, 7, 1},
		{Definition{Increment: 3, Min: 1, Max: 10}, 20, 0}, // beyond the end, by hand
		{Definition{Increment: 1, Min: 1, Max: 10}, 0, 10}, // an adopted counter that never counted
	} {
		if got := c.d.room(c.last); got != c.want {
			t.Errorf("%v after %d: %d, want %d", c.d, c.last, got, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		d, last := edgeDefinition(rng), edgeInt(rng)
		want := bigRoom(d, last)
		if got := new(big.Int).SetUint64(d.room(last)); got.Cmp(want) != 0 {
			t.Fatalf("%v after %d: %s, want %s", d, last, got, want)
		}
		if !d.contains(last) {
			if d.roomFrom(last) != 0 {
				t.Fatalf("%v from %d: %d, want 0 out of bounds", d, last, d.roomFrom(last))
			}
			continue
		}
		want.Add(want, big.NewInt(1))
		want = minBig(want, new(big.Int).SetUint64(math.MaxUint64)) // saturates at 2^64
		if got := new(big.Int).SetUint64(d.roomFrom(last)); got.Cmp(want) != 0 {
			t.Fatalf("%v from %d: %s, want %s", d, last, got, want)
		}
		if d.size() < d.roomFrom(d.Start) || d.size() < d.roomFrom(d.first()) {
			t.Fatalf("%v: size %d", d, d.size())
		}
	}
}

func TestTheNthValueNeedsNoWiderIntegers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		d := edgeDefinition(rng)
		first := d.first()
		if rng.IntN(2) == 0 {
			first = d.Start
		}
		n := limitN(rng.Int64N(maxInt)+1, d.roomFrom(first))
		if rng.IntN(2) == 0 {
			n = limitN(rng.Int64N(5)+1, d.roomFrom(first))
		}
		want := new(big.Int).Add(big.NewInt(first), new(big.Int).Mul(big.NewInt(n-1), big.NewInt(d.Increment)))
		if got := d.nth(first, n); !want.IsInt64() || got != want.Int64() || !d.contains(got) {
			t.Fatalf("%v: value %d from %d is %d, want %s", d, n, first, got, want)
		}
	}
}

// The condition of a lease must say for every position what room says.
func TestTheWindowOfALeaseIsWhereItFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 5000 {
		d, last := edgeDefinition(rng), edgeInt(rng)
		if rng.IntN(2) == 0 {
			last = d.Max - int64(rng.Uint64N(8))*d.Increment // wraps around on purpose
		}
		n := rng.Int64N(9) + 1
		lo, hi := d.window(n)
		if len(lo.String()) > 38 || len(hi.String()) > 38 {
			t.Fatalf("%v: %s or %s has more digits than DynamoDB takes", d, lo, hi)
		}
		within := bigOf(last).Cmp(lo) >= 0 && bigOf(last).Cmp(hi) <= 0
		next := d.minus(last, -1)
		end := d.minus(last, -n)
		fits := next.IsInt64() && end.IsInt64() && d.contains(next.Int64()) && d.contains(end.Int64())
		if within != fits {
			t.Fatalf("%v: %d values after %d: window says %t, want %t", d, n, last, within, fits)
		}
		slo, shi := d.spent()
		spent := (slo == nil || bigOf(last).Cmp(slo) >= 0) && (shi == nil || bigOf(last).Cmp(shi) <= 0)
		if spent != (d.room(last) == 0) {
			t.Fatalf("%v after %d: spent says %t, room %d", d, last, spent, d.room(last))
		}
	}
}

func TestAlterKeepsWhatItDoesNotName(t *testing.T) {
	old := Definition{Start: 5, Increment: 2, Min: 1, Max: 99, Cycle: true}
	for _, c := range []struct {
		name string
		in   []Clause
		want Definition
	}{
		{"nothing", nil, old},
		{"a change of sign keeps the bounds", []Clause{IncrementBy(-3)}, Definition{5, -3, 1, 99, true}},
		{"no bounds go to those of the new sign", []Clause{IncrementBy(-3), NoMinValue(), NoMaxValue()}, Definition{5, -3, minInt, -1, true}},
		{"no bounds go to those of the old sign", []Clause{NoMinValue(), NoMaxValue()}, Definition{5, 2, 1, maxInt, true}},
		{"min moves no start", []Clause{MinValue(3)}, Definition{5, 2, 3, 99, true}},
		{"no cycle", []Clause{NoCycle()}, Definition{5, 2, 1, 99, false}},
		{"a width keeps a closer bound", []Clause{Int32()}, old},
		{"a width bounds no max", []Clause{NoMaxValue(), Int32()}, Definition{5, 2, 1, math.MaxInt32, true}},
	} {
		if got := gather(c.in).over(old); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCodeThatSaysOtherwiseThanTheTableIsNamedClauseByClause(t *testing.T) {
	table := Definition{Start: 5, Increment: 2, Min: 1, Max: 99}
	for _, c := range []struct {
		name string
		in   []Clause
		want []string // clauses that differ
	}{
		{"says nothing", nil, nil},
		{"says the same", []Clause{StartWith(5), IncrementBy(2), MinValue(1), MaxValue(99), NoCycle()}, nil},
		{"start", []Clause{StartWith(6)}, []string{"START is 6 in the code and 5 in the table"}},
		{"zero is not unset", []Clause{StartWith(0)}, []string{"START is 0"}},
		{"all", []Clause{StartWith(6), IncrementBy(-2), MinValue(2), MaxValue(98), Cycle()}, []string{"START", "INCREMENT", "MINVALUE", "MAXVALUE", "CYCLE"}},
		{"no max", []Clause{NoMaxValue()}, []string{"MAXVALUE is 9223372036854775807 in the code and 99"}},
		{"no min is the default", []Clause{NoMinValue()}, nil},
		{"a width that holds", []Clause{Int32()}, nil},
	} {
		got := gather(c.in).disagrees(table)
		if (got == "") != (len(c.want) == 0) {
			t.Errorf("%s: %q", c.name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q does not name %q", c.name, got, w)
			}
		}
	}
	wide := Definition{Start: minInt, Increment: 1, Min: minInt, Max: maxInt}
	for _, c := range []struct {
		in    Clause
		table Definition
	}{
		{Int32(), Definition{1, 1, 1, maxInt, false}},
		{SafeInteger(), Definition{1, 1, 1, 1 << 53, false}},
		{Int32(), Definition{-1, -1, minInt, -1, false}},
		{Int32(), Definition{-1 << 40, 1, -1 << 40, 100, false}},
		{Int32(), Definition{1 << 40, -1, -100, 1 << 40, false}},
		{SafeInteger(), wide},
	} {
		if gather([]Clause{c.in}).disagrees(c.table) == "" {
			t.Errorf("code that relies on a width accepts %v", c.table)
		}
	}
}

func TestTwoCallsThatContradictEachOtherAreRefused(t *testing.T) {
	for _, c := range []struct {
		name      string
		one, two  []Clause
		conflicts bool
		want      Definition
	}{
		{"nothing to add", []Clause{MaxValue(9)}, nil, false, Definition{1, 1, 1, 9, false}},
		{"said before", []Clause{MaxValue(9)}, []Clause{MaxValue(9)}, false, Definition{1, 1, 1, 9, false}},
		{"said besides", []Clause{MaxValue(9)}, []Clause{StartWith(3), Cycle()}, false, Definition{3, 1, 1, 9, true}},
		{"start", []Clause{StartWith(1)}, []Clause{StartWith(2)}, true, Definition{}},
		{"zero", []Clause{IncrementBy(1)}, []Clause{IncrementBy(0)}, true, Definition{}},
		{"max", []Clause{MaxValue(9)}, []Clause{MaxValue(8)}, true, Definition{}},
		{"min", []Clause{MinValue(1)}, []Clause{MinValue(0)}, true, Definition{}},
		{"cycle", []Clause{NoCycle()}, []Clause{Cycle()}, true, Definition{}},
		{"max and no max", []Clause{MaxValue(9)}, []Clause{NoMaxValue()}, true, Definition{}},
		{"no max and max", []Clause{NoMaxValue()}, []Clause{MaxValue(9)}, true, Definition{}},
		{"width", []Clause{Int32()}, []Clause{SafeInteger()}, true, Definition{}},
		{"one width twice", []Clause{Int32()}, []Clause{Int32()}, false, Definition{1, 1, 1, math.MaxInt32, false}},
	} {
		got, conflict := gather(c.one).merge(gather(c.two))
		if (conflict != "") != c.conflicts {
			t.Errorf("%s: %q", c.name, conflict)
		} else if !c.conflicts && got.definition() != c.want {
			t.Errorf("%s: %v, want %v", c.name, got.definition(), c.want)
		}
	}
	a := newTest(t, Memory())
	if _, err := a.Sequence("s", MaxValue(9)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Sequence("s", MaxValue(10)); !errors.Is(err, ErrDefinitionMismatch) || !strings.Contains(err.Error(), "MAXVALUE is 9 in one call and 10 in another") {
		t.Error(err)
	}
	if _, err := a.Sequence("s", MinValue(9)); ruleOf(t, err) != "min_not_below_max" {
		t.Error("valid apart, invalid together:", err)
	}
}

func TestADefinitionReadsAsSQL(t *testing.T) {
	d := gather([]Clause{IncrementBy(-2), MinValue(-9), Cycle()}).definition()
	if got, want := d.String(), "START -1 INCREMENT -2 MINVALUE -9 MAXVALUE -1 CYCLE"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
