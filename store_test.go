package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// opened are the stores that tests share, by kind: a new table takes a second.
var opened sync.Map

// onEvery runs a test on every store, with a key that no other test uses.
func onEvery(t *testing.T, test func(t *testing.T, b backend, key string)) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			b, ok := opened.Load(st.name)
			if !ok {
				b, _ = opened.LoadOrStore(st.name, st.open(t).backend)
			}
			test(t, b.(backend), fmt.Sprintf("%s.%d", strings.SplitN(t.Name(), "/", 2)[0], tables.Add(1)))
		})
	}
}

// plant puts an item into a store, whatever it holds.
func plant(t testing.TB, b backend, it item) {
	t.Helper()
	switch b := b.(type) {
	case *memory:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.items[it.key] = it
	case *dynamo:
		attrs := map[string]types.AttributeValue{}
		number := func(attr string, v *int64) {
			if v != nil {
				attrs[attr] = &types.AttributeValueMemberN{Value: fmt.Sprint(*v)}
			}
		}
		text := func(attr, v string) {
			if v != "" {
				attrs[attr] = &types.AttributeValueMemberS{Value: v}
			}
		}
		number(attrLast, it.lastID)
		number(attrAt, it.at)
		number(attrFrom, it.from)
		number(attrN, positive(it.n))
		number(attrEpoch, positive(it.epoch))
		number(attrV, positive(it.v))
		text(attrTok, it.tok)
		text(attrBorn, it.born)
		text(attrVer, it.ver)
		if it.def != nil {
			attrs[attrDef] = defValue(*it.def)
		}
		if it.paused {
			attrs[attrTune] = tuneValue(it.tune.get())
		}
		plantRaw(t, b, it.key, attrs)
	default:
		t.Fatalf("%T", b)
	}
}

func positive(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

// plantRaw puts an item into a table as it stands.
func plantRaw(t testing.TB, d *dynamo, key string, attrs map[string]types.AttributeValue) {
	t.Helper()
	attrs[d.attrs[attrKey]] = &types.AttributeValueMemberS{Value: key}
	_, err := d.client.(*dynamodb.Client).PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &d.name, Item: attrs})
	if err != nil {
		t.Fatal(err)
	}
}

// createOf makes a sequence.
func createOf(key string, cs ...Clause) *change {
	def := gather(cs).explicit()
	return &change{key: key, token: randomID(), base: &item{key: key, def: &def}, create: true, def: &def, ver: randomID(), born: randomID()}
}

// leaseOf leases n IDs from it.
func leaseOf(it *item, n int64) *change {
	d := it.definition()
	ch := &change{
		key: it.key, token: randomID(), base: it, born: randomID(), n: n, move: d.delta(n),
		fence: true, running: true, present: true, absent: it.lastID == nil,
	}
	ch.lo, ch.hi = d.window(n)
	return ch
}

// wrapOf starts a new lap of a CYCLE sequence.
func wrapOf(it *item, n int64) *change {
	d := it.definition()
	ch := leaseOf(it, n)
	ch.move, ch.set = nil, new(d.nth(d.first(), n))
	ch.lo, ch.hi = d.spent()
	return ch
}

// giveBackOf moves lastID back to low if it is the newest lease.
func giveBackOf(it *item, low int64) *change {
	return &change{
		key: it.key, token: randomID(), base: it, holds: it.tok, set: &low,
		present: true, lo: bigOf(*it.lastID), hi: bigOf(*it.lastID),
	}
}

func apply(t testing.TB, b backend, ch *change) *item {
	t.Helper()
	it, err := b.apply(t.Context(), ch)
	if err != nil {
		t.Fatalf("refused: %v (%v)", err, verdictOf(ch, err))
	}
	return it
}

// verdictOf judges the old item of a refused change.
func verdictOf(ch *change, err error) verdict {
	if ce, ok := errors.AsType[*conditionError](err); ok {
		return ch.judge(ce.old)
	}
	if errors.Is(err, ErrLayout) {
		return verdictLayout
	}
	return verdictOK
}

func numbers(it *item) string {
	return fmt.Sprintf("last %s at %s from %s n %d epoch %d", text(it.lastID), text(it.at), text(it.from), it.n, it.epoch)
}

