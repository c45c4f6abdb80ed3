package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// byHand does to an item what an operator does in the console: it sets numbers,
// and removes those that are nil. It makes the item if there is none.
func byHand(t testing.TB, s *Store, key string, numbers map[string]*int64) {
	t.Helper()
	switch b := s.backend.(type) {
	case *memory:
		b.mu.Lock()
		defer b.mu.Unlock()
		it, ok := b.items[key]
		if !ok {
			it = item{key: key}
		}
		for attr, v := range numbers {
			switch attr {
			case attrLast:
				it.lastID = v
			case attrAt:
				it.at = v
			case attrFrom:
				it.from = v
			default:
				t.Fatal("byHand cannot set ", attr)
			}
		}
		b.items[key] = it
	case *dynamo:
		e := &expression{d: b, names: map[string]string{}, values: map[string]types.AttributeValue{}}
		for attr, v := range numbers {
			if v == nil {
				e.drop(attr)
			} else {
				e.set(attr, "%s", e.num(attr, *v))
			}
		}
		in := &dynamodb.UpdateItemInput{TableName: &b.name, Key: b.keyOf(key)}
		if len(numbers) > 0 {
			in.UpdateExpression, in.ExpressionAttributeNames = aws.String(e.update()), e.names
		}
		if len(e.values) > 0 {
			in.ExpressionAttributeValues = e.values
		}
		if _, err := b.client.UpdateItem(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("byHand does not know %T", b)
	}
}

// model is a sequence as FORMAT.md's rules have it, on integers that cannot
// overflow. Every process holds a run of values.
type model struct {
	min, max, inc *big.Int
	cycle         bool
	called        bool
	pos           *big.Int // the last value leased, or the first one if !called
	block         int64
	held          []modelBlock
}

type modelBlock struct {
	next *big.Int
	n    *big.Int
}

var (
	errModelExhausted = errors.New("exhausted")
	errModelCorrupt   = errors.New("before the range")
)

// beyond reports whether v lies past the end, before whether it lies before the
// beginning.
func (m *model) beyond(v *big.Int) bool {
	return m.inc.Sign() > 0 && v.Cmp(m.max) > 0 || m.inc.Sign() < 0 && v.Cmp(m.min) < 0
}

func (m *model) before(v *big.Int) bool {
	return m.inc.Sign() > 0 && v.Cmp(m.min) < 0 || m.inc.Sign() < 0 && v.Cmp(m.max) > 0
}

func (m *model) next(p int) (*big.Int, error) {
	h := &m.held[p]
	if h.n == nil || h.n.Sign() == 0 {
		if err := m.lease(h); err != nil {
			return nil, err
		}
	}
	v := new(big.Int).Set(h.next)
	h.next.Add(h.next, m.inc)
	h.n.Sub(h.n, big.NewInt(1))
	return v, nil
}

func (m *model) lease(h *modelBlock) error {
	first := new(big.Int).Set(m.pos)
	if m.called {
		first.Add(first, m.inc)
	}
	if m.before(first) {
		return errModelCorrupt
	}
	if m.beyond(first) { // rules 8 to 11
		if !m.cycle {
			return errModelExhausted
		}
		first.Set(m.min)
		if m.inc.Sign() < 0 {
			first.Set(m.max)
		}
	}
	end := m.max
	if m.inc.Sign() < 0 {
		end = m.min
	}
	n := new(big.Int).Sub(end, first) // rules 12 and 13
	n.Quo(n, m.inc).Add(n, big.NewInt(1))
	n = new(big.Int).Set(minBig(n, big.NewInt(m.block)))
	h.next, h.n = first, n
	m.called = true
	m.pos = new(big.Int).Sub(n, big.NewInt(1))
	m.pos.Mul(m.pos, m.inc).Add(m.pos, first)
	return nil
}

// fuzzLease is a case: a definition, what is stored, and who takes IDs.
type fuzzLease struct {
	start, inc, min, max int64
	cycle                bool
	last                 int64
	stored               uint8 // 0 nothing, 1 last as lastID, 2 last as from
	block                int64
	processes            uint8
	ops                  []byte
}

var fuzzLeaseSeeds = []fuzzLease{
	{1, 1, 1, maxInt, false, 0, 0, 10, 2, []byte{0, 1, 0, 1, 1, 1}},
	{3, 3, 3, 10, false, 0, 0, 2, 1, []byte{0, 0, 0, 0, 0}},
	{3, 3, 3, 10, false, 8, 1, 100, 1, []byte{0, 0}},
	{1, 1, 1, 4, true, 0, 0, 5, 2, []byte{0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0}},
	{minInt, 1, minInt, maxInt, false, 0, 0, 3, 1, []byte{0, 0, 0, 0}},
	{minInt, maxInt, minInt, maxInt, false, 0, 0, 2, 2, []byte{0, 1, 0, 1, 0, 1}},
	{maxInt, minInt, minInt, maxInt, true, 0, 0, 1000, 2, []byte{0, 1, 0, 1, 0, 1}},
	{0, minInt + 1, minInt, maxInt, false, 0, 0, 2, 1, []byte{0, 0, 0}},
	{-1, -1, minInt, -1, false, minInt + 2, 1, 10, 1, []byte{0, 0, 0, 0}},
	{1, 1, 1, maxInt, false, maxInt - 3, 1, 10, 1, []byte{0, 0, 0, 0, 0}},
	{1, 1, 1, maxInt, true, maxInt, 1, 10, 2, []byte{0, 1}},
	{2, 3, 1, 10, true, 0, 0, 2, 3, []byte{0, 1, 2, 0, 1, 2, 0, 1, 2}},
	// The second process wraps while the first knows of two that are left.
	{1, 1, 1, 10, true, 0, 0, 4, 1, []byte{0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1}},
	{5, 100, 1, 10, true, 0, 0, 7, 2, []byte{0, 1, 0, 1}},
	{5, -100, 1, 10, true, 0, 0, 7, 2, []byte{0, 1, 0, 1}},
	{1, 1, 1, 10, false, -7, 1, 5, 1, []byte{0}},                             // before the range
	{1, 1, 1, 10, false, 0, 1, 5, 1, []byte{0}},                              // an old generator's zero
	{1, 1, 1, 10, true, 99, 1, 5, 1, []byte{0}},                              // beyond the range
	{1, 5, 1, 1000, false, 400, 2, 5, 2, []byte{0, 1}},                       // restarted
	{1, 1, minInt, maxInt, false, 0, 0, maxInt, 2, []byte{0, 1, 0, 0xc0, 0}}, // a huge block
	{1, 1, 1, maxInt, false, 0, 0, maxInt - 99, 1, []byte{0, 0xc0, 0, 0xc0, 0}},
	{1, 1, 1, 100, false, 0, 0, 5, 2, []byte{0, 1, 0x40, 30, 0, 1, 0x80, 7, 0, 1, 0xc0, 0, 1}},
}

// FuzzLease has processes take IDs, some of them restarting, advancing and
// refreshing in between, and expects of every call exactly what the model says.
func FuzzLease(f *testing.F) {
	for _, c := range fuzzLeaseSeeds {
		f.Add(c.start, c.inc, c.min, c.max, c.cycle, c.last, c.stored, c.block, c.processes, c.ops)
	}
	f.Fuzz(func(t *testing.T, start, inc, lo, hi int64, cycle bool, last int64, stored uint8, block int64, processes uint8, ops []byte) {
		fuzzLease{start, inc, lo, hi, cycle, last, stored, block, processes, ops}.run(t, Memory(), "s")
	})
}

func TestLeasesAtTheEdgesAreTheModelsOnEveryStore(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			for i, c := range fuzzLeaseSeeds {
				t.Run(fmt.Sprint(i), func(t *testing.T) { c.run(t, s, fmt.Sprint("s", i)) })
			}
		})
	}
}

