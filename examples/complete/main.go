// Complete is the program of the README: it leases IDs from a DynamoDB table.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/ddbseq/ddbseq"
)

func main() {
	ctx := context.Background()
	seqs, err := ddbseq.Open(ctx, "sequences") // credentials and region as the AWS CLI finds them
	if err != nil {
		log.Fatal(err)
	}
	defer seqs.Close(ctx)

	if err := seqs.Create(ctx, "orders", ddbseq.StartWith(1000)); err != nil { // once; again is fine
		log.Fatal(err)
	}
	id, err := seqs.Next(ctx, "orders") // in place of nextval('orders')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
