package ddbseq

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

func TestCaseC25RefreshGoesOnBeyondARaisedCounter(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(1000))
			ok(t, a.Create(ctx, "s"))
			for i := range int64(200) {
				want(t, a, "s", i+1)
			}
			byHand(t, s, "s", map[string]*int64{attrLast: new(int64(1_000_000))})
			want(t, a, "s", 201, 202) // still unique
			ok(t, a.Refresh(ctx, "s"))
			want(t, a, "s", 1_000_001)
		})
	}
}

func TestCaseC28AdvanceRaisesARunningSequence(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(5))
			ok(t, a.Create(ctx, "s"))
			want(t, a, "s", 1)
			for _, to := range []int64{250, 250, 100} {
				if now, err := a.Advance(ctx, "s", to); now != 250 || err != nil {
					t.Fatal(now, err)
				}
			}
			want(t, a, "s", 2, 3, 4, 5, 251)
		})
	}
}

func TestCaseC30AdvanceToWhereItIsWritesNothing(t *testing.T) {
	counted, count := writes(Memory())
	ctx, a := t.Context(), newTest(t, counted, strict(100))
	ok(t, a.Create(ctx, "s"))
	want(t, a, "s", 1)
	before := count()
	for _, to := range []int64{100, 99, 1, 0, -1, minInt} {
		if now, err := a.Advance(ctx, "s", to); now != 100 || err != nil {
			t.Fatal(to, now, err)
		}
	}
	if n := count() - before; n != 0 {
		t.Errorf("%d writes", n)
	}
	wantErr(t, a.Restart(ctx, "s", 50), ErrReuse)
	epoch := must(counted.backend.get(ctx, "s")).epoch
	ok(t, a.Restart(ctx, "s", 50, AllowReuse()))
	if now := must(counted.backend.get(ctx, "s")).epoch; now <= epoch {
		t.Errorf("epoch %d after %d", now, epoch)
	}
	want(t, a, "s", 50)
}

func TestCaseC31ASmallerBlockCountsOnceMemoryIsEmpty(t *testing.T) {
	ctx, s := t.Context(), Memory()
	counted, count := writes(s)
	a := newTest(t, counted, strict(1000))
	ok(t, a.Create(ctx, "s"))
	for i := range int64(100) {
		want(t, a, "s", i+1)
	}
	// The block size belongs to the Allocator: its successor leases one by one.
	b := newTest(t, counted, strict(1))
	last := int64(1000)
	for range 20 {
		before := count()
		id := must(b.Next(ctx, "s"))
		if id != last+1 || count()-before != 1 {
			t.Fatalf("%d after %d, for %d writes", id, last, count()-before)
		}
		last = id
	}
	for i := range int64(900) {
		want(t, a, "s", i+101) // and what is cached is served in order
	}
	want(t, a, "s", last+1)
}

func TestCaseC34AnotherFloorShowsAtTheNextRefill(t *testing.T) {
	ctx, s := t.Context(), Memory()
	a := newTest(t, s, strict(10))
	ok(t, a.Create(ctx, "s"))
	want(t, a, "s", 1)
	if st := sequenceOf(t, a, "s").Stats(); st.Leased != 10 || st.Leases != 1 || st.Remaining != 9 {
		t.Errorf("%+v", st)
	}
	b := newTest(t, s, strict(10))
	q := sequenceOf(t, b, "s", WithSizing(func(z *Sizing) { z.MinBlock, z.MaxBlock = 25, 25 }))
	if id := must(q.Next(ctx)); id != 11 {
		t.Error(id)
	}
	if st := q.Stats(); st.Leased != 25 || st.Remaining != 24 {
		t.Errorf("%+v", st)
	}
}

var oddNames = []string{"订单.id", "a@b", "a#b", "a/b", "a b", "🙂", "a:b", "#lastID", ":v", "it's", `"`, `\`, "\x00", "lastID", " ", "%s",
	"; DROP TABLE", strings.Repeat("x", 255), strings.Repeat("é", 127)}

func TestCaseJ109AnyNameIsASequenceOfItsOwn(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(2))
			for i, name := range oddNames {
				ok(t, a.Create(ctx, name, StartWith(int64(i*1000+1))))
			}
			for i, name := range oddNames {
				want(t, a, name, int64(i*1000+1), int64(i*1000+2), int64(i*1000+3))
			}
			var names []string
			for d, err := range a.List(ctx) {
				ok(t, err)
				names = append(names, d.Name)
			}
			slices.Sort(names)
			if want := slices.Sorted(slices.Values(oddNames)); !slices.Equal(names, want) {
				t.Errorf("%q, want %q", names, want)
			}
		})
	}
	counted, f := withFaults(Memory(), nil)
	a := newTest(t, counted, func(o *Options) { o.KeyPrefix = "1234567890" })
	for _, name := range []string{"", strings.Repeat("x", 246), strings.Repeat("é", 123), "\xff"} {
		ctx := t.Context()
		_, err1 := a.Next(ctx, name)
		_, err2 := a.Sequence(name)
		_, err3 := a.Advance(ctx, name, 1)
		_, err4 := a.Describe(ctx, name)
		for i, err := range []error{err1, err2, err3, err4, a.Create(ctx, name), a.Alter(ctx, name, Cycle()),
			a.Restart(ctx, name, 1), a.RestartAfter(ctx, name, 1), a.Refresh(ctx, name), a.Warm(ctx, name)} {
			if !errors.Is(err, ErrInvalidName) {
				t.Errorf("call %d of %q: %v", i, name, err)
			}
		}
		if n := f.count("1234567890" + name); n != 0 {
			t.Errorf("%d calls to the store for %q", n, name)
		}
	}
}

func TestCaseJ110AttributesMayHaveAnyName(t *testing.T) {
	all := [][2]string{{"count", "value"}, {"key", "counter"}, {"name", "a.b"}, {"Größe", "-"}, {"entity:Type", "#n"}, {"tok2", ":tok"}}
	for _, kind := range []emulator.Kind{emulator.Dynoxide, emulator.Dynalite} {
		some := all
		if kind == emulator.Dynalite {
			some = all[:1] // making a table takes it a second
		}
		for _, names := range some {
			t.Run(fmt.Sprint(kind, names), func(t *testing.T) {
				s := tableOn(t, testClient(emulator.Endpoint(t, kind)), func(o *TableOptions) {
					o.KeyAttribute, o.CounterAttribute = names[0], names[1]
					o.Rename = map[string]string{attrAt: "ALL", attrTok: "SELECT", attrN: "number"}
				})
				ctx, a := t.Context(), newTest(t, s, strict(2))
				ok(t, a.Create(ctx, "it's", MaxValue(math.MaxInt32)))
				want(t, a, "it's", 1, 2, 3)
				ok(t, a.Alter(ctx, "it's", IncrementBy(2)))
				ok(t, a.Restart(ctx, "it's", 100))
				want(t, a, "it's", 100, 102)
				if _, err := a.Advance(ctx, "it's", 200); err != nil {
					t.Error(err)
				}
				if d := must(a.Describe(ctx, "it's")); d.LastID != 200 {
					t.Errorf("%+v", d)
				}
			})
		}
	}
}