func (c fuzzLease) run(t *testing.T, s *Store, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open := func(block int64) *Allocator {
		return newTest(t, s, fixed(block), func(o *Options) { o.forfeit = true })
	}
	admin := open(1)
	err := admin.Create(ctx, name, StartWith(c.start), IncrementBy(c.inc), MinValue(c.min), MaxValue(c.max), setCycle(c.cycle))
	if valid := c.inc != 0 && c.min < c.max && c.min <= c.start && c.start <= c.max; valid != (err == nil) {
		t.Fatalf("valid: %t, but %v", valid, err)
	}
	if err != nil {
		return
	}
	c.block = max(1, c.block&maxInt)
	m := &model{
		min: big.NewInt(c.min), max: big.NewInt(c.max), inc: big.NewInt(c.inc), cycle: c.cycle,
		pos: big.NewInt(c.start), block: c.block, held: make([]modelBlock, c.processes%4+1),
	}
	switch c.stored % 3 {
	case 1:
		byHand(t, s, name, map[string]*int64{attrLast: &c.last})
		m.called, m.pos = true, big.NewInt(c.last)
	case 2:
		if c.last < c.min || c.last > c.max {
			return // only Restart writes it
		}
		byHand(t, s, name, map[string]*int64{attrFrom: &c.last})
		m.pos = big.NewInt(c.last)
	}
	as := make([]*Allocator, len(m.held))
	for i := range as {
		as[i] = open(c.block)
	}
	c.replay(ctx, t, m, as, admin, name)
}

