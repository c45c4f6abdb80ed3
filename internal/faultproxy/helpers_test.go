package faultproxy_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// upstream is a table of counters: each UpdateItem adds one to the counter of
// its body. Its reply is spelled oddly, to show that bodies pass as they are.
type upstream struct {
	*httptest.Server

	mu     sync.Mutex
	counts map[string]int // by body
	bodies []string
	status int           // in place of 200
	gate   chan struct{} // each request takes one, if set
	got    chan string   // bodies, as they arrive
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{counts: make(map[string]int), status: http.StatusOK, got: make(chan string, 1000)}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	body := string(raw)
	u.got <- body
	if u.gate != nil {
		<-u.gate
	}
	u.mu.Lock()
	u.counts[body]++
	u.bodies = append(u.bodies, body)
	reply := replyBody(u.counts[body])
	u.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amz-Crc32", fmt.Sprint(crc32.ChecksumIEEE([]byte(reply))))
	w.Header().Set("X-Echo", r.Host+" "+r.Header.Get("Authorization"))
	w.WriteHeader(u.status)
	io.WriteString(w, reply)
}

func replyBody(n int) string {
	return fmt.Sprintf("{ \"Attributes\" :{\"lastID\": {\"N\":\"%d\"}}}\n", n)
}

// applied returns how many requests upstream has carried out.
func (u *upstream) applied() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.bodies)
}

// newProxy starts a proxy and checks at the end that it leaves no goroutine.
func newProxy(t *testing.T, u *upstream, optFns ...func(*faultproxy.Options)) *faultproxy.Proxy {
	t.Helper()
	before := runtime.NumGoroutine()
	p, err := faultproxy.New(u.URL, optFns...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
		u.CloseClientConnections()
		// net/http ends a connection's goroutines shortly after its socket.
		for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
				return
			}
		}
	})
	return p
}

func setRules(t *testing.T, p *faultproxy.Proxy, rules ...faultproxy.Rule) {
	t.Helper()
	if err := p.SetRules(rules...); err != nil {
		t.Fatal(err)
	}
}

// always sets the one rule that every request meets action.
func always(t *testing.T, p *faultproxy.Proxy, action faultproxy.Action) {
	t.Helper()
	setRules(t, p, faultproxy.Rule{Action: action})
}

// client keeps connections, as the AWS SDK does.
var client = &http.Client{Transport: &http.Transport{DisableCompression: true}}

func bodyFor(key string) string {
	return fmt.Sprintf("{\"TableName\":\"t\",\n \"Key\":{\"entityType\": {\"S\":%q}}}", key)
}

// send makes one request for a key; the whole reply is read.
func send(ctx context.Context, p *faultproxy.Proxy, op, key string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+"/", strings.NewReader(bodyFor(key)))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+op)
	req.Header.Set("Authorization", "signed")
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// update is send for UpdateItem, within the test.
func update(t *testing.T, p *faultproxy.Proxy, key string) (*http.Response, string, error) {
	t.Helper()
	return send(t.Context(), p, "UpdateItem", key)
}

// mustPass makes an update that has to reach upstream and come back.
func mustPass(t *testing.T, p *faultproxy.Proxy, key string) string {
	t.Helper()
	resp, body, err := update(t, p, key)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	return body
}

// last returns the newest entry of the log.
func last(t *testing.T, p *faultproxy.Proxy) faultproxy.Entry {
	t.Helper()
	log := p.Log()
	if len(log) == 0 {
		t.Fatal("the log is empty")
	}
	return log[len(log)-1]
}

func wantApplied(t *testing.T, p *faultproxy.Proxy, u *upstream, want faultproxy.Applied) {
	t.Helper()
	e := last(t, p)
	if e.Applied != want {
		t.Errorf("log says applied = %s, want %s: %+v", e.Applied, want, e)
	}
	if e.Settled.IsZero() {
		t.Errorf("not settled although the client knows: %+v", e)
	}
	if got := u.applied() > 0; got != (want == faultproxy.Yes) {
		t.Errorf("upstream applied = %v, log says %s", got, want)
	}
	n := 0
	if want == faultproxy.Yes {
		n = 1
	}
	if c := p.Count("UpdateItem", ""); c.Requests != 1 || c.Applied != n {
		t.Errorf("counters %+v, want 1 request, %d applied", c, n)
	}
}
