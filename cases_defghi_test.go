package ddbseq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Faults that users of other libraries have reported, by the number and place
// they are known under here. Those that a test elsewhere is about:
//
//	restore, store lowered (yugabyte-db#16137)       TestARestoreUnderARunningProcessIsRefused
//	item missing (pd#3322)                           TestADeletedItemIsNotMadeAnew
//	overlapping blocks (vitess#3116)                 TestInterleavings, proof/
//	release of the older lease (badger#1280)         TestTwoClosersInTheOrderOfTheirLeasesAndTheOther
//	Close twice, with Next (dcrdex#3217)             TestCloseRacesWithEverything
//	two loads in flight (tinyid#47)                  TestOutageIsMetWithOneBoundedRetryLoop
//	a failed load is taken for 0 (doris#43774)       TestWrongNumbersInAnAnswerAreRefused, TestEveryFaultOfTheWire
//	published before it is durable (doris#36421)     TestNoIDIsSeenBeforeTheAnswer
//	retry counts twice (dynamodb-atomic-counter#4)   TestLostRepliesCostNothing
//	missing error check (cadence#1249)               internal/mutants
//	permanent errors (dynamodb-autoincrement)        TestPermanentErrorsReachWaitersAtOnceAndEndByThemselves
//	lock over the round trip (hapi-fhir#8090)        TestNobodyWaitsWhileABlockIsLeft
//	waiters in an outage (uid-generator#42)          TestOutageIsMetWithOneBoundedRetryLoop
//	a caller's cancel (tidb#69067, matrixone#28246)  TestFirstWaiterCancelsAndTheOthersAreServed
//	leaks (tidb#48843)                               TestAThousandAllocatorsLeaveNothingBehind
//	shared retry quota (aws-sdk-go-v2#1665)          TestOurRetriesDoNotDrainTheQuotaOfASharedClient
//	codes that panic (noms#3535)                     TestEveryErrorCodeHasItsClass
//	emulators that drop a term (moto#3084)           TestEveryChangeDoesTheSameOnEveryStore
//	denied reads (graphile#100)                      TestDeniedReadsAreNoObstacle

// CASES 39: tidb#52680.
func TestCase39AdvanceAfterAnImport(t *testing.T) {
	b := Memory().backend
	a, other := another(t, b, 10, createMissing), another(t, b, 10)
	takeN(t, a, "s", 100)
	if at, err := a.Advance(t.Context(), "s", 250); err != nil || at != 250 {
		t.Fatal(at, err)
	}
	wantIDs(t, takeN(t, other, "s", 1), 251, 251)
	wantIDs(t, takeN(t, a, "s", 1), 261, 261)
}

// CASES 41: hazelcast#7051.
func TestCase41AStoreOutlivesItsAllocators(t *testing.T) {
	store := Memory()
	var all []int64
	for range 3 {
		a := must(New(store, fixed(10)))
		all = append(all, takeN(t, a, "s", 5)...)
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantIDs(t, all, 1, 15)
}

// CASES 52: spring-cloud-task#3375 and others. 20 pods, each restarted 10 times.
func TestCase52RollingRestartsWasteAtMostABlockForEachPod(t *testing.T) {
	const pods, restarts, block = 20, 10, 100
	b := Memory().backend
	create(t, b, "s")
	var all []int64
	var stats Stats
	fleet := make([]*Allocator, pods)
	for i := range fleet {
		fleet[i] = another(t, b, block)
	}
	for range restarts {
		for i, a := range fleet {
			all = append(all, takeN(t, a, "s", 7)...)
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			stats = stats.plus(a.Stats())
			fleet[i] = another(t, b, block)
		}
	}
	allDifferent(t, all)
	issued, last := int64(len(all)), lastOf(t, b, "s")
	if stats.Issued != issued || stats.Leased-stats.Returned-stats.Abandoned.Total() != issued {
		t.Errorf("the books: %+v", stats)
	}
	if last != issued { // one after the other, each gives back all
		t.Errorf("%d IDs reserved for %d issued", last, issued)
	}

	// All at once: only the newest block can be given back.
	ids := [][]int64{all}
	for _, a := range fleet {
		ids = append(ids, takeN(t, a, "s", 7))
	}
	for _, a := range fleet {
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	issued = int64(allDifferent(t, ids...))
	if wasted := lastOf(t, b, "s") - issued; wasted > pods*block {
		t.Errorf("%d IDs wasted", wasted)
	}
}

// CASES 55: spring-cloud-task#63.
func TestCase55BlocksOfOneAreOrderedAcrossProcesses(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		create(t, b, key)
		both := []*Allocator{another(t, b, 1), another(t, b, 1)}
		for i := range int64(10) {
			wantIDs(t, takeN(t, both[i%2], key, 1), i+1, i+1)
		}
	})
}