// replay takes each byte as an operation: its two high bits say which, the
// others are the process, or how far a position lies from an end.
func (c fuzzLease) replay(ctx context.Context, t *testing.T, m *model, as []*Allocator, admin *Allocator, name string) {
	t.Helper()
	for i, op := range c.ops[:min(len(c.ops), 64)] {
		arg := int64(op & 0x3f)
		p := int(arg) % len(as)
		v := c.min + arg - 4 // near an end, on either side; wraps around at times
		if arg&1 != 0 {
			v = c.max - arg/2 + 4
		}
		inside := c.min <= v && v <= c.max
		switch op >> 6 {
		case 0:
			unhold(as[p], name)
			got, err := as[p].Next(ctx, name)
			want, wantErr := m.next(p)
			switch {
			case errors.Is(wantErr, errModelExhausted):
				if !errors.Is(err, ErrExhausted) {
					t.Fatalf("op %d: %d, %v, want exhausted", i, got, err)
				}
			case errors.Is(wantErr, errModelCorrupt):
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("op %d: %d, %v, want a corrupt item", i, got, err)
				}
			case err != nil || want.Cmp(big.NewInt(got)) != 0:
				t.Fatalf("op %d: process %d got %d, %v, want %s", i, p, got, err, want)
			}
			if err == nil && (got < c.min || got > c.max) {
				t.Fatalf("op %d: %d lies outside of %d..%d", i, got, c.min, c.max)
			}
		case 1:
			_, err := admin.Advance(ctx, name, v)
			forward := m.called && m.after(v) || !m.called && (m.after(v) || m.pos.Cmp(big.NewInt(v)) == 0)
			if refused := forward && !inside; refused != errors.Is(err, ErrOutOfBounds) || !refused && err != nil {
				t.Fatalf("op %d: Advance to %d from %s: %v", i, v, m.pos, err)
			}
			if err == nil && forward {
				m.called, m.pos = true, big.NewInt(v)
			}
		case 2:
			set := as[p].Restart
			if arg&2 != 0 {
				set = as[p].RestartAfter
			}
			err := set(ctx, name, v, AllowReuse())
			if inside != (err == nil) {
				t.Fatalf("op %d: Restart at %d: %v", i, v, err)
			}
			if err == nil {
				m.called, m.pos, m.held[p] = arg&2 != 0, big.NewInt(v), modelBlock{}
			}
		case 3:
			if err := as[p].Refresh(ctx, name); err != nil {
				t.Fatalf("op %d: Refresh: %v", i, err)
			}
			m.held[p] = modelBlock{}
		}
	}
}

// after reports whether v comes after the position.
func (m *model) after(v int64) bool {
	return big.NewInt(v).Cmp(m.pos) == m.inc.Sign()
}

