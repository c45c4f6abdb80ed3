package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

const (
	second  = int64(time.Second)
	never   = int64(math.MaxInt64)
	startAt = -second // OnStart runs here
)

// Store models the table. One lease is one attempt, or several when outages
// fail some. Latency is lognormal. An attempt is granted if no outage overlaps
// [sent, sent+latency); otherwise the client gives it up Timeout after it was
// sent and sends the same lease again at once. Slow replies never time out.
type Store struct {
	Median, P99 time.Duration
	Timeout     time.Duration
	Outages     [][2]int64 // sorted, disjoint, [from, to) in ns
}

var defaultStore = Store{Median: 5 * time.Millisecond, P99: 30 * time.Millisecond, Timeout: 250 * time.Millisecond}

// lognormal returns the parameters of the latency's distribution in ns.
func (s Store) lognormal() (mu, sigma float64) {
	const z99 = 2.3263478740408408
	mu = math.Log(float64(s.Median))
	return mu, (math.Log(float64(s.P99)) - mu) / z99
}

func (s Store) down(from, to int64) bool {
	i := sort.Search(len(s.Outages), func(i int) bool { return s.Outages[i][1] > from })
	return i < len(s.Outages) && s.Outages[i][0] < to
}

// outages places one outage of length d at a uniform moment of each slot.
func outages(period, slot, d int64, seed uint64) [][2]int64 {
	rng := rand.New(rand.NewPCG(seed, 2))
	var out [][2]int64
	for s := int64(0); s < period; s += slot {
		a := s + rng.Int64N(slot-d)
		out = append(out, [2]int64{a, a + d})
	}
	return out
}

// Probe is the state at one random moment.
type Probe struct {
	At        int64
	Stock     int64
	Waiting   int64
	Committed int64 // IDs of in-flight leases that the store has already written
	Arrived   int64 // calls before At
}

// Result of one run.
type Result struct {
	Issued    int64
	Cold      int64         // callers that waited for the process's very first lease
	Waits     int64         // other callers that had to wait
	MaxWait   time.Duration // the longest of their waits
	Writes    int64         // leases granted
	Failed    int64         // attempts lost to outages
	MaxLease  int64
	MaxStock  int64
	Probes    []Probe
	EndQueued int64 // callers still unserved when the run was cut off
}

type lease struct {
	n          int64
	first      int64 // first attempt sent
	sent, done int64 // this attempt
	ok         bool
}

// engine replays arrivals against a policy in virtual time.
type engine struct {
	arrivals []int64
	policy   Policy
	store    Store
	rng      *rand.Rand
	mu, sig  float64

	v        View
	head     int64 // index of the first caller not served yet
	coldEnd  int64 // callers before this index waited for the first grant
	granted  bool
	pending  []lease
	probesAt []int64
	next     int64 // when the next event other than a call is due
	r        Result
}

// run replays the arrivals (sorted, ns, >= 0) against the policy and looks at
// the state at each of the probes (sorted).
func run(arrivals []int64, p Policy, store Store, probes []int64, seed uint64) Result {
	e := &engine{arrivals: arrivals, policy: p, store: store, probesAt: probes,
		rng: rand.New(rand.NewPCG(seed, 0x5EED))}
	e.mu, e.sig = store.lognormal()
	e.r.Probes = make([]Probe, 0, len(probes))
	e.v.Now, e.v.WakeAt = startAt, never
	e.send(p.OnStart(&e.v))
	for i, t := range arrivals {
		for e.next <= t {
			e.dispatch()
		}
		e.call(int64(i), t)
	}
	// Serve those still queued; probes after the last arrival are taken too.
	for e.head < e.v.Arrived && len(e.pending) > 0 || len(e.probesAt) > 0 {
		e.dispatch()
	}
	e.r.EndQueued = e.v.Arrived - e.head
	e.r.Issued = e.v.Issued
	return e.r
}

