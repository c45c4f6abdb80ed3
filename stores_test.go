package ddbseq

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

func TestMain(m *testing.M) {
	code := m.Run()
	// Those of tests and examples that make their Allocators themselves.
	if left := leftBehind(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines were left behind:\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	if err := emulator.StopAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// testStore is a kind of store that tests can run on.
type testStore struct {
	name string
	open func(t testing.TB) *Store // an empty one; skips when there is none
}

// stores returns all kinds: what is true of one must be of all.
func stores() []testStore {
	out := []testStore{{"memory", func(testing.TB) *Store { return Memory() }}}
	for _, kind := range []emulator.Kind{emulator.Dynoxide, emulator.Dynalite} {
		out = append(out, testStore{string(kind), func(t testing.TB) *Store {
			t.Helper()
			return tableOn(t, testClient(emulator.Endpoint(t, kind)))
		}})
	}
	return out
}

// testClient returns a client of the server at endpoint.
func testClient(endpoint string, optFns ...func(*dynamodb.Options)) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(endpoint),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	}, optFns...)
}

var tables atomic.Int64

// tableOn makes a table of its own for a test.
func tableOn(t testing.TB, client UpdateItemAPI, optFns ...func(*TableOptions)) *Store {
	t.Helper()
	name := fmt.Sprintf("%.100s.%d.%d", strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", r) {
			return r
		}
		return '.'
	}, t.Name()), os.Getpid(), tables.Add(1))
	s := DynamoDB(client, name, optFns...)
	a := newTest(t, s)
	if err := a.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// newTest returns an Allocator that is closed at the end of the test, which then
// fails if it has left anything behind.
func newTest(t testing.TB, s *Store, optFns ...func(*Options)) *Allocator {
	t.Helper()
	if _, again := leakChecked.LoadOrStore(t, true); !again {
		// The first cleanup is the last to run: all Allocators are closed by then.
		t.Cleanup(func() { leakChecked.Delete(t); checkLeaks(t) })
	}
	a, err := New(s, optFns...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

var leakChecked sync.Map // of tests

// fixed makes every block n IDs, leased only when memory is empty.
func fixed(n int64) func(*Options) {
	return func(o *Options) { o.MinBlock, o.MaxBlock, o.Runway = n, n, 0 }
}

func createMissing(o *Options) { o.CreateMissing = true }
