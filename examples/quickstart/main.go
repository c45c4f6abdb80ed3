// Quickstart prints IDs of a sequence, one a line, on stdout and a summary on
// stderr. Without flags it runs on a store in its own memory; with -table it
// leases from a DynamoDB table.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	n := flags.Int("n", 10, "how many IDs to print")
	name := flags.String("name", "quickstart", "name of the sequence")
	table := flags.String("table", "", "DynamoDB table (default: a store in memory)")
	endpoint := flags.String("endpoint", "", "URL of a DynamoDB-compatible server (default: AWS)")
	region := flags.String("region", "", "AWS region (default: that of the environment)")
	create := flags.Bool("create", false, "make the table if it is missing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("quickstart: unexpected argument %q", flags.Arg(0))
	}
	if *table == "" && (*endpoint != "" || *region != "" || *create) {
		return errors.New("quickstart: -endpoint, -region and -create need -table")
	}

	store := ddbseq.Memory()
	if *table != "" {
		client, err := dynamoDB(ctx, *endpoint, *region)
		if err != nil {
			return err
		}
		store = ddbseq.DynamoDB(client, *table)
	}
	// CreateMissing spares this program a separate step; an application makes
	// its sequences once, with Create.
	seqs, err := ddbseq.New(store, func(o *ddbseq.Options) { o.CreateMissing = true })
	if err != nil {
		return err
	}
	defer func() {
		// ctx may have ended; what is left in memory is to be given back.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, seqs.Close(ctx))
	}()
	if *create {
		if err := seqs.CreateTable(ctx); err != nil {
			return err
		}
	}

	start := time.Now()
	out := bufio.NewWriter(os.Stdout)
	for range *n {
		id, err := seqs.Next(ctx, *name)
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		fmt.Fprintln(out, id)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d IDs of sequence %q in %v\n", *n, *name, time.Since(start).Round(time.Microsecond))
	return nil
}

func dynamoDB(ctx context.Context, endpoint, region string) (*dynamodb.Client, error) {
	var opts []func(*config.LoadOptions) error
	if region != "" {
		opts = append(opts, config.WithRegion(region))
	}
	if endpoint != "" {
		// A server on this machine asks for a region and a signature, but not for
		// whose.
		opts = append(opts, config.WithDefaultRegion("us-east-1"),
			config.WithCredentialsProvider(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
			})))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("quickstart: loading the AWS configuration: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("quickstart: no AWS region; use -region or set AWS_REGION")
	}
	return dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	}), nil
}