func TestEveryChangeDoesTheSameOnEveryStore(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, k string) {
		if it, err := b.get(t.Context(), k); it != nil || err != nil {
			t.Fatalf("a sequence that was never made: %+v, %v", it, err)
		}
		it := apply(t, b, createOf(k, MaxValue(20), Cycle()))
		check := func(what, want string) {
			t.Helper()
			if got := numbers(it); got != want {
				t.Fatalf("%s: %s, want %s", what, got, want)
			}
			read, err := b.get(t.Context(), k)
			if err != nil || !reflect.DeepEqual(read, it) {
				t.Fatalf("%s: the answer was %+v, a read says %+v, %v", what, it, read, err)
			}
		}
		check("create", "last absent at absent from absent n 0 epoch 0")
		born := it.born
		it = apply(t, b, leaseOf(it, 5))
		check("first lease", "last 5 at 5 from absent n 5 epoch 0")
		held := it
		it = apply(t, b, leaseOf(it, 14))
		check("lease", "last 19 at 19 from absent n 14 epoch 0")
		it = apply(t, b, giveBackOf(it, 10))
		check("give-back", "last 10 at 10 from absent n 0 epoch 0")
		if _, err := b.apply(t.Context(), giveBackOf(held, 2)); verdictOf(giveBackOf(held, 2), err) != verdictRoom {
			t.Fatalf("a give-back of a lease that is not the newest: %v", err)
		}
		it = apply(t, b, leaseOf(it, 10))
		it = apply(t, b, wrapOf(it, 3))
		check("wrap", "last 3 at 3 from absent n 3 epoch 0")
		it = apply(t, b, &change{key: k, token: randomID(), base: it, clear: new(int64(7)), epoch: 1, present: true, absent: true})
		check("restart", "last absent at absent from 7 n 0 epoch 1")
		it = apply(t, b, leaseOf(it, 2))
		check("first lease after a restart", "last 8 at 8 from absent n 2 epoch 1")
		it = apply(t, b, &change{key: k, token: randomID(), base: it, set: new(int64(15)), epoch: 2, present: true})
		check("restart after", "last 15 at 15 from absent n 0 epoch 2")
		down := gather([]Clause{IncrementBy(-1), MinValue(1), MaxValue(20)}).explicit()
		it = apply(t, b, &change{key: k, token: randomID(), base: it, def: &down, ver: randomID(), follow: true, present: true})
		check("turn round", "last 15 at 15 from absent n 0 epoch 2")
		it = apply(t, b, leaseOf(it, 5))
		check("lease downwards", "last 10 at 10 from absent n 5 epoch 2")
		if it.born != born {
			t.Errorf("born changed from %s to %s", born, it.born)
		}

		it = apply(t, b, createOf(k+"p"))
		def := gather([]Clause{StartWith(5)}).explicit()
		it = apply(t, b, &change{key: k + "p", token: randomID(), base: it, def: &def, ver: randomID(), absent: true, pin: new(int64(1))})
		if got := numbers(it); got != "last absent at absent from 1 n 0 epoch 0" {
			t.Errorf("pin: %s", got)
		}
	})
}

func TestVerdictsAreJudgedInOrder(t *testing.T) {
	// Each breaks one part of the condition; of two broken parts the first counts.
	type breach struct {
		v     verdict
		apply func(it *item, ch *change)
	}
	breaches := []breach{
		{verdictLayout, func(it *item, _ *change) { it.v = layoutVersion + 1 }},
		{verdictOwn, func(it *item, ch *change) { it.tok = ch.token }},
		{verdictBorn, func(it *item, _ *change) { it.born = "another" }},
		{verdictEpoch, func(it *item, _ *change) { it.epoch = 9 }},
		{verdictVer, func(it *item, _ *change) { it.ver = "another" }},
		{verdictBehind, func(it *item, _ *change) { it.at = new(*it.lastID + 1) }},
		{verdictPaused, func(it *item, _ *change) { it.paused, it.tune = true, &tuning{Tuning: Tuning{Paused: new(true)}} }},
		{verdictRoom, func(it *item, ch *change) { ch.hi = bigOf(*it.lastID - 1) }},
		{verdictToken, func(_ *item, ch *change) { ch.holds = "the token of another lease" }},
	}
	onEvery(t, func(t *testing.T, b backend, k string) {
		n := 0
		for i, first := range breaches {
			for j := len(breaches) - 1; j >= i; j-- {
				n++
				it := item{
					key: fmt.Sprint(k, n), lastID: new(int64(10)), at: new(int64(10)), n: 5, tok: "t", born: "b", epoch: 1, ver: "v",
					v: layoutVersion, def: &clauses{max: new(int64(100))},
				}
				base := it
				ch := leaseOf(&base, 5)
				breaches[j].apply(&it, ch)
				if i != j {
					first.apply(&it, ch)
				}
				plant(t, b, it)
				_, err := b.apply(t.Context(), ch)
				if got := verdictOf(ch, err); got != first.v {
					t.Errorf("breaches %d and %d: verdict %d, %v", first.v, breaches[j].v, got, err)
				}
				if ce, ok := errors.AsType[*conditionError](err); ok && !reflect.DeepEqual(ce.old, &it) {
					t.Errorf("breaches %d and %d: the old item is %+v, want %+v", first.v, breaches[j].v, ce.old, it)
				}
				if it.v > layoutVersion {
					continue
				}
				if now, err := b.get(t.Context(), it.key); err != nil || !reflect.DeepEqual(now, &it) {
					t.Errorf("breaches %d and %d: a refused change left %+v, %v", first.v, breaches[j].v, now, err)
				}
			}
		}
		gone := item{key: k + "gone"}
		ch := leaseOf(&gone, 1)
		_, err := b.apply(t.Context(), ch)
		if ce, ok := errors.AsType[*conditionError](err); !ok || ce.old != nil || ch.judge(nil) != verdictMissing {
			t.Errorf("of a missing item: %v", err)
		}
		apply(t, b, createOf(k+"there"))
		again := createOf(k + "there")
		if _, err := b.apply(t.Context(), again); verdictOf(again, err) != verdictExists {
			t.Errorf("of an item that exists: %v", err)
		}
	})
}

