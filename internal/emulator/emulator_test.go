//go:build unix

package emulator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

var kinds = []emulator.Kind{emulator.Dynoxide, emulator.Dynalite}

// helperEnv makes the test binary run as a program that starts a server of the
// named kind, prints its URL and waits for its standard input to end.
const helperEnv = "DDBSEQ_EMULATOR_HELPER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(helperEnv); kind != "" {
		s, err := emulator.Start(context.Background(), emulator.Kind(kind))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.Endpoint())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // without Stop, on purpose
	}
	code := m.Run()
	if err := emulator.StopAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// start runs a server for one test, or skips the test.
func start(t *testing.T, kind emulator.Kind, opts ...emulator.Option) *emulator.Server {
	t.Helper()
	s, err := emulator.Start(t.Context(), kind, opts...)
	if errors.Is(err, emulator.ErrNotInstalled) && os.Getenv(emulator.RequireEnv) != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func client(endpoint string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(endpoint),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
		Retryer: aws.NopRetryer{},
	})
}

const table = "sequences"

func createTable(t *testing.T, db *dynamodb.Client, name string) {
	t.Helper()
	_, err := db.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            aws.String(name),
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := dynamodb.NewTableExistsWaiter(db, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 10*time.Millisecond, 50*time.Millisecond
	})
	if err := w.Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String(name)}, 10*time.Second); err != nil {
		t.Fatal(err)
	}
}

func key(name string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: name}}
}

// add raises the counter of an item and returns its new value.
func add(t *testing.T, db *dynamodb.Client, name string) string {
	t.Helper()
	out, err := db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName:                 aws.String(table),
		Key:                       key(name),
		UpdateExpression:          aws.String("ADD n :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
		ReturnValues:              types.ReturnValueAllNew,
	})
	if err != nil {
		t.Fatal(err)
	}
	n, ok := out.Attributes["n"].(*types.AttributeValueMemberN)
	if !ok {
		t.Fatalf("no number in %v", out.Attributes)
	}
	return n.Value
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServerServesAndStops(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			began := time.Now()
			s := start(t, kind)
			t.Logf("answered after %v", time.Since(began).Round(time.Millisecond))
			db := client(s.Endpoint())
			createTable(t, db, table)
			_, err := db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(table), Item: map[string]types.AttributeValue{
				"pk": &types.AttributeValueMemberS{Value: "a"},
				"n":  &types.AttributeValueMemberN{Value: "9007199254740992"},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := add(t, db, "a"), "9007199254740993"; got != want {
				t.Errorf("2^53 + 1 = %s, want %s", got, want)
			}

			pid := s.PID()
			if !alive(pid) {
				t.Fatalf("process %d is not there", pid)
			}
			began = time.Now()
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
			t.Logf("stopped after %v", time.Since(began).Round(time.Millisecond))
			if alive(pid) {
				t.Errorf("process %d is left after Stop", pid)
			}
			if err := s.Stop(); err != nil {
				t.Errorf("second Stop: %v", err)
			}
			if s.Output() == "" {
				t.Error("no output kept")
			}
		})
	}
}

func TestDataOnDiskSurvivesAKill(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := start(t, kind, emulator.WithDBPath(filepath.Join(t.TempDir(), "db")))
			endpoint := s.Endpoint()
			db := client(endpoint)
			createTable(t, db, table)
			add(t, db, "a")

			s.Kill()
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.Endpoint() != endpoint {
				t.Errorf("endpoint moved from %s to %s", endpoint, s.Endpoint())
			}
			if got := add(t, db, "a"); got != "2" {
				t.Errorf("counter after the restart = %s, want 2", got)
			}
		})
	}
}

func TestRestartWithoutDiskLosesData(t *testing.T) {
	s := start(t, emulator.Dynalite)
	createTable(t, client(s.Endpoint()), table)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := client(s.Endpoint()).ListTables(t.Context(), &dynamodb.ListTablesInput{})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.TableNames) != 0 {
		t.Errorf("tables after the restart: %v", out.TableNames)
	}
}

func TestRestartReportsAPortInUse(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := start(t, kind)
			s.Kill()
			l, err := net.Listen("tcp4", strings.TrimPrefix(s.Endpoint(), "http://"))
			if err != nil {
				t.Skip("the port is already somebody else's:", err)
			}
			defer l.Close()
			if err := s.Restart(t.Context()); err == nil {
				t.Fatal("Restart succeeded on a port in use")
			} else if !strings.Contains(err.Error(), "in use") {
				t.Errorf("error does not carry the server's output: %v", err)
			}
			if s.PID() != 0 {
				t.Error("a process is left")
			}
		})
	}
}

func TestStopReportsACrash(t *testing.T) {
	s := start(t, emulator.Default())
	pid := s.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the process to be waited for", func() bool { return !alive(pid) })
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Stop = %v, want an error that says how the process ended", err)
	}
}

func TestServerDiesWithItsParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux has a parent-death signal")
	}
	kind := start(t, emulator.Default()).Kind()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), exe)
	parent.Env = append(os.Environ(), helperEnv+"="+string(kind))
	parent.Stderr = os.Stderr
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimPrefix(strings.TrimSpace(line), "http://")
	if !answers(addr) {
		t.Fatalf("nothing listens on %s", addr)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // says "killed"
	await(t, "the server to die with its parent", func() bool { return !answers(addr) })
}

func answers(addr string) bool {
	c, err := net.Dial("tcp4", addr)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// await polls for something that no channel tells about: another process.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
