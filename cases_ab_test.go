package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// Faults that users of other sequence libraries and of databases have reported,
// each as a test that the fault is not ours. The numbers are those of the list
// that they were collected in; A is about bounds, B about start and increment, C
// about stale caches, J about names.

// wantExhausted checks that the sequence stays exhausted.
func wantExhausted(t testing.TB, a *Allocator, name, bound string) {
	t.Helper()
	for range 3 {
		id, err := next1(t, a, name)
		if ex, ok := errors.AsType[*ExhaustedError](err); !ok || ex.Bound != bound {
			t.Fatalf("%d, %v, want exhausted at its %s", id, err, bound)
		}
	}
}

func TestCaseA1IncrementThreeNeverPassesTheBound(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for _, block := range []int64{2, 1, 3, 100} {
				name := fmt.Sprint("s", block)
				a := newTest(t, s, strict(block))
				ok(t, a.Create(t.Context(), name, StartWith(3), IncrementBy(3), MaxValue(10)))
				want(t, a, name, 3, 6, 9)
				wantExhausted(t, a, name, "max")
				byHand(t, s, name, map[string]*int64{attrLast: new(int64(8)), attrAt: nil})
				b := newTest(t, s, strict(block)) // 8 + 3 > 10
				wantExhausted(t, b, name, "max")
			}
		})
	}
}

func TestCaseA3CycleWithABlockLargerThanTheRangeGoesRoundForEver(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for _, block := range []int64{4, 5, 100} {
				name := fmt.Sprint("s", block)
				counted, count := writes(s)
				a := newTest(t, counted, strict(block))
				ok(t, a.Create(t.Context(), name, MaxValue(4), Cycle()))
				before := count()
				const laps = 10
				for range laps {
					want(t, a, name, 1, 2, 3, 4)
				}
				if n := count() - before; n != laps {
					t.Errorf("block %d: %d writes for %d laps", block, n, laps)
				}
			}
		})
	}
}

func TestCaseA5TheLargestIncrementsGiveOneValueOrTwo(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for _, block := range []int64{1, 2, 1000} {
				a := newTest(t, s, strict(block))
				for _, c := range []struct {
					inc  int64
					more []Clause
					ids  []int64
				}{
					{minInt, nil, []int64{-1}},
					{minInt + 1, nil, []int64{-1, minInt}},
					{maxInt, nil, []int64{1}},
					{minInt, []Clause{MaxValue(maxInt)}, []int64{maxInt, -1}},
					{maxInt, []Clause{MinValue(minInt)}, []int64{minInt, -1, maxInt - 1}},
				} {
					name := fmt.Sprint("s", block, c.inc, len(c.more))
					ok(t, a.Create(t.Context(), name, append(c.more, IncrementBy(c.inc))...))
					want(t, a, name, c.ids...)
					wantExhausted(t, a, name, map[bool]string{true: "max", false: "min"}[c.inc > 0])
				}
			}
		})
	}
}

func TestCaseA6AtTheLargestNumberNothingWrapsToZero(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(10))
			ok(t, a.Create(ctx, "s"))
			ok(t, a.Create(ctx, "c", Cycle()))
			for _, name := range []string{"s", "c"} {
				byHand(t, s, name, map[string]*int64{attrLast: new(int64(maxInt))})
			}
			wantExhausted(t, a, "s", "max")
			want(t, a, "c", 1)
		})
	}
	s := tableOn(t, testClient(emulator.Endpoint(t, emulator.Dynoxide)))
	putNumber(t, s, "s", &types.AttributeValueMemberN{Value: "10000000000000000000"})
	_, err := newTest(t, s).Next(t.Context(), "s")
	wantErr(t, err, ErrCorrupt, "10000000000000000000", `"s"`, "lastID")
}

// putNumber puts v where the counter of an item should be.
func putNumber(t testing.TB, s *Store, key string, v types.AttributeValue) {
	t.Helper()
	d := s.backend.(*dynamo)
	_, err := d.client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: &d.name, Key: d.keyOf(key),
		UpdateExpression:          aws.String("SET #a = :a"),
		ExpressionAttributeNames:  map[string]string{"#a": d.attrs[attrLast]},
		ExpressionAttributeValues: map[string]types.AttributeValue{":a": v},
	})
	ok(t, err)
}