// CASES 56: juicefs#6569. IDs are not given back one by one.
func TestCase56NoMethodTakesAnIDBack(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[*Sequence](), reflect.TypeFor[*Allocator]()} {
		for m := range typ.Methods() {
			for _, verb := range []string{"Return", "Release", "GiveBack", "Put", "Free", "Recycle"} {
				if strings.HasPrefix(m.Name, verb) {
					t.Errorf("%v has %s", typ, m.Name)
				}
			}
		}
	}
}

// CASES 58: ecp-uid#1.
func TestCase58LeasesAreNoMoreThanNeeded(t *testing.T) {
	store, f := withFaults(Memory(), nil)
	a := newTest(t, store, createMissing, fixed(10))
	const workers, each = 64, 25
	ids := make([][]int64, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				id, err := a.Next(t.Context(), "s")
				if err != nil {
					t.Error(err)
					return
				}
				ids[w] = append(ids[w], id)
			}
		})
	}
	wg.Wait()
	allFromTo(t, 1, workers*each, ids...)
	// A waiting crowd gets its blocks in fewer, larger leases, never in more.
	if n := a.Stats().Leases; n > workers*each/10+1 || f.mostAtOnce("s") > 1 {
		t.Errorf("%d leases, %d at once", n, f.mostAtOnce("s"))
	}
}

// CASES 63: badger's Sequence.
func TestCase63EverySecondWriteFailsAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), func(op, _ string, call int) fault {
			if op == "UpdateItem" && call%2 == 0 {
				return fault{err: lost(), after: call%4 == 0}
			}
			return fault{}
		})
		both := []*Allocator{newTest(t, store, createMissing, fixed(3)), newTest(t, store, createMissing, fixed(4))}
		ids := make([][]int64, 2)
		var wg sync.WaitGroup
		for i, a := range both {
			wg.Go(func() {
				for len(ids[i]) < 200 {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					if id, err := a.Next(ctx, "s"); err == nil { // callers give up and come again
						ids[i] = append(ids[i], id)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		allDifferent(t, ids...)
		for _, mine := range ids {
			if !slices.IsSorted(mine) {
				t.Error("out of order")
			}
		}
	})
}

// CASES 73: Leaf#35.
func TestCase73ABurstOverASmallBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := withFaults(Memory(), slow(50*time.Millisecond))
		a := newTest(t, store, createMissing, func(o *Options) { o.MinBlock = 10 })
		const callers = 10_000
		var mu sync.Mutex
		var ids []int64
		var worst time.Duration
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				id, err := a.Next(ctx, "s")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				ids, worst = append(ids, id), max(worst, time.Since(began))
			})
		}
		wg.Wait()
		if allDifferent(t, ids) != callers || worst > 500*time.Millisecond {
			t.Errorf("%d IDs, the last after %v", len(ids), worst)
		}
	})
}

// CASES 76: titan#91. The wait is the caller's; the refill has its own patience.
func TestCase76AWaitOutlivesSlowAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, f := withFaults(Memory(), nil)
		a := newTest(t, store, createMissing, func(o *Options) { o.AttemptTimeout = 1300 * time.Millisecond })
		f.set(func(op, _ string, _ int) fault {
			if f.calls["s"] <= 3 {
				return fault{hang: true}
			}
			return fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if id, err := a.Next(ctx, "s"); err != nil || id != 1 {
			t.Fatal(id, err)
		}
	})
}

// recordingClient keeps what was asked of it and answers as a table would that
// holds a counter at 5,000,000,000.
type recordingClient struct {
	mu      sync.Mutex
	reads   []*dynamodb.GetItemInput
	updates []*dynamodb.UpdateItemInput
}

