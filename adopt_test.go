package ddbseq

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// An oldTable is one that another generator made: it counts with a plain
// UpdateItem and knows of nothing but its two attributes.
type oldTable struct {
	client       *dynamodb.Client
	name         string
	key, counter string
}

// adopted returns such a table, whose attribute names are reserved words, and
// the Store that it is to us.
func adopted(t testing.TB, kind emulator.Kind) (*oldTable, *Store) {
	t.Helper()
	o := &oldTable{client: testClient(emulator.Endpoint(t, kind)), key: "name", counter: "value"}
	s := tableOn(t, o.client, func(opts *TableOptions) { opts.KeyAttribute, opts.CounterAttribute = o.key, o.counter })
	o.name = s.backend.table()
	return o, s
}

func (o *oldTable) keyOf(key string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{o.key: &types.AttributeValueMemberS{Value: key}}
}

// take is the published formula: it takes the n numbers that end with what it
// returns.
func (o *oldTable) take(ctx context.Context, key string, n int64) (last int64, err error) {
	out, err := o.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &o.name, Key: o.keyOf(key),
		UpdateExpression:         aws.String("SET #v = if_not_exists(#v, :zero) + :n"),
		ExpressionAttributeNames: map[string]string{"#v": o.counter},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":zero": &types.AttributeValueMemberN{Value: "0"},
			":n":    &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)},
		},
		ReturnValues: types.ReturnValueUpdatedNew,
	})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(out.Attributes[o.counter].(*types.AttributeValueMemberN).Value, 10, 64)
}

// attributes returns the names of the item's attributes, in order.
func (o *oldTable) attributes(t testing.TB, key string) []string {
	t.Helper()
	out, err := o.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &o.name, Key: o.keyOf(key), ConsistentRead: aws.Bool(true)})
	ok(t, err)
	return slices.Sorted(maps.Keys(out.Item))
}

var bothEmulators = []emulator.Kind{emulator.Dynoxide, emulator.Dynalite}

func TestAnAdoptedItemGoesOnFromWhereItStands(t *testing.T) {
	for _, kind := range bothEmulators {
		t.Run(string(kind), func(t *testing.T) {
			ctx := t.Context()
			old, s := adopted(t, kind)
			a := newTest(t, s, strict(10))
			if _, err := old.take(ctx, "orders", 41); err != nil {
				t.Fatal(err)
			}
			d := must(a.Describe(ctx, "orders"))
			if want := (Description{Name: "orders", Definition: Definition{1, 1, 1, maxInt, false}, LastID: 41, Called: true, Next: 42}); position(d) != want {
				t.Errorf("%+v, want %+v", d, want)
			}
			want(t, a, "orders", 42, 43)
			if got, want := old.attributes(t, "orders"), []string{attrAt, attrBorn, attrN, "name", attrTok, "value"}; !slices.Equal(got, want) {
				t.Errorf("a lease left %v, want %v: no definition until somebody alters it", got, want)
			}
			// Code may say what it is, and what it is not.
			q := sequenceOf(t, newTest(t, s, strict(10)), "orders", StartWith(1), IncrementBy(1), MinValue(1), NoMaxValue(), NoCycle())
			if id, err := q.Next(ctx); id != 52 || err != nil {
				t.Error(id, err)
			}
			_, err := sequenceOf(t, newTest(t, s, strict(10)), "orders", IncrementBy(5)).Next(ctx)
			wantErr(t, err, ErrDefinitionMismatch, "INCREMENT is 5 in the code and 1 in the table")
			ok(t, a.Create(ctx, "orders"))
			if got := old.attributes(t, "orders"); slices.Contains(got, attrDef) {
				t.Errorf("Create of what is there left %v", got)
			}
			if now, err := a.Advance(ctx, "orders", 100); now != 100 || err != nil {
				t.Error(now, err)
			}
			ok(t, a.Alter(ctx, "orders", IncrementBy(5)))
			for _, attr := range []string{attrDef, attrVer, attrV} {
				if got := old.attributes(t, "orders"); !slices.Contains(got, attr) {
					t.Errorf("%v after an ALTER, want %s among them", got, attr)
				}
			}
			want(t, a, "orders", 105, 110)
		})
	}
}

func TestAnAdoptedItemIsServedFromOneToTheEnd(t *testing.T) {
	for _, kind := range bothEmulators {
		t.Run(string(kind), func(t *testing.T) {
			ctx := t.Context()
			_, s := adopted(t, kind)
			a := newTest(t, s, fixed(10))
			put := func(key string, v int64) { byHand(t, s, key, map[string]*int64{attrLast: &v}) }
			put("zero", 0)
			want(t, a, "zero", 1)
			put("nearly", maxInt-2)
			want(t, a, "nearly", maxInt-1, maxInt)
			_, err := a.Next(ctx, "nearly")
			wantErr(t, err, ErrExhausted, "maximum 9223372036854775807")
			put("before", -1)
			_, err = a.Next(ctx, "before")
			wantErr(t, err, ErrCorrupt, "-1")
			byHand(t, s, "bare", nil) // a key and nothing else
			want(t, a, "bare", 1)
			// What is given back leaves the item as its generator knows it.
			ok(t, a.Refresh(ctx, "zero"))
			if it := must(s.backend.get(ctx, "zero")); it.lastID == nil || *it.lastID != 1 || it.from != nil {
				t.Errorf("lastID %s, from %s after a give-back, want 1 and absent", text(it.lastID), text(it.from))
			}
			put("unused", 0)
			ok(t, a.Warm(ctx, "unused"))
			ok(t, a.Refresh(ctx, "unused"))
			if it := must(s.backend.get(ctx, "unused")); it.lastID == nil || *it.lastID != 0 || it.from != nil {
				t.Errorf("lastID %s, from %s after all was given back, want 0 and absent", text(it.lastID), text(it.from))
			}
			want(t, a, "unused", 1)
		})
	}
}

