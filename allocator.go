package ddbseq

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"golang.org/x/sync/errgroup"
)

// An Allocator is one process's handle on a table of sequences. It keeps blocks
// of leased IDs in memory and refills them in the background, each with one
// write to the table. IDs of one sequence are unique over all Allocators on the
// table, now and later; those that are leased and never handed out are gaps.
//
// Make one Allocator for a table and share it: all its methods may be called by
// any number of goroutines at once, and a second one would lease blocks of its
// own.
type Allocator struct {
	store backend
	opts  Options
	start time.Time

	// ctx is that of all refills; no caller's context reaches the store through
	// them.
	ctx    context.Context
	cancel context.CancelFunc

	leased atomic.Bool // something was

	running sync.WaitGroup // goroutines and timers of ours
	queue   queue
	sampler sampler
	poller  poller

	// names maps names to sequences for reading without a lock. fresh holds
	// those that are not in it yet; a lookup that finds its name there counts as
	// a miss, and enough of them make a new names.
	names  atomic.Pointer[map[string]*Sequence]
	hints  [64]atomic.Pointer[Sequence] // spare most lookups names; see hint
	mu     sync.Mutex
	fresh  map[string]*Sequence
	misses int
	closed bool
	done   chan struct{} // closed when Close has let go of everything
}

// New returns an Allocator on store. It calls the store only when IDs are asked
// for. Close it when the process ends.
func New(store *Store, optFns ...func(*Options)) (*Allocator, error) {
	if store == nil || store.backend == nil {
		return nil, fmt.Errorf("%w: the store is nil", ErrInvalidOptions)
	}
	opts := defaultOptions(store)
	for _, fn := range optFns {
		if fn != nil {
			fn(&opts)
		}
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if err := store.backend.check(); err != nil {
		return nil, err
	}
	a := &Allocator{
		store: store.backend, opts: opts, start: time.Now(),
		fresh: map[string]*Sequence{}, done: make(chan struct{}),
	}
	a.names.Store(&map[string]*Sequence{})
	a.ctx, a.cancel = context.WithCancel(context.Background())
	if opts.ConfigPoll > 0 {
		a.pollAgain()
	}
	return a, nil
}

// Open returns an Allocator on a DynamoDB table, with the AWS settings of the
// environment: credentials, region and endpoint are found as by the AWS CLI. It
// calls nobody but who gives the credentials; if there are none until ctx ends,
// that is ErrAccessDenied.
func Open(ctx context.Context, table string, optFns ...func(*Options)) (*Allocator, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("ddbseq: loading the AWS configuration for table %q: %w", table, err)
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("%w: no AWS region is set for table %q; set AWS_REGION", ErrInvalidOptions, table)
	}
	// Later, when they expire, credentials that cannot be had are an outage. A
	// process that never had any would wait for ever.
	if cfg.Credentials != nil {
		if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
			return nil, fmt.Errorf("%w: no AWS credentials for table %q: set a profile, a role or AWS_ACCESS_KEY_ID: %w", ErrAccessDenied, table, err)
		}
	}
	return New(DynamoDB(dynamodb.NewFromConfig(cfg), table), optFns...)
}

// now is the monotonic time that the planning goes by.
func (a *Allocator) now() time.Duration { return time.Since(a.start) }

// Next returns the next ID of the named sequence, as [Sequence.Next] does.
func (a *Allocator) Next(ctx context.Context, name string) (int64, error) {
	s := a.hints[hint(name)].Load()
	if s == nil || s.name != name {
		var err error
		if s, err = a.find(name); err != nil {
			return 0, err
		}
	}
	return s.Next(ctx)
}

// hint is where in hints the named sequence would stand. To look into a map
// costs nearly as much as the locked add (7 ns and 100 instructions against 1
// and 30). A place belongs to whoever comes first: names that share one would
// otherwise push each other out, with a write each time.
func hint(name string) uint {
	if name == "" {
		return 0
	}
	last := len(name) - 1
	return uint(last+int(name[0])+7*int(name[last])) % 64
}

func (a *Allocator) find(name string) (*Sequence, error) {
	s, ok := (*a.names.Load())[name]
	if !ok {
		var err error
		if s, err = a.lookup(name, nil); err != nil {
			return nil, err
		}
	}
	a.hints[hint(name)].CompareAndSwap(nil, s)
	return s, nil
}

