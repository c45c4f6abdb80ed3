package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// processHeader says which process a request comes from.
const processHeader = "X-Chaos-Process"

// serverPatience is how long the gate waits for the server to come back.
const serverPatience = 30 * time.Second

// A write is an applied UpdateItem.
type write struct {
	process int
	seq     int
	after   state // the item as it left it
	// unanswered: the server was killed under it, and the item says that it had
	// been applied.
	unanswered bool
	fault      string // what the proxy did with it
}

// gate stands in front of the server. It lets one write to an item through at a
// time, so that writes is in the order in which they were applied, per item;
// the server alone would not tell. What comes of a write that the server was
// killed under it finds out from the item, before the next one.
type gate struct {
	upstream  string
	transport *http.Transport
	server    *http.Server
	url       string
	serving   sync.WaitGroup
	ctx       context.Context // ends with close: nobody waits for the server any longer
	cancel    context.CancelFunc

	items map[string]*gateItem // by key; fixed

	mu       sync.Mutex
	ambush   func() // called once, between a write and its answer, which is lost
	writes   []write
	problems []string
}

// gateItem is an item as the last write left it.
type gateItem struct {
	seq int

	mu    sync.Mutex // held while a write is under way
	state state
}

func newGate(upstream string, sequences []spec) (*gate, error) {
	g := &gate{
		upstream:  upstream,
		transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
		items:     map[string]*gateItem{},
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for i, s := range sequences {
		st, err := g.read(g.ctx, s.key())
		if err != nil {
			return nil, err
		}
		g.items[s.key()] = &gateItem{seq: i, state: st}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("chaos: gate: %w", err)
	}
	g.url = "http://" + l.Addr().String()
	g.server = &http.Server{Handler: g, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	g.serving.Go(func() { _ = g.server.Serve(l) }) // always ErrServerClosed
	return g, nil
}

// close ends the gate. Requests that wait for the server are dropped.
func (g *gate) close() {
	g.cancel()
	_ = g.server.Close() // connections that are gone
	g.serving.Wait()
	g.transport.CloseIdleConnections()
}

// ServeHTTP implements http.Handler. When the server does not answer it breaks
// the connection, as the server did.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if operation(r.Header.Get("X-Amz-Target")) != "UpdateItem" {
		reply, err := g.forward(r, body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		reply.pass(w)
		return
	}
	x, err := decode(body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var key string
	if k := x.Key["entityType"].S; k != nil {
		key = *k
	}
	it := g.items[key]
	if it == nil {
		g.problem("a write to an item that is none of ours: %.200s", body)
		panic(http.ErrAbortHandler)
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	reply, err := g.forward(r, body)
	if err == nil && reply.status == http.StatusOK && g.ambushed() {
		err = errors.New("the server died")
	}
	switch {
	case err == nil && reply.status == http.StatusOK:
		g.applied(it, r.Header.Get(processHeader), reply.body)
	case err != nil && !refusedToDial(err):
		g.resolve(it, key, r.Header.Get(processHeader))
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	reply.pass(w)
}

// setAmbush has f called when the server has applied a write and before anybody
// has heard of it. It takes f back when it is nil, and reports whether an earlier
// one was still there.
func (g *gate) setAmbush(f func()) (pending bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pending = g.ambush != nil
	g.ambush = f
	return pending
}

func (g *gate) ambushed() bool {
	g.mu.Lock()
	f := g.ambush
	g.ambush = nil
	g.mu.Unlock()
	if f != nil {
		f()
	}
	return f != nil
}

// reply is what the server said.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) pass(w http.ResponseWriter) {
	for _, h := range []string{"Content-Type", "X-Amz-Crc32", "X-Amzn-Requestid"} {
		if v := r.header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body) // the proxy has its own troubles
}

func (g *gate) forward(r *http.Request, body []byte) (reply, error) {
	out, err := http.NewRequestWithContext(g.ctx, r.Method, g.upstream+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	out.Header = r.Header.Clone()
	out.Host = r.Host
	return g.send(out)
}

func (g *gate) send(req *http.Request) (reply, error) {
	resp, err := g.transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, body}, err
}

// applied enters a write that was answered. requires it.mu
func (g *gate) applied(it *gateItem, process string, reply []byte) {
	x, err := decode(reply)
	if err == nil && len(x.Attributes) == 0 {
		err = errors.New("no attributes")
	}
	var st state
	if err == nil {
		st, err = parseState(x.Attributes)
	}
	if err != nil {
		g.problem("the reply to a write cannot be read: %v: %.300s", err, reply)
		return
	}
	g.enter(it, process, st, false)
}

// resolve finds out what became of a write that the server was killed under,
// or whose connection broke. requires it.mu
func (g *gate) resolve(it *gateItem, key, process string) {
	ctx, cancel := context.WithTimeout(g.ctx, serverPatience)
	defer cancel()
	for {
		st, err := g.read(ctx, key)
		if err == nil {
			if !st.equal(it.state) {
				g.enter(it, process, st, true)
			}
			return
		}
		select {
		case <-ctx.Done():
			g.problem("nobody knows what became of a write of process %s to %s: %v", process, key, err)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (g *gate) enter(it *gateItem, process string, st state, unanswered bool) {
	var p int
	if _, err := fmt.Sscan(process, &p); err != nil {
		g.problem("a write of nobody: %v", st)
	}
	it.state = st
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, write{process: p, seq: it.seq, after: st, unanswered: unanswered})
}

// verify checks that the server has every item as the last write left it: what
// was applied must survive the server's death.
func (g *gate) verify(ctx context.Context) error {
	var errs []error
	for key, it := range g.items {
		err := func() error {
			it.mu.Lock()
			defer it.mu.Unlock()
			st, err := g.read(ctx, key)
			if err != nil {
				return fmt.Errorf("chaos: reading %s: %w", key, err)
			}
			if !st.equal(it.state) {
				g.problem("the server forgot a write to %s: it has %v, and had %v", key, st, it.state)
			}
			return nil
		}()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// read gets an item from the server itself.
func (g *gate) read(ctx context.Context, key string) (state, error) {
	body := fmt.Sprintf(`{"TableName":%q,"Key":{"entityType":{"S":%q}},"ConsistentRead":true}`, table, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.upstream, bytes.NewReader([]byte(body)))
	if err != nil {
		return state{}, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810.GetItem")
	req.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0")
	r, err := g.send(req)
	if err != nil {
		return state{}, err
	}
	x, err := decode(r.body)
	if err == nil && (r.status != http.StatusOK || len(x.Item) == 0) {
		err = fmt.Errorf("status %d: %.300s", r.status, r.body)
	}
	if err != nil {
		return state{}, err
	}
	return parseState(x.Item)
}

func (g *gate) problem(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.problems = append(g.problems, fmt.Sprintf(format, args...))
}

func refusedToDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
