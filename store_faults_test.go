package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func num(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }
func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func TestCorruptItemsAreRefused(t *testing.T) {
	type attrs = map[string]types.AttributeValue
	obj := func(m attrs) types.AttributeValue { return &types.AttributeValueMemberM{Value: m} }
	null := &types.AttributeValueMemberNULL{Value: true}
	cases := map[string]attrs{}
	for _, attr := range []string{attrLast, attrAt, attrN, attrEpoch, attrFrom, attrV} {
		for what, v := range map[string]types.AttributeValue{
			"fraction": num("1.5"), "string": str("7"), "null": null, "1e19": num("10000000000000000000"),
			"38 digits": num("-" + strings.Repeat("9", 38)), "just too large": num("9223372036854775808"), "binary": &types.AttributeValueMemberB{Value: []byte("7")},
		} {
			cases[attr+" "+what] = attrs{attr: v}
		}
	}
	for what, v := range map[string]types.AttributeValue{"number": num("1"), "null": null, "list": &types.AttributeValueMemberL{}} {
		for _, attr := range []string{attrTok, attrBorn, attrVer} {
			cases[attr+" "+what] = attrs{attr: v}
		}
		cases["def "+what] = attrs{attrDef: v} // tune is another matter: tuning_test.go
	}
	for _, attr := range []string{attrBorn, attrVer} { // tok may be binary
		cases[attr+" binary"] = attrs{attr: &types.AttributeValueMemberB{Value: []byte("x")}}
		cases[attr+" empty"] = attrs{attr: str("")}
	}
	cases["start"] = attrs{attrDef: obj(attrs{defStart: num("0.5")})}
	cases["start outside"] = attrs{attrDef: obj(attrs{defStart: num("0")})}
	cases["increment 0"] = attrs{attrDef: obj(attrs{defIncrement: num("0")})}
	cases["bounds crossed"] = attrs{attrDef: obj(attrs{defMin: num("5"), defMax: num("4")})}
	cases["cycle"] = attrs{attrDef: obj(attrs{defCycle: str("true")})}

	for _, st := range stores()[1:] {
		t.Run(st.name, func(t *testing.T) {
			d := st.open(t).backend.(*dynamo)
			a := newTest(t, &Store{backend: d}, fixed(5), createMissing, patient)
			for name, bad := range cases {
				item := attrs{attrLast: num("10")}
				maps.Copy(item, bad)
				if strings.HasPrefix(name, attrFrom) {
					delete(item, attrLast)
				}
				plantRaw(t, d, name, item)
				id, err := a.Next(t.Context(), name)
				if !errors.Is(err, ErrCorrupt) || id != 0 {
					t.Errorf("%s: got %d, %v", name, id, err)
				} else if !strings.Contains(err.Error(), name[:strings.IndexByte(name+" ", ' ')]) && !strings.Contains(err.Error(), "VALUE") && !strings.Contains(err.Error(), "INCREMENT") {
					t.Errorf("%s: the error does not say what is wrong: %v", name, err)
				}
				// Repaired, it goes on without a restart.
				plantRaw(t, d, name, attrs{attrLast: num("20")})
				forgive(sequenceOf(t, a, name))
				if id, err := a.Next(t.Context(), name); id != 21 || err != nil {
					t.Errorf("%s: repaired: %d, %v", name, id, err)
				}
			}
		})
	}
}

func TestUnknownLayoutsAreRefused(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, k string) {
		it := item{key: k, lastID: new(int64(10)), at: new(int64(10)), born: "b", v: layoutVersion + 1}
		plant(t, b, it)
		a := newTest(t, &Store{backend: b}, fixed(5), createMissing, patient)
		if id, err := a.Next(t.Context(), k); !errors.Is(err, ErrLayout) || errors.Is(err, ErrCorrupt) {
			t.Errorf("got %d, %v", id, err)
		}
		it.v = layoutVersion
		plant(t, b, it)
		forgive(sequenceOf(t, a, k))
		must(a.Next(t.Context(), k))
		it.v, it.lastID, it.at = layoutVersion+1, new(int64(100)), new(int64(100))
		plant(t, b, it) // upgraded while in use: no lease under the old rules
		for range 4 {
			must(a.Next(t.Context(), k))
		}
		if id, err := a.Next(t.Context(), k); !errors.Is(err, ErrLayout) {
			t.Errorf("got %d, %v", id, err)
		}
	})
}