func TestCaseA7TheLargestNumberIsGivenOutOnce(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(10))
			ok(t, a.Create(ctx, "s"))
			byHand(t, s, "s", map[string]*int64{attrLast: new(int64(maxInt - 3))})
			want(t, a, "s", maxInt-2, maxInt-1, maxInt)
			wantExhausted(t, a, "s", "max")
			ok(t, a.Create(ctx, "adv"))
			if now, err := a.Advance(ctx, "adv", maxInt); err != nil || now != maxInt {
				t.Fatal(now, err)
			}
			if d := must(a.Describe(ctx, "adv")); !d.Exhausted || d.LastID != maxInt {
				t.Errorf("%+v does not report that nothing is left", d)
			}
			wantExhausted(t, a, "adv", "max")
		})
	}
}

func TestCaseA11TwoProcessesWithSmallBlocksLeaveNoGap(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for _, block := range []int64{1, 2, 3} {
				name := fmt.Sprint("s", block)
				ok(t, newTest(t, s).Create(t.Context(), name))
				var ids [2][]int64
				var wg sync.WaitGroup
				for i := range ids {
					a := newTest(t, s, strict(block), func(o *Options) { o.rand = rand.Float64 })
					wg.Go(func() {
						for range 12 { // a multiple of every block: nothing is left over
							id, err := a.Next(t.Context(), name)
							if err != nil {
								t.Error(err)
								return
							}
							ids[i] = append(ids[i], id)
						}
					})
				}
				wg.Wait()
				allFromTo(t, 1, 24, ids[0], ids[1])
			}
		})
	}
	for _, n := range []int64{0, -1} {
		_, err := New(Memory(), fixed(n))
		wantErr(t, err, ErrInvalidOptions, "MinBlock")
	}
}

func TestCaseA12ABlockLargerThanTheSequenceIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		counted, count := writes(Memory())
		a := newTest(t, counted, fixed(20))
		ok(t, a.Create(ctx, "s", MaxValue(2)))
		want(t, a, "s", 1, 2)
		before := count()
		for range 100 {
			_, err := a.Next(ctx, "s")
			wantErr(t, err, ErrExhausted)
		}
		if n := count() - before; n != 0 {
			t.Errorf("being exhausted cost %d writes", n)
		}
	})
}

// lying is a store whose answers to leases are changed.
type lying struct {
	backend
	lie func(*item)
}

func (l *lying) apply(ctx context.Context, ch *change) (*item, error) {
	it, err := l.backend.apply(ctx, ch)
	if err == nil && l.lie != nil {
		l.lie(it)
	}
	return it, err
}

func TestCaseA14NothingIsServedFromABlockThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name string
		lie  func(*item)
		want error
	}{
		{"a block that was had before", func(it *item) { it.at, it.lastID = new(int64(10)), new(int64(10)) }, ErrCounterMovedBack},
		{"a block that overlaps", func(it *item) { it.at, it.lastID = new(int64(15)), new(int64(15)) }, ErrCounterMovedBack},
		{"a block outside of the bounds", func(it *item) { it.at, it.lastID = new(int64(1001)), new(int64(1001)) }, ErrCorrupt},
		{"a block before the bounds", func(it *item) { it.at, it.lastID = new(int64(-3)), new(int64(-3)) }, ErrCorrupt},
		{"a block at the far end of int64", func(it *item) { it.at, it.lastID = new(int64(minInt)), new(int64(minInt)) }, ErrCorrupt},
		{"an absurd count", func(it *item) { it.n = maxInt }, ErrCorrupt},
		{"no count", func(it *item) { it.n = 0 }, ErrCorrupt},
		{"no at", func(it *item) { it.at = nil }, ErrCorrupt},
		{"somebody else's lease", func(it *item) { it.tok = "x" }, ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &lying{backend: Memory().backend}
			a := newTest(t, &Store{backend: l}, strict(10))
			ok(t, a.Create(t.Context(), "s", MaxValue(1000)))
			want(t, a, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			l.lie = c.lie
			id, err := a.Next(t.Context(), "s")
			if id != 0 {
				t.Errorf("%d was served", id)
			}
			wantErr(t, err, c.want)
			if _, got := sequenceOf(t, a, "s").TryNext(); got {
				t.Error("and something of it stayed in memory")
			}
		})
	}
}

