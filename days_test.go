package ddbseq

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// clockStore is a store whose clock a test sets.
type clockStore struct {
	backend
	ahead atomic.Int64
}

func (c *clockStore) clock() time.Time         { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clockStore) advance(by time.Duration) { c.ahead.Add(int64(by)) }
func withClock(s *Store) (*Store, *clockStore) {
	c := &clockStore{backend: s.backend}
	return &Store{backend: c}, c
}

func TestDaysAreCountedAndKeptForAWeek(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			store, clock := withClock(st.open(t))
			a, b := newTest(t, store, fixed(10), patient), newTest(t, store, fixed(1000), patient)
			if err := a.Create(ctx, "s"); err != nil {
				t.Fatal(err)
			}
			// The first lease of a day is followed by the write that begins it, which
			// nobody waits for.
			begin := func() {
				t.Helper()
				was := must(a.Describe(ctx, "s")).Day
				must(sequenceOf(t, a, "s").Reserve(ctx, 10))
				for deadline := time.Now().Add(10 * time.Second); must(a.Describe(ctx, "s")).Day == was; {
					if time.Now().After(deadline) {
						t.Fatal("no new day began")
					}
				}
			}
			for day := range 9 {
				begin()
				for range day {
					must(sequenceOf(t, a, "s").Reserve(ctx, 10))
				}
				must(sequenceOf(t, b, "s").Reserve(ctx, 1000))
				d := must(a.Describe(ctx, "s"))
				if want := int64(1000 + 10*(1+day)); d.Used != want {
					t.Errorf("day %d: %d used, want %d", day, d.Used, want)
				}
				for _, x := range []*Allocator{a, b} {
					// Who is served goes on before the refill has looked at the clock.
					s := sequenceOf(t, x, "s")
					s.mu.Lock()
					s.stock()
					s.mu.Unlock()
				}
				clock.advance(24 * time.Hour)
			}
			begin()
			d := must(a.Describe(ctx, "s"))
			if want := [7]int64{1090, 1080, 1070, 1060, 1050, 1040, 1030}; d.Days != want || d.Used != 10 {
				t.Errorf("days %v, used %d, want %v and 10", d.Days, d.Used, want)
			}
			clock.advance(72 * time.Hour)
			begin()
			if d = must(a.Describe(ctx, "s")); d.Days != [7]int64{0, 0, 10, 1090, 1080, 1070, 1060} {
				t.Errorf("after two days without a lease: %v", d.Days)
			}
			clock.advance(720 * time.Hour)
			begin()
			if d = must(a.Describe(ctx, "s")); d.Days != [7]int64{} || d.LastID != 9*1000+450+30 {
				t.Errorf("after a month: %v, last ID %d", d.Days, d.LastID)
			}
		})
	}
}

// Without a limit no lease depends on the day: neither midnight nor a fleet that
// starts costs a refused write.
func TestANewDayRefusesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var began, refused, leases int
		mem := Memory()
		tapped := &tap{backend: mem.backend}
		var mu sync.Mutex
		tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
			it, err := do()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ch.limit.roll:
				began++
			case err != nil:
				refused++
			default:
				leases++
			}
			return it, err
		})
		if err := newTest(t, mem).Create(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		const n = 20
		var seqs []*Sequence
		for range n {
			seqs = append(seqs, sequenceOf(t, newTest(t, &Store{backend: tapped}, fixed(10), patient), "s"))
		}
		for range 3 {
			for range 5 {
				var wg sync.WaitGroup
				for _, s := range seqs {
					wg.Go(func() { must(s.Reserve(ctx, 10)) })
				}
				wg.Wait()
				time.Sleep(time.Minute)
			}
			time.Sleep(24 * time.Hour)
		}
		// Leases between midnight and that write count for the day before.
		const daily, late = 5 * n * 10, n * 10
		d := must(newTest(t, mem).Describe(ctx, "s"))
		if leases != 3*5*n || refused != 0 || began < 2 || began > 2*n || d.Used+d.Days[0]+d.Days[1] != 3*daily ||
			d.Used < daily-late || d.Days[0] < daily-late || d.Days[1] < daily {
			t.Errorf("%d leases, %d refused, %d writes that begin a day; %+v", leases, refused, began, d)
		}
	})
}