// A wrapper is a client whose writes a test answers.
type wrapper struct {
	*dynamodb.Client
	update func(next func() (*dynamodb.UpdateItemOutput, error)) (*dynamodb.UpdateItemOutput, error)
}

func (w *wrapper) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, optFns ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	return w.update(func() (*dynamodb.UpdateItemOutput, error) { return w.Client.UpdateItem(ctx, in, optFns...) })
}

// What a reply does not say is never taken for a number.
func TestRepliesThatSayNothingAreNoNumbers(t *testing.T) {
	d := stores()[1].open(t).backend.(*dynamo)
	client := d.client.(*dynamodb.Client)
	type output = dynamodb.UpdateItemOutput
	for name, c := range map[string]struct {
		reply func(out *output) (*output, error)
		class error // what callers get; nil: they get their ID
	}{
		"nothing at all":     {func(*output) (*output, error) { return nil, nil }, nil},
		"no attributes":      {func(*output) (*output, error) { return &output{}, nil }, nil},
		"an error besides":   {func(*output) (*output, error) { return &output{}, errBoom }, nil},
		"an error and reply": {func(out *output) (*output, error) { return out, errBoom }, nil},
		"without at": {func(out *output) (*output, error) {
			delete(out.Attributes, attrAt)
			return out, nil
		}, ErrCorrupt},
		"without a counter": {func(out *output) (*output, error) {
			delete(out.Attributes, attrAt)
			delete(out.Attributes, attrLast)
			return out, nil
		}, ErrCorrupt},
		"0": {func(out *output) (*output, error) {
			out.Attributes[attrAt], out.Attributes[attrLast] = num("0"), num("0")
			return out, nil
		}, ErrCorrupt},
		"a fraction": {func(out *output) (*output, error) {
			out.Attributes[attrAt] = num("20.5")
			return out, nil
		}, ErrCorrupt},
		"beyond the maximum": {func(out *output) (*output, error) {
			out.Attributes[attrAt] = num("5000")
			return out, nil
		}, ErrCorrupt},
		"an older lease": {func(out *output) (*output, error) {
			out.Attributes[attrAt] = num("5")
			return out, nil
		}, ErrCounterMovedBack},
		"another count": {func(out *output) (*output, error) {
			out.Attributes[attrN] = num("7")
			return out, nil
		}, ErrCorrupt},
		"another lease": {func(out *output) (*output, error) {
			out.Attributes[attrTok] = str("x")
			return out, nil
		}, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			bad := false
			w := &wrapper{Client: client, update: func(next func() (*output, error)) (*output, error) {
				out, err := next()
				if !bad || err != nil {
					return out, err
				}
				bad = false
				return c.reply(out)
			}}
			a := newTest(t, tableOn(t, w), fixed(5), createMissing, func(o *Options) {
				o.rand = func() float64 { return 0 }
			}, patient)
			s := sequenceOf(t, a, "s", MaxValue(1000))
			ids := make([]int64, 5)
			if err := s.Fill(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			bad = true
			id, err := s.Next(t.Context())
			switch {
			case c.class == nil && (err != nil || id != 6):
				t.Errorf("got %d, %v, want 6", id, err)
			case c.class != nil && !errors.Is(err, c.class):
				t.Errorf("got %d, %v, want %v", id, err, c.class)
			}
			forgive(s)
			if id, err = s.Next(t.Context()); err != nil || id < 7 {
				t.Errorf("after that: %d, %v", id, err)
			}
			if c.class == nil && s.Stats().Recovered != 1 {
				t.Errorf("%+v", s.Stats())
			}
		})
	}
}

// A meter asks for the capacity that each write consumes.
type meter struct {
	*dynamodb.Client
	mu     sync.Mutex
	writes []float64
}

func (m *meter) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, optFns ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.UpdateItem(ctx, in, optFns...)
	if err == nil && out.ConsumedCapacity != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.writes = append(m.writes, aws.ToFloat64(out.ConsumedCapacity.CapacityUnits))
	}
	return out, err
}

