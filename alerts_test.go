package ddbseq

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// atItem returns an item of that definition, with its counter at last.
func atItem(d Definition, last int64) *item {
	return &item{key: "s", def: new(d.all()), ver: "v", lastID: &last, day: "2026-11-30"}
}

func TestAlertsFireAndDoNot(t *testing.T) {
	big := Definition{1, 1, 1, math.MaxInt64, false}
	whole := Definition{math.MinInt64, 1, math.MinInt64, math.MaxInt64, false}
	int32s := Definition{1, 1, 1, math.MaxInt32, false}
	down := Definition{-1, -1, math.MinInt64, -1, false}
	use := func(it *item, used int64, days ...int64) *item { it.used, it.days = used, days; return it }
	ledger := func(it *item, leased, issued, returned int64) *item {
		it.totals = totals{leased, issued, returned}
		return it
	}
	adopted := func(it *item) *item { it.ver = ""; return it }
	const m = 1_000_000
	for _, c := range []struct {
		name string
		kind AlertKind
		x    signals
		want bool
	}{
		{"nothing seen", AlertBurnRate, signals{}, false},
		{"quiet counter, ten times as much", AlertBurnRate, signals{it: use(atItem(big, 9), 2000, 200, 200, 200)}, false},
		{"quiet counter, deploy of a fleet of 5,000", AlertBurnRate, signals{it: use(atItem(big, 9), 500_000, 200, 200, 200)}, false},
		{"busy counter, deploy of the fleet: 90 s of traffic more", AlertBurnRate, signals{it: use(atItem(big, 9), 101*m, 100*m, 100*m, 100*m)}, false},
		{"nightly batch, at one in the morning", AlertBurnRate, signals{it: use(atItem(big, 9), 10*m, 10*m, 10*m, 10*m)}, false},
		{"twice as much since yesterday noon", AlertBurnRate, signals{it: use(atItem(big, 9), 20*m, 15*m, 10*m, 10*m, 10*m)}, true},
		{"twice as much for three days", AlertBurnRate, signals{it: use(atItem(big, 9), 20*m, 20*m, 20*m, 10*m, 10*m)}, false},
		{"weekly batch", AlertBurnRate, signals{it: use(atItem(big, 9), 70*m, m, m, m, m, m, m, 70*m)}, false},
		{"first day", AlertBurnRate, signals{it: use(atItem(big, 9), 500*m)}, false},
		{"second day, the first was short", AlertBurnRate, signals{it: use(atItem(big, 9), 500*m, m)}, false},
		{"one full day", AlertBurnRate, signals{it: use(atItem(big, 9), 500*m, 10*m, m)}, false},
		{"span of 2^64", AlertBurnRate, signals{it: use(atItem(whole, 9), 100*m, 99*m, 99*m, 99*m)}, false},
		{"span of 2^64, run away", AlertBurnRate, signals{it: use(atItem(whole, 9), 200*m, 99*m, 99*m, 99*m)}, true},
		{"a single large Advance", AlertBurnRate, signals{it: use(atItem(big, math.MaxInt64/2), 10*m, 10*m, 10*m, 10*m)}, false},
		{"crash loop", AlertBurnRate, signals{it: use(atItem(big, 9), 20*m, 10*m, 10*m, 10*m)}, true},
		{"1.49 times usual", AlertBurnRate, signals{it: use(atItem(big, 9), 149*m, 100*m, 100*m, 100*m)}, false},
		{"idle for a week, then a million", AlertBurnRate, signals{it: use(atItem(big, 9), m, 0, 0, 0, 0, 0, 0, 0)}, true},
		{"idle", AlertBurnRate, signals{it: use(atItem(big, 9), 0, 0, 0, 0)}, false},
		{"small sequence", AlertBurnRate, signals{it: use(atItem(Definition{1, 1, 1, 100_000, false}, 9), 2500, 1000, 1000, 1000)}, true},

		{"quiet int32", AlertExhaustion, signals{it: use(atItem(int32s, 1000), 100, 100)}, false},
		{"int32 in 91 days", AlertExhaustion, signals{it: use(atItem(int32s, math.MaxInt32-910*m), 10*m, 10*m)}, false},
		{"int32 in 89 days", AlertExhaustion, signals{it: use(atItem(int32s, math.MaxInt32-890*m), 10*m, 10*m)}, true},
		{"95 % used, 3 years left", AlertExhaustion, signals{it: use(atItem(int32s, math.MaxInt32/100*95), 97_000, 97_000)}, false},
		{"95 % used, 2 years left", AlertExhaustion, signals{it: use(atItem(int32s, math.MaxInt32/100*95), 145_000, 145_000)}, true},
		{"used up", AlertExhaustion, signals{it: use(atItem(int32s, math.MaxInt32), 1)}, true},
		{"advanced to the end", AlertExhaustion, signals{it: atItem(int32s, math.MaxInt32)}, true},
		{"used up with CYCLE", AlertExhaustion, signals{it: use(atItem(Definition{1, 1, 1, 100, true}, 100), 1000, 1000)}, false},
		{"min != 1, hardly used (case 128)", AlertExhaustion, signals{it: use(atItem(Definition{111110000000000001, 1, 111110000000000001, 111119999999999999, false}, 111110000000000123), 123)}, false},
		{"span of 2^64, one day", AlertExhaustion, signals{it: use(atItem(whole, math.MinInt64+100), 100)}, false},
		{"span of 2^64, half", AlertExhaustion, signals{it: use(atItem(whole, 0), 100*m, 100*m)}, false},
		{"span of 2^64, the end is near", AlertExhaustion, signals{it: use(atItem(whole, math.MaxInt64-100*m), 100*m, 100*m)}, true},
		{"descending, begun", AlertExhaustion, signals{it: use(atItem(down, -100), 100)}, false},
		{"descending, the end is near", AlertExhaustion, signals{it: use(atItem(down, math.MinInt64+m), m)}, true},
		{"a single large Advance", AlertExhaustion, signals{it: use(atItem(big, math.MaxInt64/2), m, m)}, false},
		{"wide stride", AlertExhaustion, signals{it: use(atItem(Definition{1, 1 << 40, 1, math.MaxInt64, false}, 1), m, m)}, true},
		{"no day is known", AlertExhaustion, signals{it: atItem(int32s, math.MaxInt32/2)}, false},
		{"nightly batch", AlertExhaustion, signals{it: use(atItem(int32s, m), 10*m, 10*m)}, false},
		{"adopted, half used", AlertExhaustion, signals{it: adopted(atItem(int32s, math.MaxInt32/2))}, false},
		{"adopted, 91 % used", AlertExhaustion, signals{it: adopted(atItem(int32s, math.MaxInt32/100*91))}, true},

		{"first day: all in memory", AlertWaste, signals{it: ledger(atItem(big, 9), 500*m, 0, 0)}, false},
		{"quiet counter", AlertWaste, signals{it: ledger(use(atItem(big, 9), 0, 5), 500_000, 10_000, 0)}, false},
		{"crash loop", AlertWaste, signals{it: ledger(use(atItem(big, 9), 0, 5), 3*m, m, 0)}, true},
		{"much is given back", AlertWaste, signals{it: ledger(use(atItem(big, 9), 0, 5), 300*m, 100*m, 190*m)}, false},
		{"totals beyond int64", AlertWaste, signals{it: ledger(use(atItem(big, 9), 0, 5), math.MaxInt64, math.MaxInt64, math.MaxInt64)}, false},

		{"a throttle", AlertThrottled, signals{throttled: 1.0 / throttleOf}, false},
		{"half", AlertThrottled, signals{throttled: 0.5}, true},

		{"short of memory for a moment", AlertRunway, signals{low: 9 * time.Second, runway: 10 * time.Second}, false},
		{"for a quarter of Runway", AlertRunway, signals{low: 15 * time.Second, runway: time.Minute}, true},
		{"a minute of an hour", AlertRunway, signals{low: time.Minute, runway: time.Hour}, false},
		{"no Runway wanted", AlertRunway, signals{low: time.Hour}, false},

		{"moved back", AlertMovedBack, signals{movedBack: errBoom}, true},
		{"not moved back", AlertMovedBack, signals{}, false},
		{"bad tuning", AlertBadTuning, signals{badTune: "MinBlock is 0"}, true},
		{"good tuning", AlertBadTuning, signals{}, false},
	} {
		c.x.warning = 90 * day
		if got := c.x.judge(0).Has(c.kind); got != c.want {
			level, text := c.x.level(c.kind)
			t.Errorf("%v: %s: fires %t at level %v (%s)", c.kind, c.name, got, level, text)
		}
	}
}