func TestARepeatedChangeIsRecognized(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, k string) {
		it := new(item)
		for i, next := range []func() *change{
			func() *change { return createOf(k, Cycle(), MaxValue(10)) },
			func() *change { return leaseOf(it, 10) },
			func() *change { return wrapOf(it, 4) },
			func() *change { return giveBackOf(it, 2) },
			func() *change {
				return &change{key: k, token: randomID(), base: it, clear: new(int64(3)), epoch: 1, present: true}
			},
			func() *change {
				def := clauses{max: new(int64(99))}
				return &change{key: k, token: randomID(), base: it, def: &def, ver: randomID(), absent: true}
			},
		} {
			ch := next()
			it = apply(t, b, ch)
			for range 2 {
				_, err := b.apply(t.Context(), ch)
				ce, ok := errors.AsType[*conditionError](err)
				if !ok || ce.old == nil || !ch.own(ce.old) || ch.judge(ce.old) != verdictOwn {
					t.Fatalf("change %d: the second time: %v", i, err)
				}
				if !reflect.DeepEqual(ce.old, it) {
					t.Fatalf("change %d: the old item is %+v, want %+v", i, ce.old, it)
				}
			}
		}
	})
}

// A writer that sets no token, such as the published one-line generator, moves
// lastID between a lease whose reply is lost and its retry.
func TestALostReplyIsRecoveredBehindAForeignWriter(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, k string) {
		ran := false
		store, _ := withFaults(&Store{backend: b}, func(op, _ string, call int) fault {
			if op == "UpdateItem" && !ran {
				ran = true
				return fault{after: true, err: lost()}
			}
			if op == "UpdateItem" && call == 3 { // the retry
				it := must(b.get(t.Context(), k))
				it.lastID = new(*it.lastID + 1000)
				plant(t, b, *it)
			}
			return fault{}
		})
		apply(t, b, createOf(k))
		a := newTest(t, store, fixed(10), func(o *Options) { o.rand = func() float64 { return 0 } })
		var ids []int64
		for range 11 {
			ids = append(ids, must(a.Next(t.Context(), k)))
		}
		if ids[0] != 1 || ids[9] != 10 || ids[10] != 1011 {
			t.Errorf("got %d, want 1 to 10 and then 1011", ids)
		}
		if st := a.Stats(); st.Recovered != 1 {
			t.Errorf("statistics: %+v", st)
		}
	})
}

