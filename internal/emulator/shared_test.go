//go:build unix

package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// fakeTB records how a test would have ended.
type fakeTB struct{ logged, skipped, failed string }

func (f *fakeTB) Helper()                      {}
func (f *fakeTB) Logf(s string, args ...any)   { f.logged = fmt.Sprintf(s, args...) }
func (f *fakeTB) Skipf(s string, args ...any)  { f.skipped = fmt.Sprintf(s, args...) }
func (f *fakeTB) Fatalf(s string, args ...any) { f.failed = fmt.Sprintf(s, args...) }

var _ emulator.TB = testing.TB(nil)

func TestEndpointIsSharedAndRestartsAfterStopAll(t *testing.T) {
	t.Setenv(emulator.EndpointEnv, "")
	first := emulator.Endpoint(t, emulator.Dynoxide)
	if second := emulator.Endpoint(t, emulator.Dynoxide); second != first {
		t.Errorf("two servers: %s and %s", first, second)
	}
	if other := emulator.Endpoint(t, emulator.Dynalite); other == first {
		t.Errorf("both kinds at %s", other)
	}
	if err := emulator.StopAll(); err != nil {
		t.Fatal(err)
	}
	if answers(strings.TrimPrefix(first, "http://")) {
		t.Error("StopAll left a server")
	}
	again := emulator.Endpoint(t, emulator.Dynoxide)
	if !answers(strings.TrimPrefix(again, "http://")) {
		t.Error("no server after StopAll and Endpoint")
	}
}

func TestEndpointPrefersTheEnvironment(t *testing.T) {
	t.Setenv(emulator.EndpointEnv, "http://127.0.0.1:1")
	var tb fakeTB
	if got := emulator.Endpoint(&tb, emulator.Dynoxide); got != "http://127.0.0.1:1" {
		t.Errorf("Endpoint = %s", got)
	}
	if !strings.Contains(tb.logged, "http://127.0.0.1:1") {
		t.Errorf("logged %q", tb.logged)
	}
}

func TestAbsentServersSkipOrFail(t *testing.T) {
	if err := emulator.StopAll(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(emulator.EndpointEnv, "")
	t.Setenv(emulator.DirEnv, t.TempDir())
	for _, kind := range kinds {
		_, err := emulator.Start(context.Background(), kind)
		if !errors.Is(err, emulator.ErrNotInstalled) || !strings.Contains(err.Error(), "make test") {
			t.Errorf("%s: Start = %v, want ErrNotInstalled and what to run", kind, err)
		}

		t.Setenv(emulator.RequireEnv, "")
		var tb fakeTB
		emulator.Endpoint(&tb, kind)
		if tb.skipped == "" || tb.failed != "" {
			t.Errorf("%s: not skipped: %+v", kind, tb)
		}

		t.Setenv(emulator.RequireEnv, "1")
		tb = fakeTB{}
		emulator.Endpoint(&tb, kind)
		if tb.failed == "" || tb.skipped != "" {
			t.Errorf("%s: not failed although required: %+v", kind, tb)
		}
	}
	if got := emulator.Default(); got != emulator.Dynalite {
		t.Errorf("Default = %s where dynoxide is absent", got)
	}
}

func TestUnknownKind(t *testing.T) {
	if _, err := emulator.Start(t.Context(), "mongodb"); err == nil || errors.Is(err, emulator.ErrNotInstalled) {
		t.Errorf("Start = %v", err)
	}
}
