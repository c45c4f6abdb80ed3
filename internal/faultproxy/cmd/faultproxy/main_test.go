package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

func TestProgram(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer upstream.Close()
	dir := t.TempDir()
	rules, logFile := filepath.Join(dir, "rules.json"), filepath.Join(dir, "log.jsonl")
	if err := os.WriteFile(rules, []byte(`[{"name":"teapot","op":"GetItem","action":{"kind":"reply","status":418}}]`), 0o600); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- run(ctx, []string{"-upstream", upstream.URL, "-rules", rules, "-log", logFile, "-bodies"}, w, io.Discard)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(line)

	const body = `{"TableName":"t","Key":{"pk":{"S":"<a>"}}}`
	post := func(op string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+op)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := post("GetItem"); got != http.StatusTeapot {
		t.Errorf("status %d", got)
	}
	req, err := http.NewRequest(http.MethodPut, url+"/__faults", strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := post("GetItem"); got != http.StatusOK {
		t.Errorf("status %d after the rules were replaced", got)
	}

	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(logFile)
	if err != nil {
		t.Fatal(err)
	}
	var entries []faultproxy.Entry
	for dec := json.NewDecoder(bytes.NewReader(data)); dec.More(); {
		var e faultproxy.Entry
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	if len(entries) != 2 || bytes.Count(data, []byte("\n")) != 2 {
		t.Fatalf("log:\n%s", data)
	}
	if e := entries[0]; e.Fault != "teapot" || e.Applied != faultproxy.No || e.Key != "<a>" || e.Body != body {
		t.Errorf("%+v", e)
	}
	if e := entries[1]; e.Fault != "" || e.Applied != faultproxy.Yes || e.UpstreamBody != "{}" {
		t.Errorf("%+v", e)
	}
}

func TestBadArgumentsAreErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-upstream", "nowhere"}, {"-rules", "/does/not/exist"}, {"-nonsense"}, {"stray"}, {"-listen", "nowhere:x"},
		{"-log", "/does/not/exist/log"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("run %q succeeded", args)
		}
	}
}
