package faultproxy

import (
	"context"
	"slices"
	"time"
)

// Applied says whether upstream carried a request out.
type Applied string

// The values of Applied. A read counts as applied when it was answered.
const (
	// Yes: upstream answered 2xx.
	Yes Applied = "yes"
	// No: the request was not sent, or refused by upstream with a 4xx.
	No Applied = "no"
	// Unknown: upstream answered otherwise or not at all, or has not yet.
	Unknown Applied = "unknown"
)

// Entry is what the proxy knows of one request.
type Entry struct {
	Seq     int64     `json:"seq"`
	Arrived time.Time `json:"arrived"`
	Op      string    `json:"op"`
	Table   string    `json:"table,omitempty"`
	Key     string    `json:"key,omitempty"`
	Body    string    `json:"body,omitempty"`  // as received; see Options.OmitBodies
	Fault   string    `json:"fault,omitempty"` // empty: no rule fired

	Applied        Applied   `json:"applied"`
	Settled        time.Time `json:"settled,omitzero"` // when Applied became final; zero: not yet
	UpstreamStatus int       `json:"upstreamStatus,omitempty"`
	UpstreamBody   string    `json:"upstreamBody,omitempty"`
	UpstreamError  string    `json:"upstreamError,omitempty"`
}

// Count is a number of requests of one operation and key.
type Count struct {
	Requests int `json:"requests"`
	Applied  int `json:"applied"`
	Faulted  int `json:"faulted"`
}

// CountKey is what the counters tell apart.
type CountKey struct{ Op, Key string }

// flight is a request on its way.
type flight struct {
	req     *Request
	fault   fault
	verdict chan bool     // late requests only: whether to deliver; see resolve
	settled chan struct{} // closed once entry is final

	// The proxy's mu guards the rest.
	entry   Entry
	journal *journal // the one that was current at arrival: Reset makes another
	moving  bool     // may reach upstream, and is not settled
	held    bool     // late and without a verdict
}

// journal holds what Reset throws away. The proxy's mu guards it.
type journal struct {
	flights []*flight
	counts  map[CountKey]*Count
}

func newJournal() *journal { return &journal{counts: make(map[CountKey]*Count)} }

func (j *journal) count(f *flight) *Count {
	k := CountKey{f.req.Op, f.req.Key}
	c := j.counts[k]
	if c == nil {
		c = new(Count)
		j.counts[k] = c
	}
	return c
}

// begin gives req its number, its fault and its place in the log, all at one
// moment: the order of Seq is the order in which rules saw the requests.
func (p *Proxy) begin(req *Request, arrived time.Time) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	req.Seq = p.seq
	f := &flight{
		req:     req,
		settled: make(chan struct{}),
		journal: p.journal,
		entry:   Entry{Seq: req.Seq, Arrived: arrived, Op: req.Op, Table: req.Table, Key: req.Key, Applied: Unknown},
	}
	if !p.options.OmitBodies {
		f.entry.Body = string(req.Body)
	}
	f.fault = p.rules.decide(req, arrived)
	count := f.journal.count(f)
	count.Requests++
	if r := f.fault.rule; r != nil {
		f.entry.Fault = orDefault(r.Name, f.fault.action.label())
		if !f.fault.action.harmless() {
			count.Faulted++
		}
	}
	if f.fault.action.Kind == KindLate {
		f.held = true
		f.verdict = make(chan bool, 1)
	}
	if f.held && f.fault.action.Hold.IsZero() {
		f.entry.Applied = No // for as long as nobody calls Release
	} else {
		f.moving = true
		p.moving++
	}
	if !p.options.DiscardLog || f.held {
		p.journal.flights = append(p.journal.flights, f)
	}
	return f
}

// settle records how f ended upstream, nil meaning that it was never sent. Only
// the first call counts.
func (p *Proxy) settle(f *flight, up *upstreamReply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &f.entry
	if !e.Settled.IsZero() {
		return
	}
	e.Settled = p.options.Now()
	e.Applied = up.applied()
	f.held = false
	if up != nil {
		e.UpstreamStatus, e.UpstreamBody = up.status, string(up.body)
		if up.err != nil {
			e.UpstreamError = up.err.Error()
		}
	}
	if e.Applied == Yes {
		f.journal.count(f).Applied++
	}
	if f.moving {
		f.moving = false
		p.moving--
		p.moved.Broadcast()
	}
	if p.options.OnEntry != nil {
		p.options.OnEntry(*e)
	}
	if p.options.DiscardLog && f.verdict != nil {
		f.journal.flights = slices.DeleteFunc(f.journal.flights, func(g *flight) bool { return g == f })
	}
	close(f.settled)
}

// Log returns an entry for every request since New or [Proxy.Reset], in order
// of Seq. Those whose Settled is zero are still on their way.
func (p *Proxy) Log() []Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries := make([]Entry, len(p.journal.flights))
	for i, f := range p.journal.flights {
		entries[i] = f.entry
	}
	return entries
}

// Counts returns the counters since New or [Proxy.Reset].
func (p *Proxy) Counts() map[CountKey]Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make(map[CountKey]Count, len(p.journal.counts))
	for k, c := range p.journal.counts {
		counts[k] = *c
	}
	return counts
}

// Count returns the counters of an operation and key, summed over all
// operations or keys where the argument is empty.
func (p *Proxy) Count(op, key string) Count {
	var sum Count
	for k, c := range p.Counts() {
		if (op == "" || op == k.Op) && (key == "" || key == k.Key) {
			sum.Requests += c.Requests
			sum.Applied += c.Applied
			sum.Faulted += c.Faulted
		}
	}
	return sum
}

// Wait returns when every request that the proxy has read is settled, apart
// from those that only [Proxy.Release] would deliver: what the log says by then
// is final. It does not know of bytes that a client has sent and the proxy has
// not read yet.
func (p *Proxy) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.moved.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.moving > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.moved.Wait()
	}
	return nil
}

// Held returns the late requests that are still held, in order of Seq.
func (p *Proxy) Held() []Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var held []Entry
	for _, f := range p.journal.flights {
		if f.held {
			held = append(held, f.entry)
		}
	}
	return held
}

// Release delivers the late requests that are still held, in order of Seq, each
// after upstream has answered the one before. It returns how many there were,
// once the log says what became of them. With numbers it releases only those.
func (p *Proxy) Release(seqs ...int64) int {
	p.mu.Lock()
	flights := slices.Clone(p.journal.flights)
	p.mu.Unlock()
	n := 0
	for _, f := range flights {
		if len(seqs) > 0 && !slices.Contains(seqs, f.req.Seq) {
			continue
		}
		if p.resolve(f, true) {
			n++
			<-f.settled
		}
	}
	return n
}

// resolve gives a held request its verdict and reports whether it was still
// without one. Release, Reset, Close and the request's own timer compete here.
func (p *Proxy) resolve(f *flight, deliver bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resolveLocked(f, deliver)
}

func (p *Proxy) resolveLocked(f *flight, deliver bool) bool {
	if !f.held {
		return false
	}
	f.held = false
	if deliver && !f.moving {
		f.moving = true
		p.moving++
	}
	f.verdict <- deliver // has room: one verdict only
	return true
}
