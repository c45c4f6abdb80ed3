package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// maxBody is above DynamoDB's own limit of 16 MB for a batch.
const maxBody = 32 << 20

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	defer p.handlers.Done()
	if r.URL.Path == controlPath || r.URL.Path == releasePath {
		p.control(w, r)
		return
	}
	arrived := p.options.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler) // half a request is no request
	}
	f := p.begin(parseRequest(r, body, p.options.KeyAttribute), arrived)
	defer p.settle(f, nil) // the paths that send nothing upstream

	up, ok := p.fly(f)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	p.answer(w, r, f, up)
}

// fly brings f upstream, in its own time, and settles it. It returns false when
// the proxy closes and nobody is to be answered.
func (p *Proxy) fly(f *flight) (up *upstreamReply, ok bool) {
	a := &f.fault.action
	if !p.sleep(a.DelayBefore.at(f.fault.draw("before"))) {
		return nil, false
	}
	if a.Kind == KindLate && !p.awaitVerdict(f) {
		p.settle(f, nil)
		return nil, true
	}
	if a.forwards() {
		up = p.forward(f)
	}
	// Before the client hears anything: who has an answer may read the log.
	p.settle(f, up)
	return up, p.sleep(a.DelayAfter.at(f.fault.draw("after")))
}

// sleep returns false at once when the proxy closes. A client that goes away
// does not wake it: what is on the wire arrives whether or not its sender
// still waits.
func (p *Proxy) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.done:
		return false
	}
}

// awaitVerdict returns whether to deliver a late request.
func (p *Proxy) awaitVerdict(f *flight) bool {
	var due <-chan time.Time
	if hold := f.fault.action.Hold; !hold.IsZero() {
		t := time.NewTimer(hold.at(f.fault.draw("hold")))
		defer t.Stop()
		due = t.C
	}
	select {
	case deliver := <-f.verdict:
		return deliver
	case <-due:
		p.resolve(f, true)
	case <-p.done:
		p.resolve(f, false)
	}
	return <-f.verdict
}

// upstreamReply is what came of forwarding a request.
type upstreamReply struct {
	status int // 0: no reply
	header http.Header
	body   []byte
	err    error
}

// applied reads from the reply whether the request was carried out. After a
// 5xx nobody knows: DynamoDB documents that a write may have been made.
func (up *upstreamReply) applied() Applied {
	var op *net.OpError
	switch {
	case up == nil:
		return No
	case up.status/100 == 2: // even when the body was lost
		return Yes
	case up.status/100 == 4:
		return No
	case up.status == 0 && errors.As(up.err, &op) && op.Op == "dial":
		return No
	default:
		return Unknown
	}
}

// hopByHop are the headers that belong to one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// forward sends f upstream, once: net/http repeats a POST only when not a byte
// of it was written.
func (p *Proxy) forward(f *flight) *upstreamReply {
	out, err := http.NewRequestWithContext(p.ctx, http.MethodPost, p.upstream.String(), bytes.NewReader(f.req.Body))
	if err != nil {
		return &upstreamReply{err: err}
	}
	out.Method = f.req.method
	out.URL.Path, out.URL.RawPath, out.URL.RawQuery = f.req.url.Path, f.req.url.RawPath, f.req.url.RawQuery
	out.Host = f.req.host // it is signed
	out.Header = f.req.Header.Clone()
	for _, h := range hopByHop {
		out.Header.Del(h)
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header["User-Agent"] = nil // none, rather than Go's own
	}
	resp, err := p.transport.RoundTrip(out)
	if err != nil {
		return &upstreamReply{err: err}
	}
	defer resp.Body.Close()
	up := &upstreamReply{status: resp.StatusCode, header: resp.Header}
	up.body, up.err = io.ReadAll(resp.Body)
	for _, h := range hopByHop {
		up.header.Del(h)
	}
	return up
}