func TestAnOldGeneratorMayRunBesideUs(t *testing.T) {
	for _, kind := range bothEmulators {
		t.Run(string(kind), func(t *testing.T) {
			ctx := t.Context()
			old, s := adopted(t, kind)
			if _, err := old.take(ctx, "s", 1); err != nil {
				t.Fatal(err)
			}
			ids := make([][]int64, 4)
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range int64(40) {
					n := i%5 + 1
					last, err := old.take(ctx, "s", n)
					if err != nil {
						t.Error(err)
						return
					}
					for id := last - n + 1; id <= last; id++ {
						ids[3] = append(ids[3], id)
					}
				}
			})
			for i := range 3 {
				a := newTest(t, s, fixed(int64(3+i)))
				wg.Go(func() {
					for j := range 50 {
						if j%10 == 9 {
							if err := a.Refresh(ctx, "s"); err != nil { // gives back, unless somebody came after
								t.Error(err)
							}
						}
						id, err := a.Next(ctx, "s")
						if err != nil {
							t.Error(err)
							return
						}
						ids[i] = append(ids[i], id)
					}
				})
			}
			wg.Wait()
			if n := allDifferent(t, ids...); n != 3*50+40/5*(1+2+3+4+5) {
				t.Errorf("%d IDs", n)
			}
			for i, l := range ids {
				if !slices.IsSorted(l) || l[0] < 2 {
					t.Errorf("writer %d: not in order, or in what was had before", i)
				}
			}
		})
	}
}

func TestALostReplyBesideAForeignWriterIsRecovered(t *testing.T) {
	for _, kind := range bothEmulators {
		t.Run(string(kind), func(t *testing.T) {
			ctx := t.Context()
			old, s := adopted(t, kind)
			if last, err := old.take(ctx, "s", 1000); last != 1000 || err != nil {
				t.Fatal(last, err)
			}
			// Our lease is applied and its reply lost; then the other one takes 150.
			a := newTest(t, losing(s, func() {
				if last, err := old.take(ctx, "s", 150); last != 1160 || err != nil {
					t.Error(last, err)
				}
			}), strict(10))
			want(t, a, "s", 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010)
			if st := sequenceOf(t, a, "s").Stats(); st.Recovered != 1 || st.Leases != 1 || st.Leased != 10 {
				t.Errorf("%+v, want one lease, recovered", st)
			}
			want(t, a, "s", 1161)
		})
	}
}

func TestATableWithAnotherKeyIsRefusedWithBothSchemas(t *testing.T) {
	client := testClient(emulator.Endpoint(t, emulator.Dynoxide))
	for _, c := range []struct {
		name string
		key  map[string]types.ScalarAttributeType
		sort string
		want string
	}{
		{"a sort key", map[string]types.ScalarAttributeType{"pk": "S", "sk": "N"}, "sk", "pk (S, partition key) and sk (N, sort key)"},
		{"our key and a sort key", map[string]types.ScalarAttributeType{attrKey: "S", "sk": "S"}, "sk", "entityType (S, partition key) and sk (S, sort key)"},
		{"another name", map[string]types.ScalarAttributeType{"id": "S"}, "", "id (S, partition key)"},
		{"another type", map[string]types.ScalarAttributeType{attrKey: "N"}, "", "entityType (N, partition key)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			in := &dynamodb.CreateTableInput{
				TableName: aws.String(fmt.Sprintf("schema.%d", tables.Add(1))), BillingMode: types.BillingModePayPerRequest,
			}
			for attr, kind := range c.key {
				role := types.KeyTypeHash
				if attr == c.sort {
					role = types.KeyTypeRange
				}
				in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: &attr, AttributeType: kind})
				in.KeySchema = append(in.KeySchema, types.KeySchemaElement{AttributeName: &attr, KeyType: role})
			}
			slices.SortFunc(in.KeySchema, func(a, b types.KeySchemaElement) int { // the partition key comes first
				return cmp.Compare(a.KeyType, b.KeyType)
			})
			_, err := client.CreateTable(ctx, in)
			ok(t, err)
			a := newTest(t, DynamoDB(client, *in.TableName), strict(1), createMissing)
			const ours = "entityType (S, partition key)"
			_, err = a.Next(ctx, "s")
			wantErr(t, err, ErrSchema, c.want, ours, *in.TableName)
			_, err = a.Describe(ctx, "s")
			wantErr(t, err, ErrSchema, c.want, ours)
			wantErr(t, a.Create(ctx, "s"), ErrSchema, c.want, ours)
			wantErr(t, a.CreateTable(ctx), ErrSchema, c.want, ours)
		})
	}
}
