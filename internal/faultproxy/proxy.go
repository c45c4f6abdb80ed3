package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Options configure a [Proxy].
type Options struct {
	// Listen is the address of the proxy. Defaults to 127.0.0.1:0, a free port.
	Listen string
	// Rules are in force from the first request on. Defaults to none.
	Rules []Rule
	// Seed makes the draws of rules. Defaults to 0, which is a seed like any.
	Seed uint64
	// KeyAttribute names the partition key. Defaults to whichever attribute
	// of a request's Key is the only string in it.
	KeyAttribute string
	// Now is the clock of limits and of the log, not of delays. It runs under
	// the proxy's lock. Defaults to time.Now.
	Now func() time.Time
	// OmitBodies leaves the bodies of requests (not those of upstream's
	// replies) out of the log.
	OmitBodies bool
	// DiscardLog keeps no entries, for long runs with OnEntry.
	DiscardLog bool
	// OnEntry, if set, is called once for each request when it is settled. It
	// runs under the proxy's lock and must not call the proxy.
	OnEntry func(Entry)
}

// Proxy is an HTTP proxy with faults. Its methods may be called from several
// goroutines.
type Proxy struct {
	options   Options
	upstream  *url.URL
	addr      string // where New listened first
	transport *http.Transport

	// ctx carries forwarded requests; it ends when Close loses patience.
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when Close begins: nothing sleeps any longer

	serving  sync.WaitGroup // Serve goroutines
	conns    sync.WaitGroup // client connections that net/http owns
	handlers sync.WaitGroup // requests

	listenMu sync.Mutex // serialises Down, Up and Close
	server   *server    // nil when down; guarded by listenMu

	mu      sync.Mutex // guards all below and the entries of flights
	closed  bool
	seq     int64
	rules   *ruleSet
	journal *journal
	moving  int // flights whose moving is true
	moved   *sync.Cond
}

// closeGrace is how long Close waits for upstream to answer what it was sent,
// so that the log can say what became of it.
const closeGrace = 2 * time.Second

// upPatience is how long Up tries to get its port back.
const upPatience = 2 * time.Second

// New starts a proxy in front of upstream, such as http://127.0.0.1:8000. Close
// it.
func New(upstream string, optFns ...func(*Options)) (*Proxy, error) {
	options := Options{Listen: "127.0.0.1:0", Now: time.Now}
	for _, fn := range optFns {
		fn(&options)
	}
	u, err := url.Parse(upstream)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("faultproxy: upstream %q is not an http URL", upstream)
	}
	rules, err := newRuleSet(options.Rules, options.Seed)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		options:  options,
		upstream: u,
		transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 64,
			DisableCompression:  true, // bodies pass as they are
		},
		done:    make(chan struct{}),
		rules:   rules,
		journal: newJournal(),
	}
	p.moved = sync.NewCond(&p.mu)
	l, err := net.Listen("tcp", options.Listen)
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p.addr = l.Addr().String()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.listenMu.Lock()
	defer p.listenMu.Unlock()
	p.serve(l)
	return p, nil
}

// URL returns the proxy's own endpoint. It stays the same across Down and Up.
func (p *Proxy) URL() string { return "http://" + p.addr }

// SetRules replaces the rules. Their counts and buckets begin anew, so the same
// rules and seed do the same again.
func (p *Proxy) SetRules(rules ...Rule) error {
	rs, err := newRuleSet(rules, p.options.Seed)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = rs
	return nil
}

// Rules returns the rules in force, with defaults filled in.
func (p *Proxy) Rules() []Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules.plain()
}

// Reset removes the rules, the log and the counters. Late requests that are
// still held are dropped for good; others that may still reach upstream go on,
// and are in no log any more.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.journal.flights {
		p.resolveLocked(f, false)
	}
	p.rules = new(ruleSet)
	p.journal = newJournal()
}

// server is one listener, from Up to Down.
type server struct {
	http.Server
	listener net.Listener
	mu       sync.Mutex
	down     bool
}

// Up listens again after [Proxy.Down], on the same port. It does nothing when
// the proxy is up.
func (p *Proxy) Up() error {
	p.listenMu.Lock()
	defer p.listenMu.Unlock()
	if p.server != nil {
		return nil
	}
	// While we were down, the kernel may have lent the port to some outgoing
	// connection for a moment.
	for deadline := time.Now().Add(upPatience); ; time.Sleep(10 * time.Millisecond) {
		if p.isClosed() {
			return errClosed
		}
		l, err := net.Listen("tcp", p.addr)
		if err == nil {
			p.serve(l)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("faultproxy: %w", err)
		}
	}
}

// serve takes requests from l. It requires listenMu held.
func (p *Proxy) serve(l net.Listener) {
	s := &server{listener: l, Server: http.Server{
		Handler:  p,
		ErrorLog: log.New(io.Discard, "", 0), // broken connections are our trade
	}}
	s.ConnState = func(c net.Conn, state http.ConnState) { p.connState(s, c, state) }
	p.server = s
	p.serving.Go(func() { _ = s.Serve(l) }) // always ErrServerClosed
}

// connState counts the connections, so that Close can wait for their
// goroutines. It also closes the one that Serve accepts while Down closes all:
// net/http would serve it for as long as the client likes.
func (p *Proxy) connState(s *server, c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		// Serve calls this before it returns, and Close waits for Serve
		// before it waits for conns: Add never races with Wait.
		p.conns.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.down {
			c.Close()
		}
	case http.StateClosed, http.StateHijacked:
		p.conns.Done()
	}
}

// Down is a dead listener: it stops listening and breaks all connections, so
// that clients are refused (a client that kept a connection may first see its
// end of file). Requests that were read already still reach upstream.
func (p *Proxy) Down() {
	p.listenMu.Lock()
	defer p.listenMu.Unlock()
	if p.server == nil {
		return
	}
	p.server.mu.Lock()
	p.server.down = true
	p.server.mu.Unlock()
	// Server.Close does not know of the listener until Serve has begun to run.
	// Its own error is one of a listener or connection that is gone.
	_ = p.server.listener.Close()
	_ = p.server.Close()
	p.server = nil
}

// Close stops the proxy and returns when its goroutines are gone. Clients that
// wait are cut off at once, delayed and held requests are not applied any
// more; those that upstream has received get two seconds to be answered, for
// the log. The log can be read after Close.
func (p *Proxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		close(p.done)
	}
	p.Down()
	p.serving.Wait()
	patience := time.AfterFunc(closeGrace, p.cancel)
	p.handlers.Wait()
	patience.Stop()
	p.cancel()
	p.conns.Wait()
	p.transport.CloseIdleConnections()
	return nil
}

func (p *Proxy) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

var errClosed = errors.New("faultproxy: the proxy is closed")

// enter counts a request in, unless the proxy is closed: Close must not wait
// for handlers while more arrive.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.handlers.Add(1)
	return true
}
