package emulator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// The environment variables that [Endpoint] reads.
const (
	// EndpointEnv names a server that runs already, such as DynamoDB Local.
	EndpointEnv = "DDBSEQ_ENDPOINT"
	// RequireEnv set to 1 makes Endpoint fail tests that it would skip.
	RequireEnv = "DDBSEQ_REQUIRE_EMULATORS"
)

// TB is what [Endpoint] needs of a testing.TB. It is spelled out here so that
// programs can import this package without importing testing.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// shared holds the servers that the tests of one process have in common:
// starting one takes longer than most tests.
var shared struct {
	mu      sync.Mutex
	servers map[Kind]*Server
}

// Endpoint returns the URL of a server that all tests of the process share, so
// a test must use table names of its own. It starts the server with the first
// call for a kind; call [StopAll] from TestMain to stop it. When DDBSEQ_ENDPOINT
// is set, Endpoint returns that instead, whatever the kind.
//
// Endpoint skips the test when the server is not installed, unless
// DDBSEQ_REQUIRE_EMULATORS=1, which makes it fail.
func Endpoint(tb TB, kind Kind) string {
	tb.Helper()
	if url := os.Getenv(EndpointEnv); url != "" {
		tb.Logf("%s is set: using %s instead of %s", EndpointEnv, url, kind)
		return url
	}
	s, err := sharedServer(kind)
	switch {
	case err == nil:
		return s.Endpoint()
	case errors.Is(err, ErrNotInstalled) && os.Getenv(RequireEnv) != "1":
		tb.Skipf("needs %s: %v", kind, err)
	default:
		tb.Fatalf("%s: %v", kind, err)
	}
	return "" // not reached with a testing.TB
}

func sharedServer(kind Kind) (*Server, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.servers[kind]; s != nil {
		return s, nil
	}
	s, err := Start(context.Background(), kind)
	if err != nil {
		return nil, err
	}
	if shared.servers == nil {
		shared.servers = make(map[Kind]*Server)
	}
	shared.servers[kind] = s
	return s, nil
}

// StopAll stops the servers that [Endpoint] started. Call it from TestMain,
// after m.Run and before any check for leaked goroutines.
func StopAll() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs error
	for kind, s := range shared.servers {
		if err := s.Stop(); err != nil {
			errs = errors.Join(errs, fmt.Errorf("emulator: %s: %w", kind, err))
		}
	}
	clear(shared.servers)
	return errs
}