// FuzzParseItem gives the parser numbers and types that no version of this
// package wrote. It may refuse them; what it takes must be what they say.
func FuzzParseItem(f *testing.F) {
	for _, n := range []string{"0", "-0", "1", "007", "+5", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
		"10000000000000000000", "1.5", "1.0", "1e3", "NaN", "", " 1", "1_000", "0x10", "−1", "99999999999999999999999999999999999999"} {
		for kind := range uint8(8) {
			f.Add(n, kind, uint8(0), "x", n, int64(1))
			f.Add("5", uint8(0), kind, n, "2", int64(2))
		}
	}
	names := []string{attrLast, attrAt, attrN, attrTok, attrBorn, attrEpoch, attrVer, attrDef, attrTune, attrFrom, attrV}
	d := DynamoDB(&dynamodb.Client{}, "t").backend.(*dynamo)
	f.Fuzz(func(t *testing.T, n string, kind, which uint8, s, element string, v int64) {
		value := func(text string) types.AttributeValue {
			switch kind % 8 {
			case 0:
				return &types.AttributeValueMemberN{Value: text}
			case 1:
				return &types.AttributeValueMemberS{Value: text}
			case 2:
				return &types.AttributeValueMemberB{Value: []byte(text)}
			case 3:
				return &types.AttributeValueMemberBOOL{Value: len(text)%2 == 0}
			case 4:
				return &types.AttributeValueMemberNULL{Value: true}
			case 5:
				return &types.AttributeValueMemberL{Value: []types.AttributeValue{&types.AttributeValueMemberN{Value: text}}}
			case 6:
				return &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{
					defStart: &types.AttributeValueMemberN{Value: text}, defIncrement: &types.AttributeValueMemberN{Value: element},
					"paused": &types.AttributeValueMemberBOOL{Value: true}, "unknown": nil,
				}}
			}
			return nil
		}
		name := names[int(which)%len(names)]
		attrs := map[string]types.AttributeValue{
			attrKey:  &types.AttributeValueMemberS{Value: s},
			attrLast: &types.AttributeValueMemberN{Value: fmt.Sprint(v)},
			"other":  value(n),
		}
		attrs[name] = value(n)
		it, err := d.parse(s, attrs)
		if (it == nil) == (err == nil) && !errors.Is(err, ErrLayout) && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%v, %v", it, err)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLayout) {
				t.Fatal(err)
			}
			return
		}
		if d := it.definition(); d.Increment == 0 || d.Min >= d.Max || !d.contains(d.Start) {
			t.Fatalf("accepted %v", d)
		}
		got := map[string]*int64{attrLast: it.lastID, attrAt: it.at, attrN: &it.n, attrEpoch: &it.epoch, attrFrom: it.from, attrV: &it.v}[name]
		if got == nil {
			return
		}
		if want, ok := new(big.Int).SetString(n, 10); kind%8 != 0 || !ok || !want.IsInt64() || want.Int64() != *got {
			t.Fatalf("%s: %s was read as %d", name, show(attrs[name]), *got)
		}
	})
}

// What express sends for a definition must come back from the parser.
func TestADefinitionSurvivesTheItem(t *testing.T) {
	d := DynamoDB(&dynamodb.Client{}, "t").backend.(*dynamo)
	for _, cs := range [][]Clause{
		nil, {StartWith(0), MinValue(-1)}, {Int32()}, {SafeInteger(), IncrementBy(-1)}, {NoCycle()}, {Cycle()},
		{IncrementBy(minInt), MinValue(minInt), MaxValue(maxInt), StartWith(minInt)},
	} {
		c := gather(cs)
		attrs := map[string]types.AttributeValue{attrKey: &types.AttributeValueMemberS{Value: "s"}, attrDef: defValue(c.explicit())}
		it, err := d.parse("s", attrs)
		if err != nil || it.definition() != c.definition() {
			t.Errorf("%v came back as %v, %v", c.definition(), it, err)
			continue
		}
		if !reflect.DeepEqual(it.said(), c.explicit()) {
			t.Errorf("%v: what was set came back otherwise", c.definition())
		}
	}
	for _, n := range []string{"1.5", "1e19", fmt.Sprint(uint64(math.MaxInt64) + 1)} {
		def := &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{defMax: &types.AttributeValueMemberN{Value: n}}}
		if _, err := d.parse("s", map[string]types.AttributeValue{attrDef: def}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("MAXVALUE %s: %v", n, err)
		}
	}
}
