package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// What is done without a library: one round trip for each ID. There is no
// network here and no disk, so that real ones are slower by far.
func roundTrips() []contender {
	return []contender{
		{name: "a round trip over TCP an ID", kind: today, open: openEcho},
		{name: "an UpdateItem an ID", kind: today, open: openUpdateItem},
	}
}

// openEcho is a counter behind a TCP server on this machine, with a connection
// for each goroutine: what nextval costs at the least.
func openEcho() (loop, func(), error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	var (
		wg    sync.WaitGroup
		last  atomic.Int64
		mu    sync.Mutex
		conns []net.Conn // both ends
	)
	add := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			add(c)
			wg.Go(func() {
				var b [8]byte
				for {
					if _, err := io.ReadFull(c, b[:]); err != nil {
						return
					}
					binary.BigEndian.PutUint64(b[:], uint64(last.Add(1)))
					if _, err := c.Write(b[:]); err != nil {
						return
					}
				}
			})
		}
	})
	var pool sync.Map // index of a worker → connection
	return func(w *worker, n int) error {
			have, ok := pool.Load(w.index)
			if !ok {
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					return err
				}
				add(c)
				pool.Store(w.index, c)
				have = c
			}
			c := have.(net.Conn)
			var b [8]byte
			for range n {
				if _, err := c.Write(b[:]); err != nil {
					return err
				}
				if _, err := io.ReadFull(c, b[:]); err != nil {
					return err
				}
				w.out = int64(binary.BigEndian.Uint64(b[:]))
			}
			return nil
		}, func() {
			l.Close()
			mu.Lock()
			for _, c := range conns {
				c.Close()
			}
			mu.Unlock()
			wg.Wait()
		}, nil
}

// newClient returns a client of the server at endpoint that keeps a connection
// for each of many goroutines.
func newClient(endpoint string) (*dynamodb.Client, func()) {
	t := &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256}
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: &endpoint,
		Region:       "us-east-1",
		HTTPClient:   &http.Client{Transport: t},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	}), t.CloseIdleConnections
}

// startDynoxide runs a server in memory. The error matches
// [emulator.ErrNotInstalled] where there is none.
func startDynoxide() (*emulator.Server, error) {
	return emulator.Start(context.Background(), emulator.Dynoxide)
}

func openUpdateItem() (loop, func(), error) {
	server, err := startDynoxide()
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	client, closeIdle := newClient(server.Endpoint())
	end := func() {
		closeIdle()
		_ = server.Stop() // it held nothing of use
	}
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: aws.String("counters"), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("name"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("name"), KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		end()
		return nil, nil, err
	}
	in := &dynamodb.UpdateItemInput{
		TableName:                 aws.String("counters"),
		Key:                       map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: "orders"}},
		UpdateExpression:          aws.String("ADD lastID :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
		ReturnValues:              types.ReturnValueUpdatedNew,
	}
	return func(w *worker, n int) error {
		for range n {
			out, err := client.UpdateItem(ctx, in)
			if err != nil {
				return err
			}
			id, ok := out.Attributes["lastID"].(*types.AttributeValueMemberN)
			if !ok {
				return errors.New("the reply has no lastID")
			}
			if w.out, err = strconv.ParseInt(id.Value, 10, 64); err != nil {
				return err
			}
		}
		return nil
	}, end, nil
}
