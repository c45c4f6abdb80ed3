package ddbseq_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq"
)

func Example() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory()) // a test's store; see Open and DynamoDB
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)

	for range 3 {
		id, err := seqs.Next(ctx, "orders")
		if err != nil {
			panic(err)
		}
		fmt.Println(id)
	}
	// Output:
	// 1
	// 2
	// 3
}

func ExampleDynamoDB_adopt() {
	client := dynamodb.New(dynamodb.Options{Region: "eu-central-1"})
	store := ddbseq.DynamoDB(client, "counters", func(o *ddbseq.TableOptions) {
		o.KeyAttribute, o.CounterAttribute = "name", "value"
	})
	seqs, err := ddbseq.New(store)
	fmt.Println(seqs != nil, err)
	// Output: true <nil>
}

func ExampleAllocator_Sequence() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory())
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)

	tickets, err := seqs.Sequence("tickets", ddbseq.StartWith(1000), ddbseq.IncrementBy(5), ddbseq.MaxValue(1010))
	if err != nil {
		panic(err)
	}
	for {
		id, err := tickets.Next(ctx)
		if errors.Is(err, ddbseq.ErrExhausted) {
			fmt.Println("sold out")
			return
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(id)
	}
	// Output:
	// 1000
	// 1005
	// 1010
	// sold out
}

func ExampleAllocator_Alter() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory())
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)
	if err := seqs.Create(ctx, "orders"); err != nil {
		panic(err)
	}

	err = seqs.Alter(ctx, "orders", ddbseq.Tune(func(t *ddbseq.Tuning) { t.Runway = new(time.Hour) })) // all processes
	fmt.Println(err)
	err = seqs.Alter(ctx, "orders", ddbseq.DailyLimit(1_000_000), ddbseq.DailyLimitZone("Europe/Berlin"))
	fmt.Println(err)
	err = seqs.Alter(ctx, "orders", ddbseq.Pause()) // and Resume
	fmt.Println(err)
	d, err := seqs.Describe(ctx, "orders")
	fmt.Println(*d.Tuning.Runway, d.DailyLimit, d.Paused, err)
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// 1h0m0s 1000000 true <nil>
}

func ExampleSequence_Reserve() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory())
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)
	orders, err := seqs.Sequence("orders")
	if err != nil {
		panic(err)
	}

	block, err := orders.Reserve(ctx, 1000)
	if err != nil {
		panic(err)
	}
	fmt.Println(block.First, block.Last())
	// Output: 1 1000
}

func ExampleAllocator_Advance() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory())
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)
	if err := seqs.Create(ctx, "orders"); err != nil {
		panic(err)
	}

	// After a restore or an import: nothing up to the highest ID of the data.
	last, err := seqs.Advance(ctx, "orders", 250)
	if err != nil {
		panic(err)
	}
	id, err := seqs.Next(ctx, "orders")
	if err != nil {
		panic(err)
	}
	fmt.Println(last, id)
	// Output: 250 251
}

func ExampleHooks() {
	ctx := context.Background()
	leases := make(chan ddbseq.LeaseEvent, 1)
	seqs, err := ddbseq.New(ddbseq.Memory(), func(o *ddbseq.Options) {
		o.Hooks.Lease = func(e ddbseq.LeaseEvent) { leases <- e }
		o.Hooks.Alert = func(a ddbseq.Alert) { fmt.Println(a.Sequence, a.Kind, a.Firing, a.Text) }
	})
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)
	if _, err := seqs.Next(ctx, "orders"); err != nil {
		panic(err)
	}
	e := <-leases
	fmt.Println(e.Sequence, e.Outcome, e.Block.First, e.Block.Last(), e.Mandatory)
	// Output: orders ok 1 100 true
}

func ExampleAllocator_Check() {
	ctx := context.Background()
	seqs, err := ddbseq.New(ddbseq.Memory())
	if err != nil {
		panic(err)
	}
	defer seqs.Close(ctx)

	report, err := seqs.Check(ctx) // at start, or as a health check
	fmt.Println(len(report.Errors), len(report.Warnings), err)
	// Output: 0 0 <nil>
}