func (c *recordingClient) GetItem(_ context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = append(c.reads, in)
	return &dynamodb.GetItemOutput{Item: map[string]types.AttributeValue{
		"entityType": &types.AttributeValueMemberS{Value: "s"},
		"lastID":     &types.AttributeValueMemberN{Value: "5000000000"},
	}}, nil
}

func (c *recordingClient) UpdateItem(_ context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.updates = append(c.updates, in)
	if len(in.ExpressionAttributeValues) == 0 {
		return nil, errors.New("no values")
	}
	v := in.ExpressionAttributeValues
	return &dynamodb.UpdateItemOutput{Attributes: map[string]types.AttributeValue{
		"entityType": &types.AttributeValueMemberS{Value: "s"},
		"lastID":     &types.AttributeValueMemberN{Value: "5000000010"},
		"at":         &types.AttributeValueMemberN{Value: "5000000010"},
		"n":          v[":n"], "tok": v[":tok"], "born": v[":born"],
	}}, nil
}

// CASES 93 (goidgen): one write carries everything, reads are consistent, and
// numbers beyond 32 bits are numbers, also where int has 32 bits: CI builds and
// vets for GOARCH=386.
func TestCase93OneConsistentReadAndOneWrite(t *testing.T) {
	c := &recordingClient{}
	a := newTest(t, DynamoDB(c, "t"), fixed(10), func(o *Options) { o.forfeit = true })
	wantIDs(t, takeN(t, a, "s", 10), 5_000_000_001, 5_000_000_010)
	if len(c.reads) != 1 || c.reads[0].ConsistentRead == nil || !*c.reads[0].ConsistentRead {
		t.Errorf("reads: %+v", c.reads)
	}
	if len(c.updates) != 1 {
		t.Fatalf("%d writes", len(c.updates))
	}
	for _, attr := range []string{"#lastID", "#at", "#n", "#tok", "#born"} {
		if !strings.Contains(*c.updates[0].UpdateExpression, attr+" = ") {
			t.Errorf("the write does not set %s: %s", attr, *c.updates[0].UpdateExpression)
		}
	}
}

// CASES 99: aws-sdk-go#2394.
func TestCase99ABoundedLeaseOnAFreshCounter(t *testing.T) {
	onEvery(t, func(t *testing.T, b backend, key string) {
		a := another(t, b, 3, createMissing)
		if _, err := a.Sequence(key, MaxValue(10)); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, takeN(t, a, key, 10), 1, 10)
		if id, err := a.Next(t.Context(), key); !errors.Is(err, ErrExhausted) {
			t.Errorf("got %d, %v", id, err)
		}
	})
}

// CASES 101: dynamolock#120.
func TestCase101AMissingTableIsNamed(t *testing.T) {
	for _, st := range stores()[1:] {
		t.Run(st.name, func(t *testing.T) {
			client := st.open(t).backend.(*dynamo).client
			a := newTest(t, DynamoDB(client, "no.such.table"), createMissing)
			_, err := a.Next(t.Context(), "s")
			if !errors.Is(err, ErrTableNotFound) || !strings.Contains(fmt.Sprint(err), "no.such.table") {
				t.Errorf("got %v", err)
			}
			if notFound, ok := errors.AsType[*types.ResourceNotFoundException](err); !ok {
				t.Errorf("the SDK's error is hidden: %v", notFound)
			}
		})
	}
}

// CASES 108: IDs beyond 2^53 are rounded by consumers that read them as floats.
func TestCase108SafeIntegersEndAtTwoToThe53(t *testing.T) {
	a := another(t, Memory().backend, 10, createMissing)
	if _, err := a.Sequence("s", SafeInteger(), StartWith(MaxSafeInteger-2)); err != nil {
		t.Fatal(err)
	}
	ids := takeN(t, a, "s", 3)
	wantIDs(t, ids, MaxSafeInteger-2, MaxSafeInteger)
	for _, id := range ids {
		var back any
		if err := json.Unmarshal(fmt.Appendf(nil, "%d", id), &back); err != nil || int64(back.(float64)) != id {
			t.Errorf("%d comes back as %v", id, back)
		}
	}
	if id, err := a.Next(t.Context(), "s"); !errors.Is(err, ErrExhausted) {
		t.Errorf("got %d, %v", id, err)
	}
}