func TestDaysOfAnItemAreReadLeniently(t *testing.T) {
	num := func(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }
	list := func(v ...types.AttributeValue) types.AttributeValue { return &types.AttributeValueMemberL{Value: v} }
	for i, c := range []struct {
		v    types.AttributeValue
		want []int64
	}{
		{nil, nil}, {num("3"), nil}, {list(), nil}, {list(num("1"), num("2")), []int64{1, 2}},
		{list(num("1.5")), nil}, {list(num("1"), list()), nil},
		{list(slices.Repeat([]types.AttributeValue{num("1")}, 9)...), []int64{1, 1, 1, 1, 1, 1, 1}},
	} {
		p := &parser{names: map[string]string{attrDays: "x"}, attrs: map[string]types.AttributeValue{}}
		if c.v != nil {
			p.attrs["x"] = c.v
		}
		if got := p.days(); !slices.Equal(got, c.want) || p.err != nil {
			t.Errorf("%d: %v, %v", i, got, p.err)
		}
	}
	for n, want := range map[int64]int64{0: 0, 999_999: 999_999, 1_234_567: 1_234_560, math.MaxInt64: 9_223_370_000_000_000_000, -7: -7} {
		if got := sixDigits(n); got != want {
			t.Errorf("%d is %d, want %d", n, got, want)
		}
	}
}

// size is what DynamoDB counts for an attribute's value.
func size(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberN:
		digits := strings.Trim(strings.TrimPrefix(v.Value, "-"), "0")
		n := (len(digits)+1)/2 + 1
		if strings.HasPrefix(v.Value, "-") {
			n++
		}
		return n + 1 // an odd exponent
	case *types.AttributeValueMemberBOOL:
		return 1
	case *types.AttributeValueMemberL:
		n := 3
		for _, e := range v.Value {
			n += 1 + size(e)
		}
		return n
	case *types.AttributeValueMemberM:
		n := 3
		for name, e := range v.Value {
			n += 1 + len(name) + size(e)
		}
		return n
	}
	panic(fmt.Sprintf("%T", v))
}

// TestTheLargestItemFitsIntoAKilobyte is TestTheItemStaysBelowAKilobyte for
// numbers that take long to reach.
func TestTheLargestItemFitsIntoAKilobyte(t *testing.T) {
	low, high, zone, yes := int64(math.MinInt64+1), int64(math.MaxInt64), strings.Repeat("z", maxZone), true
	long := time.Duration(math.MaxInt64)
	value := map[string]types.AttributeValue{
		attrKey:  &types.AttributeValueMemberS{Value: strings.Repeat("k", maxName)},
		attrDay:  &types.AttributeValueMemberS{Value: dayFormat},
		attrDef:  defValue(clauses{start: &low, increment: &low, min: &low, max: &high, cycle: &yes, daily: &high, zone: &zone}),
		attrTune: tuneValue(Tuning{Runway: &long, LeaseEvery: &long, MinBlock: &high, MaxBlock: &high, FirstBlock: &high, Paused: &yes}),
		attrDays: daysValue(slices.Repeat([]int64{sixDigits(math.MaxInt64)}, keptDays)),
		attrV:    &types.AttributeValueMemberN{Value: "1"},
	}
	for _, a := range []string{attrTok, attrBorn, attrVer} {
		value[a] = &types.AttributeValueMemberS{Value: randomID()}
	}
	for _, a := range []string{attrLast, attrAt, attrN, attrEpoch, attrUsed, attrLeased, attrIssued, attrReturned} { // from is there while lastID is not
		value[a] = &types.AttributeValueMemberN{Value: fmt.Sprint(low)}
	}
	total := maxAttributeNames
	for _, v := range value {
		total += size(v)
	}
	t.Logf("%d bytes", total)
	if total > 1024 {
		t.Errorf("the largest item has %d bytes", total)
	}
}