// Sequence returns the named sequence. It does not call the store. All calls
// with one name return the same Sequence.
//
// Clauses say what the code relies on: they must agree with the definition in
// the table, and with CreateMissing they make it. A clause that is left out is
// taken from the table, so that it can be altered there. Clauses that contradict
// those of an earlier call, or the table as this process saw it last, are refused
// with ErrDefinitionMismatch and do not count; those that nothing is known of yet
// are compared by the first lease. Sizing counts from the next lease on.
func (a *Allocator) Sequence(name string, opts ...SequenceOption) (*Sequence, error) {
	return a.lookup(name, opts)
}

func (a *Allocator) lookup(name string, opts []SequenceOption) (*Sequence, error) {
	var cfg sequenceConfig
	for _, o := range opts {
		if o != nil {
			o.configure(&cfg)
		}
	}
	z := a.opts.Sizing
	for _, fn := range cfg.sizing {
		fn(&z)
	}
	if err := z.validate(); err != nil {
		return nil, fmt.Errorf("%w (WithSizing of sequence %q)", err, name)
	}
	if err := a.checkName(name); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, a.closedError()
	}
	if s, ok := (*a.names.Load())[name]; ok {
		return s, s.reconfigure(cfg, z)
	}
	if s, ok := a.fresh[name]; ok {
		a.miss()
		return s, s.reconfigure(cfg, z)
	}
	if err := cfg.clauses.checkSaid(name); err != nil {
		return nil, err
	}
	s := a.newSequence(name, cfg, z)
	a.fresh[name] = s
	a.miss()
	return s, nil
}

// miss counts a lookup that names did not serve, and makes a new names when
// they have paid for the copy. requires mu
func (a *Allocator) miss() {
	a.misses++
	old := *a.names.Load()
	if a.misses < len(old) {
		return
	}
	names := make(map[string]*Sequence, len(old)+len(a.fresh))
	for _, m := range []map[string]*Sequence{old, a.fresh} {
		maps.Copy(names, m)
	}
	a.names.Store(&names)
	a.fresh = map[string]*Sequence{} // a cleared map would keep its size
	a.misses = 0
}

// sequences returns all sequences.
func (a *Allocator) sequences() []*Sequence {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*Sequence
	for _, s := range *a.names.Load() {
		out = append(out, s)
	}
	for _, s := range a.fresh {
		out = append(out, s)
	}
	return out
}

func (a *Allocator) checkName(name string) error {
	var why string
	switch {
	case name == "":
		why = "it is empty"
	case len(a.opts.KeyPrefix)+len(name) > maxName:
		why = fmt.Sprintf("it has %d bytes with its prefix, at most %d are allowed", len(a.opts.KeyPrefix)+len(name), maxName)
	case !utf8.ValidString(name):
		why = "it is not UTF-8"
	default:
		return nil
	}
	return fmt.Errorf("%w: %.300q: %s", ErrInvalidName, name, why)
}