func (e *engine) call(i, t int64) {
	e.v.Now = t
	e.v.Arrived = i + 1
	switch {
	case e.head == i && e.v.Stock > 0:
		e.v.Stock--
		e.v.Issued++
		e.head++
	default:
		e.v.Waiting = e.v.Arrived - e.head
		if e.granted {
			e.r.Waits++
		} else {
			e.r.Cold++
		}
	}
	wake := e.v.WakeAt
	if n := e.policy.OnTake(&e.v); n > 0 || e.v.WakeAt != wake {
		e.send(n)
	}
}

// send starts a lease of n IDs, if n > 0, and finds the next event.
func (e *engine) send(n int64) {
	if n > 0 {
		e.r.MaxLease = max(e.r.MaxLease, n)
		e.v.InFlight++
		e.attempt(lease{n: n, first: e.v.Now})
	}
	e.schedule()
}

func (e *engine) attempt(l lease) {
	latency := int64(math.Exp(e.mu + e.sig*e.rng.NormFloat64()))
	l.sent, l.done = e.v.Now, e.v.Now+latency
	l.ok = !e.store.down(l.sent, l.done)
	if !l.ok {
		l.done = l.sent + int64(e.store.Timeout)
	}
	e.pending = append(e.pending, l)
}

func (e *engine) schedule() {
	e.next = e.v.WakeAt
	if len(e.probesAt) > 0 {
		e.next = min(e.next, e.probesAt[0])
	}
	for i := range e.pending {
		e.next = min(e.next, e.pending[i].done)
	}
}

// dispatch handles the one event that is due at e.next: a reply, else a wake,
// else a probe (at equal times in this order, all before a call at that time).
func (e *engine) dispatch() {
	e.v.Now = e.next
	if i := slices.IndexFunc(e.pending, func(l lease) bool { return l.done == e.next }); i >= 0 {
		l := e.pending[i]
		e.pending = slices.Delete(e.pending, i, i+1)
		if !l.ok {
			e.r.Failed++
			e.attempt(l)
			e.schedule()
			return
		}
		e.grant(l)
		return
	}
	if e.v.WakeAt == e.next {
		e.v.WakeAt = never
		e.send(e.policy.OnWake(&e.v))
		return
	}
	e.probe()
}

func (e *engine) probe() {
	p := Probe{At: e.v.Now, Stock: e.v.Stock, Waiting: e.v.Waiting, Arrived: e.v.Arrived}
	for _, l := range e.pending {
		if l.ok && p.At >= l.sent+(l.done-l.sent)/2 {
			p.Committed += l.n
		}
	}
	e.r.Probes = append(e.r.Probes, p)
	e.probesAt = e.probesAt[1:]
	e.schedule()
}

func (e *engine) grant(l lease) {
	if !e.granted {
		e.granted = true
		e.coldEnd = e.v.Arrived
	}
	e.r.Writes++
	e.v.InFlight--
	e.v.Stock += l.n
	k := min(e.v.Arrived-e.head, e.v.Stock)
	if first := max(e.head, e.coldEnd); first < e.head+k { // the first in the queue waited longest
		e.r.MaxWait = max(e.r.MaxWait, time.Duration(e.v.Now-e.arrivals[first]))
	}
	e.head += k
	e.v.Stock -= k
	e.v.Issued += k
	e.v.Waiting = e.v.Arrived - e.head
	e.r.MaxStock = max(e.r.MaxStock, e.v.Stock)
	e.send(e.policy.OnGrant(&e.v, Grant{N: l.n, Elapsed: time.Duration(e.v.Now - l.first)}))
}

// survival returns, for each probe, how many seconds a store outage that
// starts there lasts before a caller has to wait: in-flight leases are lost,
// the stock is all there is. The arrivals are continued periodically (period
// ns) past the end of the trace. 0 if callers are queued already.
func survival(arrivals []int64, period int64, probes []Probe) []float64 {
	n := int64(len(arrivals))
	out := make([]float64, len(probes))
	for i, p := range probes {
		if p.Waiting > 0 {
			continue
		}
		k := p.Arrived + p.Stock // index of the first call that finds nothing
		out[i] = float64(arrivals[k%n]+k/n*period-p.At) / float64(second)
	}
	return out
}
