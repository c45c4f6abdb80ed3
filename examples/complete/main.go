// Complete is the program of the README: it leases IDs from a DynamoDB table.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ddbseq/ddbseq"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // calls wait for a table out of reach as long as ctx lets them
	defer cancel()
	seqs, err := ddbseq.Open(ctx, "sequences") // credentials and region as the AWS CLI finds them
	if err != nil {
		return err
	}
	defer func() { // gives back what is left; ctx may have ended by then
		err = errors.Join(err, seqs.Close(context.Background()))
	}()

	if err := seqs.Create(ctx, "orders", ddbseq.StartWith(1000)); err != nil { // once; again is fine
		return err
	}
	id, err := seqs.Next(ctx, "orders") // in place of nextval('orders')
	if err != nil {
		return err
	}
	fmt.Println(id)
	return nil
}