func TestCaseB15TheBlockSizeDoesNotChangeTheValues(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for _, block := range []int64{4, 1} {
				name := fmt.Sprint("s", block)
				a := newTest(t, s, strict(block))
				ok(t, a.Create(t.Context(), name, StartWith(10), IncrementBy(5)))
				want(t, a, name, 10, 15, 20, 25, 30, 35, 40, 45, 50)
			}
		})
	}
}

func TestCaseB16StartZeroIsNotAnUnsetStart(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(2), createMissing)
			ok(t, a.Create(ctx, "zero", MinValue(-10), StartWith(0)))
			want(t, a, "zero", 0, 1)
			ok(t, a.Create(ctx, "unset", MinValue(-10)))
			want(t, a, "unset", -10)
			want(t, a, "nothing", 1)
			q, err := a.Sequence("made", MinValue(0), StartWith(0))
			ok(t, err)
			if id, err := q.Next(ctx); id != 0 || err != nil {
				t.Error(id, err)
			}
		})
	}
}

func TestCaseB19TwoProcessesOnAFreshSequenceShareItsFirstBlocks(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			ok(t, newTest(t, s).Create(ctx, "s"))
			for range 2 {
				var ids [2][]int64
				var wg sync.WaitGroup
				for i := range ids {
					q := sequenceOf(t, newTest(t, s, strict(50), func(o *Options) { o.rand = rand.Float64 }), "s")
					wg.Go(func() {
						ids[i] = make([]int64, 50)
						if err := q.Fill(ctx, ids[i]); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				allFromTo(t, 1, 100, ids[0], ids[1])
				ok(t, newTest(t, s).Alter(ctx, "s", RestartAtStart(), AllowReuse()))
			}
		})
	}
}

func TestCaseB20ProcessesOfDifferentBlocksDoNotOverlap(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			as := []*Allocator{newTest(t, s, strict(50)), newTest(t, s, strict(1)), newTest(t, s, strict(1000))}
			ok(t, as[0].Create(ctx, "s"))
			ids := make([][]int64, len(as))
			rng := rand.New(rand.NewPCG(1, 1))
			for range 200 {
				i := rng.IntN(len(as))
				ids[i] = append(ids[i], must(as[i].Next(ctx, "s")))
			}
			allDifferent(t, ids...)
			q := sequenceOf(t, newTest(t, s, strict(1)), "s", IncrementBy(2))
			_, err := q.Next(ctx)
			wantErr(t, err, ErrDefinitionMismatch, "INCREMENT is 2 in the code and 1 in the table")
		})
	}
}

func TestCaseB23AMissingOrBrokenItemIsNamed(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			_, err := newTest(t, s, strict(1)).Next(t.Context(), "s")
			wantErr(t, err, ErrNotFound, `"s"`, s.backend.table(), "CreateMissing")
			want(t, newTest(t, s, strict(1), createMissing), "s", 1)
		})
	}
	for _, kind := range []emulator.Kind{emulator.Dynoxide, emulator.Dynalite} {
		t.Run(string("broken on "+kind), func(t *testing.T) {
			s := tableOn(t, testClient(emulator.Endpoint(t, kind)))
			for i, c := range []struct {
				v    types.AttributeValue
				show string
			}{
				{&types.AttributeValueMemberS{Value: "12"}, `S "12"`},
				{&types.AttributeValueMemberS{Value: "NaN"}, `S "NaN"`},
				{&types.AttributeValueMemberN{Value: "1.5"}, "N 1.5"},
				{&types.AttributeValueMemberN{Value: "-9223372036854775809"}, "N -9223372036854775809"},
				{&types.AttributeValueMemberL{Value: []types.AttributeValue{&types.AttributeValueMemberN{Value: "1"}}}, "AttributeValueMemberL"},
				{&types.AttributeValueMemberNULL{Value: true}, "AttributeValueMemberNULL"},
			} {
				key := fmt.Sprint("s", i)
				putNumber(t, s, key, c.v)
				for _, a := range []*Allocator{newTest(t, s, strict(1)), newTest(t, s, strict(1), createMissing)} {
					_, err := a.Next(t.Context(), key)
					wantErr(t, err, ErrCorrupt, c.show, key, s.backend.table())
					_, err = a.Describe(t.Context(), key)
					wantErr(t, err, ErrCorrupt, c.show)
					_, err = a.Advance(t.Context(), key, 5)
					wantErr(t, err, ErrCorrupt, c.show)
				}
			}
		})
	}
}