// Warm makes sure that memory holds IDs of the named sequences, so that the
// first callers do not wait. It returns when all do, or have failed, or ctx has
// ended, with the errors joined.
func (a *Allocator) Warm(ctx context.Context, names ...string) error {
	// No limit: the queue bounds the leases, and one that fails must not keep
	// another waiting.
	var g errgroup.Group
	errs := make([]error, len(names))
	for i, name := range names {
		g.Go(func() error {
			s, err := a.lookup(name, nil)
			if err == nil {
				_, err = s.wait(ctx, waiter{})
			}
			errs[i] = err
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs, all of them
	return errors.Join(errs...)
}

// CreateTable makes the table with the key that sequences need, on demand and
// protected against deletion, and waits until it can be used. A table that
// exists is left as it is if its key fits, and otherwise refused with ErrSchema.
func (a *Allocator) CreateTable(ctx context.Context) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.store.createTable(ctx)
}

func (a *Allocator) open() error {
	if a.ctx.Err() != nil {
		return a.closedError()
	}
	return nil
}

func (a *Allocator) closedError() error {
	return fmt.Errorf("%w (table %q)", ErrClosed, a.store.table())
}

// closeGrace is how long Close waits for calls to the store to heed the end of
// their context.
const closeGrace = 100 * time.Millisecond

// Close ends the Allocator: callers who wait get ErrClosed, and so does who
// comes later. What is left of the newest block of each sequence is given back
// to the table, unless another process has leased since; see [Stats] for how
// much was. It returns when that is done, within ctx and [Options.CloseTimeout],
// and all goroutines of the Allocator are gone, with the errors of what could
// not be given back, joined. A second Close waits for the first and returns nil.
func (a *Allocator) Close(ctx context.Context) error {
	a.mu.Lock()
	first := !a.closed
	a.closed = true
	a.mu.Unlock()
	var err error // read after done is closed
	if first {
		a.cancel()
		a.queue.close()
		a.sampler.close(a)
		a.poller.close(a)
		var tails []*tail
		for _, s := range a.sequences() {
			tails = append(tails, s.shut())
		}
		go func() {
			err = a.giveBack(ctx, tails)
			a.running.Wait()
			close(a.done)
		}()
	}
	select {
	case <-a.done:
		return err
	case <-ctx.Done():
	}
	// A call that heeds its context ends now as well; one that does not must not
	// keep us.
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-a.done:
		return err
	case <-grace.C:
		return fmt.Errorf("ddbseq: closing: calls to the store are still under way: %w", contextErr(ctx))
	}
}

// queue holds the sequences whose refill is due: those with callers who wait
// first, then by the time until memory is empty. It runs at most MaxParallel
// refills at once, each of them one attempt. Those whose last attempt got no
// answer in time get half of the places at the most, so that many of them do
// not keep out those that the store does answer.
type queue struct {
	mu          sync.Mutex
	due         dueHeap
	slow        dueHeap // no answer last time
	turn        int64
	running     int
	slowRunning int
	closed      bool
}

type dueRefill struct {
	s    *core
	left time.Duration // until memory is empty
	turn int64
}

func (d dueRefill) before(e dueRefill) bool {
	if d.left != e.left {
		return d.left < e.left
	}
	return d.turn < e.turn
}

// enqueue has s refilled as soon as there is a place. requires s.mu
func (a *Allocator) enqueue(s *core) {
	q := &a.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.turn++
	to := &q.due
	if s.lease.timeouts > 0 { // no refill is under way that would own it
		to = &q.slow
	}
	s.left = s.timeLeft()
	heap.Push(to, dueRefill{s: s, left: s.left, turn: q.turn})
	a.dispatch()
}

// prefer brings s to the front if it is in the queue: somebody waits now.
// requires s.mu
func (a *Allocator) prefer(s *core) {
	q := &a.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, h := range []*dueHeap{&q.due, &q.slow} {
		if i := slices.IndexFunc(*h, func(d dueRefill) bool { return d.s == s }); i >= 0 {
			(*h)[i].left = 0
			heap.Fix(h, i)
		}
	}
}

// pop takes out what comes next, nil if nothing may run now. requires mu
func (q *queue) pop(limit int) (s *core, slow bool) {
	from := &q.due
	if len(q.slow) > 0 && q.slowRunning < max(1, limit/2) && (len(q.due) == 0 || q.slow[0].before(q.due[0])) {
		from, slow = &q.slow, true
	}
	if q.closed || q.running >= limit || len(*from) == 0 {
		return nil, false
	}
	return heap.Pop(from).(dueRefill).s, slow
}

// dispatch starts what there is a place for. requires queue.mu
func (a *Allocator) dispatch() {
	q := &a.queue
	for s, slow := q.pop(a.opts.MaxParallel); s != nil; s, slow = q.pop(a.opts.MaxParallel) {
		q.count(slow, 1)
		a.running.Go(func() {
			defer func() { // also when a hook ends the goroutine
				q.mu.Lock()
				defer q.mu.Unlock()
				q.count(slow, -1)
				a.dispatch()
			}()
			s.refill()
		})
	}
}

// count adds n to what is running. requires mu
func (q *queue) count(slow bool, n int) {
	q.running += n
	if slow {
		q.slowRunning += n
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.due, q.slow = nil, nil
}

type dueHeap []dueRefill

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueRefill)) }
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = dueRefill{}
	*h = old[:len(old)-1]
	return x
}

// sampler looks at the busy sequences once a second, and is not there when
// there are none.
type sampler struct {
	mu     sync.Mutex
	active []*core
	timer  *time.Timer
	closed bool
}

const sampleEvery = time.Second

// sample has s looked at every second from now on, until it says otherwise.
// requires s.mu
func (a *Allocator) sample(s *core) {
	p := &a.sampler
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.active = append(p.active, s)
	if p.timer == nil {
		a.running.Add(1)
		p.timer = time.AfterFunc(sampleEvery, a.tick)
	}
}

func (a *Allocator) tick() {
	p := &a.sampler
	p.mu.Lock()
	active := p.active
	p.active = nil
	p.mu.Unlock()
	kept := active[:0]
	for _, s := range active {
		if s.sampled() {
			kept = append(kept, s)
		}
	}
	clear(active[len(kept):])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = append(kept, p.active...)
	if len(p.active) == 0 || p.closed {
		p.timer = nil
		a.running.Done()
		return
	}
	p.timer.Reset(sampleEvery)
}

func (p *sampler) close(a *Allocator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil && p.timer.Stop() {
		p.timer = nil
		a.running.Done()
	}
}
