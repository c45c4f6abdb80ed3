// Package emulator starts DynamoDB-compatible servers on a free loopback port,
// for tests and for the programs of this repository.
//
// The servers come from npm: the versions are pinned by npm/package-lock.json
// and installed by `make test` or `npm ci --prefix internal/emulator/npm`.
// Two kinds exist because each is wrong somewhere else. [Dynoxide] is the main
// one: exact numbers, the old item on a failed condition, persistence. It is a
// native program packaged for linux/amd64. [Dynalite] runs wherever Node.js
// does, and returns no old item on a failed condition, which some tests want.
// Neither throttles nor fails; see package faultproxy for that.
//
// A server never outlives the process that started it: call [Server.Stop] (or
// [StopAll] for those of [Endpoint]); on Linux the kernel kills what is left.
package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Kind names a server program.
type Kind string

// The kinds of server.
const (
	Dynoxide Kind = "dynoxide"
	Dynalite Kind = "dynalite"
)

const (
	host         = "127.0.0.1"
	startTimeout = 30 * time.Second      // for one process to answer, on a busy machine
	stopTimeout  = 5 * time.Second       // between SIGTERM and SIGKILL
	pollEvery    = 10 * time.Millisecond // while waiting for the first answer
	portAttempts = 10                    // a port can be taken between our choice and the server's bind
)

// Option changes how [Start] runs a server.
type Option func(*config)

type config struct {
	dbPath string
	args   []string
}

// WithDBPath keeps the data in path, a file for [Dynoxide] and a directory for
// [Dynalite], so that it survives [Server.Kill] and [Server.Restart]. Without
// it the data lives in memory.
func WithDBPath(path string) Option { return func(c *config) { c.dbPath = path } }

// WithArgs appends arguments to the server's command line.
func WithArgs(args ...string) Option {
	return func(c *config) { c.args = append(c.args, args...) }
}

// Server is one server process on one port. Its methods may be called from
// several goroutines; they run one after the other.
type Server struct {
	kind   Kind
	config config
	port   int

	mu   sync.Mutex
	proc *process // nil after Stop and Kill
	last *process // the newest one, for Output
}

// Start runs a server on a free loopback port and returns once it answers.
// ctx bounds the start only. The error matches [ErrNotInstalled] when the
// program is not there.
func Start(ctx context.Context, kind Kind, opts ...Option) (*Server, error) {
	s := &Server{kind: kind}
	for _, opt := range opts {
		opt(&s.config)
	}
	var errs error
	for range portAttempts {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		s.port = port
		err = s.launch(ctx)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
		errs = errors.Join(errs, err)
	}
	return nil, errs
}

// Kind returns the kind of the server.
func (s *Server) Kind() Kind { return s.kind }

// Endpoint returns the server's URL, http://127.0.0.1:port. It stays the same
// across [Server.Restart].
func (s *Server) Endpoint() string { return "http://" + s.addr() }

func (s *Server) addr() string { return net.JoinHostPort(host, strconv.Itoa(s.port)) }

// PID returns the process id, or 0 when the server is stopped.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Output returns the end of what the newest process wrote, for diagnosis.
func (s *Server) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return ""
	}
	return s.last.output.String()
}

// Stop ends the server with SIGTERM, and with SIGKILL when that does not help,
// and waits until it is gone. It reports a server that had already ended by
// itself or had to be killed. Stopping a stopped server does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopLocked()
}

func (s *Server) stopLocked() error {
	p := s.proc
	if p == nil {
		return nil
	}
	s.proc = nil
	if p.hasExited() {
		return p.failure("had ended by itself")
	}
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		<-p.exited
		return p.failure("had ended by itself")
	}
	if err == nil {
		select {
		case <-p.exited:
			return nil
		case <-time.After(stopTimeout):
		}
	}
	p.kill()
	if err == nil {
		err = p.failure("did not end on SIGTERM and was killed")
	} else if runtime.GOOS == "windows" {
		err = nil // it has no SIGTERM
	}
	return err
}

// Kill ends the server with SIGKILL, as a crash would, and waits until it is
// gone.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

// Restart stops the server if it still runs and starts it again on the same
// port. Data is kept only with [WithDBPath].
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	err := s.stopLocked()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.launch(ctx)
}

var errPortTaken = errors.New("port taken")

// launch runs one process on s.port and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	name, args, err := s.config.command(s.kind, s.port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := startProcess(name, args)
	if err != nil {
		return fmt.Errorf("emulator: start %s: %w", s.kind, err)
	}
	s.last = p
	if err := p.ready(ctx, s.Endpoint()); err != nil {
		p.kill()
		if portTaken(p.output.String()) {
			err = errors.Join(errPortTaken, err)
		}
		return fmt.Errorf("emulator: %s on %s: %w", s.kind, s.addr(), err)
	}
	s.proc = p
	return nil
}

// ready returns once this very process answers on endpoint. An answer alone
// does not prove that: should another program own the port, it would answer
// while ours dies. So the process must first have announced itself, and must
// still be alive after the answer.
func (p *process) ready(ctx context.Context, endpoint string) error {
	select {
	case <-p.announced:
	case <-p.exited:
		return p.failure("ended at start")
	case <-ctx.Done():
		return p.failure("did not announce itself: " + ctx.Err().Error())
	}
	for {
		if err := ping(ctx, endpoint); err == nil {
			break
		}
		select {
		case <-p.exited:
			return p.failure("ended at start")
		case <-ctx.Done():
			return p.failure("did not answer: " + ctx.Err().Error())
		case <-time.After(pollEvery):
		}
	}
	if p.hasExited() {
		return p.failure("ended at start")
	}
	return nil
}

// ping succeeds on any reply over HTTP, an error included. The connection is
// not kept, so that no goroutine stays behind in tests that count them.
func ping(ctx context.Context, endpoint string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: time.Second}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("emulator: choose a port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// portTaken reads the complaint of both servers about a port in use.
func portTaken(output string) bool {
	return strings.Contains(output, "already in use") || strings.Contains(output, "EADDRINUSE")
}

// tail keeps the end of a process's output and closes announced when the
// output first holds the word by which both servers say that they are up.
type tail struct {
	mu        sync.Mutex
	buf       []byte
	found     bool
	announced chan struct{}
}

const (
	tailSize   = 64 << 10
	announceBy = "listening"
)

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if !t.found && bytes.Contains(t.buf, []byte(announceBy)) {
		t.found = true
		close(t.announced)
	}
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