func TestALeaseIsOneWriteUnitWhateverItsSize(t *testing.T) {
	d, ok := stores()[1].open(t).backend.(*dynamo)
	if !ok {
		t.Fatal("the second store is no table")
	}
	const far = math.MaxInt64
	for name, c := range map[string]struct {
		key    string
		opts   func(*TableOptions)
		blocks []int64
		cs     []Clause
	}{
		"plain": {"s", nil, []int64{1, 100, 1 << 40}, nil},
		"the longest": {
			strings.Repeat("k", 255),
			func(o *TableOptions) {
				o.KeyAttribute, o.CounterAttribute = strings.Repeat("e", 64), strings.Repeat("l", 64)
				o.Rename = map[string]string{attrTok: strings.Repeat("t", 18), attrAt: strings.Repeat("a", 8)} // 210 bytes in all
			},
			[]int64{1, 100, 1 << 20},
			[]Clause{StartWith(far - (1 << 50)), IncrementBy(1 << 20), MinValue(math.MinInt64), MaxValue(far), NoCycle()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &meter{Client: d.client.(*dynamodb.Client)}
			optFns := []func(*TableOptions){func(*TableOptions) {}}
			if c.opts != nil {
				optFns = append(optFns, c.opts)
			}
			store := tableOn(t, m, optFns...)
			for _, n := range c.blocks {
				a := must(New(store, fixed(n), createMissing, func(o *Options) { o.forfeit = true }))
				s := sequenceOf(t, a, c.key)
				if n == c.blocks[0] {
					if err := a.Create(t.Context(), c.key, c.cs...); err != nil {
						t.Fatal(err)
					}
				}
				must(s.Next(t.Context()))
				if err := a.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if len(m.writes) != 1+len(c.blocks) {
				t.Errorf("%d writes for a Create and %d leases", len(m.writes), len(c.blocks))
			}
			for _, units := range m.writes {
				if units != 1 {
					t.Errorf("a write took %v units", units)
				}
			}
		})
	}
}

func TestAttributesMayHaveReservedWordsForNames(t *testing.T) {
	for _, st := range stores()[1:] {
		t.Run(st.name, func(t *testing.T) {
			client := st.open(t).backend.(*dynamo).client
			store := tableOn(t, client, func(o *TableOptions) {
				o.KeyAttribute, o.CounterAttribute = "name", "count"
				o.Rename = map[string]string{attrAt: "value", attrN: "size", attrTok: "token", attrVer: "a.b", attrDef: "values", attrTune: "#x", attrFrom: ":y", attrV: "key"}
			})
			a := newTest(t, store, fixed(2), createMissing)
			s := sequenceOf(t, a, "s", MaxValue(100))
			ids := make([]int64, 5)
			if err := s.Fill(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			allFromTo(t, 1, 5, ids)
			if err := a.Restart(t.Context(), "s", 50); err != nil {
				t.Fatal(err)
			}
			if id := must(s.Next(t.Context())); id != 50 {
				t.Errorf("after Restart at 50: %d", id)
			}
			out, err := client.(*dynamodb.Client).GetItem(t.Context(), &dynamodb.GetItemInput{
				TableName: &store.backend.(*dynamo).name, Key: map[string]types.AttributeValue{"name": str("s")},
			})
			if err != nil || out.Item["count"] == nil || out.Item["value"] == nil || out.Item[attrLast] != nil || out.Item[attrAt] != nil {
				t.Errorf("the item is %v, %v", out.Item, err)
			}
		})
	}
}

// Memory is what tests of users run on: it must do what a table does.
func TestMemoryDoesWhatATableDoes(t *testing.T) {
	table := stores()[1].open(t).backend
	const steps = 300
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		mem := Memory().backend
		key := fmt.Sprint("s", seed)
		past := []*item{{key: key}}
		kinds := map[string]int{}
		for step := range steps {
			kind, ch := randomChange(r, key, past)
			want, wantErr := mem.apply(t.Context(), ch)
			got, gotErr := table.apply(t.Context(), ch)
			if !reflect.DeepEqual(want, got) || outcome(ch, wantErr) != outcome(ch, gotErr) {
				t.Fatalf("seed %d, step %d, %s %+v:\nmemory: %s, %v\ntable:  %s, %v", seed, step, kind, ch,
					show2(want), outcome(ch, wantErr), show2(got), outcome(ch, gotErr))
			}
			if a, ok := errors.AsType[*conditionError](wantErr); ok {
				if b, _ := errors.AsType[*conditionError](gotErr); !reflect.DeepEqual(a.old, b.old) {
					t.Fatalf("seed %d, step %d, %s: old items differ:\n%s\n%s", seed, step, kind, show2(a.old), show2(b.old))
				}
				kind += " refused"
			}
			kinds[kind]++
			if want != nil {
				past = append(past, want)
			}
		}
		for _, kind := range []string{"lease", "lease refused", "give back", "give back refused", "wrap", "restart", "alter", "follow", "set"} {
			if kinds[kind] == 0 {
				t.Errorf("seed %d: no %s among %v", seed, kind, kinds)
			}
		}
	}
}

func show2(it *item) string {
	if it == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s tok %.4s born %.4s ver %.4s v %d def %v", numbers(it), it.tok, it.born, it.ver, it.v, it.definition())
}

func outcome(ch *change, err error) string {
	switch {
	case err == nil:
		return "applied"
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	}
	if _, ok := errors.AsType[*conditionError](err); ok {
		return fmt.Sprint("refused for ", verdictOf(ch, err))
	}
	return err.Error()
}

// randomChange makes a change of any kind, of the newest item or of one of the
// past, near to what fits and not always within it.
func randomChange(r *rand.Rand, key string, past []*item) (string, *change) {
	it := past[len(past)-1]
	if r.IntN(4) == 0 {
		it = past[r.IntN(len(past))]
	}
	if len(past) == 1 || r.IntN(40) == 0 {
		c := []Clause{
			StartWith(-3), StartWith(math.MinInt64), MinValue(math.MinInt64), MinValue(-10), MaxValue(10), MaxValue(math.MaxInt64),
			IncrementBy(3), IncrementBy(-2), IncrementBy(math.MaxInt64), IncrementBy(math.MinInt64), Cycle(), Cycle(),
		}
		r.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
		for c = c[:r.IntN(5)]; gather(c).checkCreate("") != nil; c = c[1:] {
		}
		return "create", createOf(key, c...)
	}
	d := it.definition()
	anywhere := []int64{d.Min, d.Max, d.Start, d.Min/2 + d.Max/2, d.Max - 1, d.Min + 1}
	place := anywhere[r.IntN(len(anywhere))]
	switch r.IntN(10) {
	case 0:
		return "restart", &change{key: key, token: randomID(), base: it, clear: &place, epoch: it.epoch + 1, present: true, absent: true, born: randomID()}
	case 1:
		ch := &change{key: key, token: randomID(), base: it, set: &place, present: true, absent: it.lastID == nil, born: randomID(), atLimit: &place}
		if d.ascending() {
			ch.hi = bigOf(place)
		} else {
			ch.lo = bigOf(place)
		}
		return "set", ch
	case 2, 3:
		if it.lastID != nil && it.tok != "" {
			low := d.minus(*it.lastID, 1)
			if !low.IsInt64() || !d.contains(low.Int64()) {
				low = bigOf(place)
			}
			return "give back", giveBackOf(it, low.Int64())
		}
	case 4:
		def := clauses{increment: &d.Increment, min: new(int64(-100)), max: new(int64(100)), start: new(int64(r.IntN(200) - 100)), cycle: new(r.IntN(2) == 0)}
		if d.Increment > 100 || d.Increment < -100 {
			def.increment = new(int64(7))
		}
		ch := &change{key: key, token: randomID(), base: it, def: &def, ver: randomID(), fence: r.IntN(2) == 0, present: it.lastID != nil, absent: it.lastID == nil, lo: bigOf(-100), hi: bigOf(100)}
		if it.lastID == nil && r.IntN(2) == 0 {
			ch.pin = new(def.definition().Start)
		}
		if it.lastID != nil && r.IntN(2) == 0 {
			def.increment = new(-*def.increment)
			ch.follow = true
			return "follow", ch
		}
		return "alter", ch
	case 5:
		if d.Cycle {
			n := min(1+r.Int64N(3), int64(min(d.roomFrom(d.first()), math.MaxInt64)))
			return "wrap", wrapOf(it, n)
		}
	}
	n := 1 + r.Int64N(3)
	if room := it.room(); r.IntN(3) == 0 && room > 0 && room < 1<<62 {
		n = int64(room)
	}
	if !d.delta(n).IsInt64() || !d.minus(d.Max, -n).IsInt64() && r.IntN(2) == 0 {
		n = 1
	}
	return "lease", leaseOf(it, n)
}