func TestAlertExhaustionCanBeSwitchedOff(t *testing.T) {
	adopted := atItem(Definition{1, 1, 1, 100, false}, 95)
	adopted.ver = ""
	for _, it := range []*item{adopted, atItem(Definition{1, 1, 1, 100, false}, 100)} {
		x := signals{it: it, warning: 90 * day}
		if !x.judge(0).Has(AlertExhaustion) {
			t.Errorf("%+v: silent", it)
		}
		if x.warning = 0; x.judge(1 << AlertExhaustion).Has(AlertExhaustion) {
			t.Errorf("%+v: fires with a warning of 0", it)
		}
	}
}

func TestAnAlertEndsWellBelowWhereItBegan(t *testing.T) {
	for _, c := range []struct {
		throttled    float64
		before, want bool
	}{
		{0.49, false, false}, {0.5, false, true}, {0.49, true, true}, {0.41, true, true}, {0.39, true, false}, {0.41, false, false},
	} {
		var before AlertSet
		if c.before {
			before = 1 << AlertThrottled
		}
		if got := (signals{throttled: c.throttled}).judge(before).Has(AlertThrottled); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
	// A signal that trembles around the threshold is one episode.
	rng := rand.New(rand.NewPCG(1, 2))
	var now AlertSet
	changes := 0
	for range 1000 {
		next := signals{throttled: 0.45 + rng.Float64()/10}.judge(now)
		if next != now {
			changes++
		}
		now = next
	}
	if changes != 1 {
		t.Errorf("%d changes", changes)
	}
}

func TestShareIsExactInAnySpan(t *testing.T) {
	for _, c := range []struct {
		d    Definition
		last int64
		want float64
	}{
		{Definition{1, 1, 1, 100, false}, 50, 0.5},
		{Definition{1, 1, 1, 100, false}, 100, 1},
		{Definition{-1, -1, -100, -1, false}, -25, 0.25},
		{Definition{math.MinInt64, 1, math.MinInt64, math.MaxInt64, false}, -1, 0.5},
		{Definition{math.MaxInt64, -1, math.MinInt64, math.MaxInt64, false}, math.MinInt64, 1},
		{Definition{1, 10, 1, 100, false}, 41, 0.5},
		{Definition{111110000000000001, 1, 111110000000000001, 111119999999999999, false}, 111110000000000123, 123.0 / 9999999999999},
	} {
		if got := atItem(c.d, c.last).share(); math.Abs(got-c.want) > 1e-15*max(1, c.want) || got == 0 {
			t.Errorf("%v at %d: %v, want %v", c.d, c.last, got, c.want)
		}
	}
	if got := (&item{def: new(Definition{1, 1, 1, 100, false}.all())}).share(); got != 0 {
		t.Errorf("nothing leased: %v", got)
	}
}

func TestAlertsHaveNamesAndText(t *testing.T) {
	var all AlertSet
	for k := range alertKinds {
		all |= 1 << k
		if k.String() == "" || strings.HasPrefix(k.String(), "AlertKind") {
			t.Errorf("%d has no name", k)
		}
	}
	if len(all.Kinds()) != int(alertKinds) || AlertKind(99).String() != "AlertKind(99)" {
		t.Error(all.Kinds())
	}
	for level, want := range map[float64]float64{math.Inf(1): 1e9, 0.5: 0.5} {
		if finite(level) != want {
			t.Error(level)
		}
	}
	if finite(math.NaN()) != 0 {
		t.Error("NaN")
	}
	if _, text := (signals{movedBack: errors.New("why")}).level(AlertMovedBack); text != "why" {
		t.Error(text)
	}
}