func TestBothEndsOfInt64AreExact(t *testing.T) {
	const lo, hi = math.MinInt64, math.MaxInt64
	cases := []struct {
		name string
		cs   []Clause
		last *int64 // planted before, if any
		want []int64
		end  bool
	}{
		{"up from the lower end", []Clause{MinValue(lo), StartWith(lo)}, nil, []int64{lo, lo + 1, lo + 2}, false},
		{"down from the upper end", []Clause{IncrementBy(-1), MaxValue(hi), StartWith(hi)}, nil, []int64{hi, hi - 1, hi - 2}, false},
		{"up to the upper end", nil, new(int64(hi - 2)), []int64{hi - 1, hi}, true},
		{"down to the lower end", []Clause{IncrementBy(-1)}, new(int64(lo + 2)), []int64{lo + 1, lo}, true},
		{"beyond 2^53", nil, new(int64(1<<53 + 1)), []int64{1<<53 + 2, 1<<53 + 3, 1<<53 + 4}, false},
		{"from end to end in one step", []Clause{MinValue(lo), StartWith(lo), IncrementBy(hi)}, nil, []int64{lo, -1, hi - 1}, true},
		{"in steps of -2^63", []Clause{IncrementBy(lo), MaxValue(hi), StartWith(hi)}, nil, []int64{hi, -1}, true},
		{"over the upper end", []Clause{Cycle()}, new(int64(hi - 1)), []int64{hi, 1, 2}, false},
		{"over the lower end", []Clause{Cycle(), IncrementBy(-1)}, new(int64(lo + 1)), []int64{lo, -1, -2}, false},
	}
	onEvery(t, func(t *testing.T, b backend, k string) {
		for _, c := range cases {
			for _, block := range []int64{1, 2, 1000} {
				key := fmt.Sprint(k, c.name, block)
				it := apply(t, b, createOf(key, c.cs...))
				if c.last != nil {
					it.lastID, it.at = c.last, c.last
					plant(t, b, *it)
				}
				a := newTest(t, &Store{backend: b}, fixed(block), patient)
				for i, want := range c.want {
					if id, err := a.Next(t.Context(), key); id != want || err != nil {
						t.Fatalf("%s, block of %d, ID %d: got %d, %v, want %d", c.name, block, i, id, err, want)
					}
				}
				if id, err := a.Next(t.Context(), key); c.end && !errors.Is(err, ErrExhausted) {
					t.Fatalf("%s, block of %d: at the end: %d, %v", c.name, block, id, err)
				}
			}
		}
	})
}

func TestWritersOnOneItemGetDistinctBlocks(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, k string) {
		apply(t, b, createOf(k))
		const writers, calls = 8, 24
		ids := make([][]int64, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				a := must(New(&Store{backend: b}, fixed(3)))
				for range calls {
					id, err := a.Next(t.Context(), k)
					if err != nil {
						t.Error(err)
						break
					}
					if n := len(ids[w]); n > 0 && id <= ids[w][n-1] {
						t.Errorf("writer %d got %d after %d", w, id, ids[w][n-1])
					}
					ids[w] = append(ids[w], id)
				}
				if err := a.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		allFromTo(t, 1, writers*calls, ids...)
	})
}

func TestNamesOfAnyUTF8AreDistinctSequences(t *testing.T) {
	names := []string{
		"订单.id", "a@b", "a#b", "a/b", "a b", "a'b", `a"b`, "a:b", "#a", ":a", "🙂", "\x00", "a\n", "A", "a", " ", "é", "e\u0301",
		strings.Repeat("x", 255), strings.Repeat("x", 254) + "y", strings.Repeat("é", 127),
	}
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			a := newTest(t, st.open(t), fixed(2), createMissing)
			for round := range int64(3) {
				for _, name := range names {
					if id, err := a.Next(t.Context(), name); id != round+1 || err != nil {
						t.Errorf("%q: got %d, %v, want %d", name, id, err, round+1)
					}
				}
			}
		})
	}
	store, faults := withFaults(Memory(), nil)
	a := newTest(t, store, createMissing, func(o *Options) { o.KeyPrefix = "p." })
	for _, name := range []string{"", strings.Repeat("x", 254), "\xff", "a\xc3"} {
		if id, err := a.Next(t.Context(), name); !errors.Is(err, ErrInvalidName) {
			t.Errorf("%q: %d, %v", name, id, err)
		}
		if n := faults.count("p." + name); n != 0 {
			t.Errorf("%q: %d store calls", name, n)
		}
	}
	if id, err := a.Next(t.Context(), strings.Repeat("x", 253)); id != 1 || err != nil {
		t.Errorf("255 bytes with the prefix: %d, %v", id, err)
	}
}

// Numbers of a condition can be longer than any int64.
func TestNumbersBeyondInt64AreWrittenExactly(t *testing.T) {
	d := Definition{Start: math.MinInt64, Increment: math.MaxInt64, Min: math.MinInt64, Max: math.MaxInt64}
	want, _ := new(big.Int).SetString("-18446744073709551615", 10)
	if got := d.minus(d.Start, 1); got.Cmp(want) != 0 {
		t.Errorf("origin %s, want %s", got, want)
	}
	onEvery(t, func(t *testing.T, b backend, k string) {
		it := apply(t, b, createOf(k, MinValue(d.Min), StartWith(d.Start), IncrementBy(d.Increment)))
		if it = apply(t, b, leaseOf(it, 3)); numbers(it) != fmt.Sprintf("last %d at %[1]d from absent n 3 epoch 0", int64(math.MaxInt64-1)) {
			t.Errorf("got %s", numbers(it))
		}
	})
}
