package ddbseq

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The interleaving test runs the real protocol code (core.refill and all below
// it, tail.giveBack, the admin calls) of several processes in coroutines that
// stop at every call to the store. A scheduler picks which call goes on, and
// what becomes of it, and tries all choices, one schedule after the other. There
// is no goroutine of an Allocator and no clock in it, so that a schedule is
// repeated exactly by its choices.

// A chooser makes the choices of a schedule: those of a prefix again and 0 from
// there on, which means that the process that runs goes on and nothing goes
// wrong; or random ones. Every other choice (another process, a fault, an event)
// is a deviation.
type chooser struct {
	taken, of []int
	at        int
	most      int // deviations in one schedule
	rng       *rand.Rand
}

func (c *chooser) choose(n int) int {
	if c.rng != nil {
		return c.rng.IntN(n)
	}
	if c.at == len(c.taken) {
		c.taken, c.of = append(c.taken, 0), append(c.of, n)
	}
	if c.of[c.at] != n {
		panic("a schedule is not repeatable")
	}
	c.at++
	return c.taken[c.at-1]
}

// next moves on to the next schedule, depth first.
func (c *chooser) next() bool {
	c.at = 0
	deviations := 0
	for _, i := range c.taken {
		if i > 0 {
			deviations++
		}
	}
	for i := len(c.taken) - 1; i >= 0; i-- {
		if c.taken[i] > 0 {
			deviations--
		}
		if c.taken[i]+1 < c.of[i] && deviations < c.most {
			c.taken[i]++
			c.taken, c.of = c.taken[:i+1], c.of[:i+1]
			return true
		}
	}
	return false
}

// A scenario is what the processes do; the scheduler decides when.
type scenario struct {
	name    string
	item    *item                     // in the table at first; nil = created by the first lease
	block   int64                     // lease size
	faults  int                       // calls that may go wrong in one schedule
	wrong   bool                      // and be answered by wrong numbers
	blind   bool                      // reads are denied
	threads []func(*world, *thread)   // each runs in a coroutine
	events  map[string]func(*world)   // what others do to the table, each once
	when    func(*world, string) bool // whether an event can happen now; nil = always
	limit   int64                     // IDs a day
	reuse   bool                      // a Restart may go back: another life begins
	cycle   bool
	visible bool // an event lets no process that leases go on
	allowed func(error) bool
}

// A stored call waits for the scheduler.
type storeCall struct {
	ch   *change // nil: a read
	it   *item
	err  error
	done bool // it was carried out, and the answer is on its way
}

type thread struct {
	w        *world
	name     string
	next     func() (*storeCall, bool)
	stop     func()
	yield    func(*storeCall) bool
	call     *storeCall // that it waits for
	process  *actor
	inRefill bool
}

// A grantedBlock is a lease as the table saw it.
type grantedBlock struct {
	first, step, n int64
	life           int
	day            string
	process        *actor
	issued         map[int64]bool
}

type actor struct {
	w      *world
	a      *Allocator
	s      *Sequence
	name   string
	last   *int64 // last ID issued, and in which life it was leased
	life   int
	since  int  // the life that it has restarted the sequence into itself
	knows  bool // the item was seen
	closed bool
	ended  error // a verdict that ended its leases
}

// lateCall was given up by its caller and is still under way.
type lateCall struct {
	ch      *change
	process *actor
}

type world struct {
	sc      *scenario
	mem     *memory
	pick    *chooser
	threads []*thread
	running *thread
	direct  *actor // its calls are not scheduled
	procs   []*actor
	late    []lateCall
	blocks  []*grantedBlock
	owners  map[[2]int64]*actor // of (life, ID)
	history []item
	life    int
	faults  int
	events  []string // still to come
	touched bool     // an event has happened
	blurred bool     // IDs may repeat over processes
	wrongs  int
	now     time.Time
	perDay  map[string]int64 // IDs issued of blocks leased on it
	floor   *int64           // Advance has returned: later leases lie beyond
	trace   []string
	tracing bool
	over    bool // threads are being stopped
	bad     string
}

const worldKey = "s"

var errLate = errors.New("no answer")

func (w *world) fail(format string, args ...any) {
	if w.bad == "" && !w.over {
		w.bad = fmt.Sprintf(format, args...)
	}
}

func (w *world) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

// baton is the backend of one process: every call waits for the scheduler.
type baton struct {
	w *world
	p *actor
}

func (b *baton) table() string                     { return "table" }
func (b *baton) check() error                      { return nil }
func (b *baton) createTable(context.Context) error { return nil }
func (b *baton) clock() time.Time                  { return b.w.now }
func (b *baton) page(context.Context, string, cursor) ([]listed, cursor, error) {
	return nil, nil, nil
}

func (b *baton) peek(ctx context.Context, key string) (*item, error) { return b.get(ctx, key) }

func (b *baton) get(_ context.Context, _ string) (*item, error) {
	return b.w.call(b.p, &storeCall{})
}

func (b *baton) apply(_ context.Context, ch *change) (*item, error) {
	return b.w.call(b.p, &storeCall{ch: ch})
}

func (w *world) call(p *actor, c *storeCall) (*item, error) {
	if w.direct == p {
		w.carryOut(p, c, false)
		return c.it, c.err
	}
	th := w.running
	th.process = p
	if !th.yield(c) {
		return nil, &LeaseError{Op: "stopped", Permanent: true, Err: errLate}
	}
	return c.it, c.err
}

// carryOut lets a call have its effect, and checks the effect. Nobody hears of
// the effect of a late call.
func (w *world) carryOut(p *actor, c *storeCall, late bool) {
	ctx := context.Background()
	if c.ch == nil {
		if w.sc.blind {
			c.err = &LeaseError{Op: "GetItem", Permanent: true, kind: ErrAccessDenied, Err: errors.New("denied")}
			return
		}
		c.it, c.err = w.mem.get(ctx, worldKey)
		p.knows = p.knows || c.it != nil
		return
	}
	old, had := w.mem.items[worldKey]
	c.it, c.err = w.mem.apply(ctx, c.ch)
	p.knows = p.knows || had
	if c.err != nil {
		return
	}
	p.knows = true
	if had && c.ch.touches() && old.tok == c.ch.token {
		w.fail("a change of %s was made twice", p.name)
	}
	now := w.mem.items[worldKey]
	w.history = append(w.history, now)
	if (c.ch.epoch > 0 || c.ch.follow) && w.sc.reuse {
		w.life++
		w.floor = nil
	}
	d := now.definition()
	if now.lastID != nil && !d.contains(*now.lastID) && c.ch.base.ver != "" {
		w.fail("the stored number %d is outside of %v", *now.lastID, d)
	}
	if c.ch.n > 0 {
		w.checkLease(p, c.ch, old, had, now, late)
	}
}

// checkLease works out again, in plain arithmetic, what a lease must have done.
func (w *world) checkLease(p *actor, ch *change, old item, had bool, now item, late bool) {
	d := now.definition()
	want := d.Start
	switch {
	case !had:
	case old.lastID == nil:
		if old.from != nil {
			want = *old.from
		} else {
			want = old.definition().Start
		}
	default:
		want = *old.lastID + d.Increment
		if !d.contains(want) && d.Cycle {
			want = d.Min
			if d.Increment < 0 {
				want = d.Max
			}
		}
	}
	first := *now.lastID - (ch.n-1)*d.Increment
	if first != want {
		w.fail("%s leased from %d, want from %d", p.name, first, want)
	}
	if had && old.lastID != nil && old.at != nil && d.after(*old.at, *old.lastID) {
		w.fail("%s leased from a counter that was lowered", p.name)
	}
	if w.floor != nil && !d.after(first, *w.floor) {
		w.fail("%s leased %d after an Advance to %d", p.name, first, *w.floor)
	}
	if !late && !w.sc.cycle && p.last != nil && p.life == w.life && !d.after(first, *p.last) {
		w.fail("%s leased %d and had issued %d: it saw the counter move back", p.name, first, *p.last)
	}
	b := &grantedBlock{first: first, step: d.Increment, n: ch.n, life: w.life, process: p, issued: map[int64]bool{}}
	if ch.limit != nil {
		b.day = ch.limit.day
	}
	w.blocks = append(w.blocks, b)
}

// issue checks an ID that a process hands out.
func (w *world) issue(p *actor, id int64) {
	w.note("%s issues %d", p.name, id)
	for _, b := range slices.Backward(w.blocks) { // an older one may have got lost
		i := (id - b.first) / b.step
		if b.process != p || i < 0 || i >= b.n || b.first+i*b.step != id || b.issued[id] {
			continue
		}
		b.issued[id] = true
		if b.life < p.since {
			w.fail("%s issued %d from before its own Restart", p.name, id)
		}
		if w.perDay[b.day]++; w.sc.limit > 0 && w.perDay[b.day] > w.sc.limit {
			w.fail("%d IDs were issued on %s", w.perDay[b.day], b.day)
		}
		if w.sc.cycle {
			return
		}
		if p.last != nil && p.life == b.life && (id-*p.last)*b.step <= 0 && !w.turned() {
			w.fail("%s issued %d after %d", p.name, id, *p.last)
		}
		p.last, p.life = &id, b.life
		key := [2]int64{int64(b.life), id}
		if o, ok := w.owners[key]; ok && (!w.blurred || o == p) {
			w.fail("%d was issued by %s and by %s", id, o.name, p.name)
		}
		w.owners[key] = p
		return
	}
	w.fail("%s issued %d, which it has no lease for", p.name, id)
}

// turned reports whether the direction may have changed in this scenario.
func (w *world) turned() bool { return w.sc.reuse }

// process starts another process.
func (w *world) process(name string) *actor {
	p := &actor{w: w, name: name}
	p.a = must(New(&Store{backend: &baton{w: w, p: p}}, fixed(w.sc.block), func(o *Options) {
		o.CreateMissing = w.sc.item == nil
		o.errorHold = 0
		o.rand = func() float64 {
			if w.running != nil && w.running.inRefill {
				return 1e6 // the timer is stopped, never waited for
			}
			return 0
		}
	}))
	p.a.queue.running = p.a.opts.MaxParallel // refills are run here, not by the queue
	p.s = must(p.a.Sequence(worldKey))
	w.procs = append(w.procs, p)
	return p
}

// refill runs the refill that is due, until it has ended one way or the other.
// It reports whether there may be IDs now.
func (p *actor) refill(th *thread) bool {
	for range 20 {
		q := &p.a.queue
		q.mu.Lock()
		if len(q.due) == 0 {
			q.mu.Unlock()
			return false
		}
		heap.Pop(&q.due)
		q.mu.Unlock()
		th.inRefill = true
		p.s.refill()
		th.inRefill = false
		p.s.mu.Lock()
		again := p.s.timer != nil
		if again && p.s.timer.Stop() {
			p.s.timer = nil
			p.a.running.Done()
			p.a.enqueue(p.s.core)
		}
		err := p.s.err
		p.s.mu.Unlock()
		if !again {
			if err == nil || !permanent(err) { // or an old one: what came is of the past
				return true
			}
			p.w.note("%s: %v", p.name, err)
			p.ended = err
			return false
		}
	}
	p.w.fail("%s cannot refill", p.name)
	return false
}

// take issues n IDs, leasing what memory does not hold.
func (p *actor) take(th *thread, n int) {
	for tries := 0; n > 0 && tries < 20; tries++ {
		if id, ok := p.s.TryNext(); ok {
			p.w.issue(p, id)
			n--
			continue
		}
		if !p.refill(th) {
			if p.ended != nil {
				p.w.judge(p.ended)
				return
			}
			return // refreshed or closed meanwhile
		}
	}
}

func (p *actor) giveBack(t *tail) {
	if t != nil && t.n > 0 && t.newest != nil {
		p.w.judge(t.giveBack(p.ctx()))
	}
}

func (p *actor) ctx() context.Context { return context.Background() }

func (p *actor) close() {
	p.closed = true
	p.giveBack(p.s.shut())
}

func (p *actor) refresh() { p.giveBack(p.s.refresh(nil)) }

// judge notes an error and says whether it may come up.
func (w *world) judge(err error) {
	if err == nil {
		return
	}
	w.note("error: %v", err)
	switch {
	case w.sc.allowed != nil && w.sc.allowed(err):
	case w.touched && (errors.Is(err, ErrCounterMovedBack) || errors.Is(err, ErrNotFound)):
	case w.wrongs > 0 && (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrCounterMovedBack)):
	default:
		w.fail("out of the blue: %v", err)
	}
}

// An action is one thing that can happen next.
type action struct {
	thread  int // which one's call
	outcome string
	late    int // or which late call
	event   string
}

var (
	writeFaults = []string{"is throttled", "is applied and its reply lost", "is held back"}
	wrongs      = []string{"is answered without a number", "is answered for another count", "is answered 0", "is answered for another token"}
)

// actions lists what can happen next, first that the thread that ran last goes
// on.
func (w *world) actions(last int) []action {
	var out []action
	for k := range w.threads {
		i := (last + k) % len(w.threads)
		th := w.threads[i]
		if th.call == nil {
			continue
		}
		if th.call.ch == nil {
			out = append(out, action{thread: i, outcome: "reads"})
			continue
		}
		if th.call.done {
			out = append(out, action{thread: i, outcome: "is answered"})
			continue
		}
		out = append(out, action{thread: i, outcome: "writes"}, action{thread: i, outcome: "writes and waits"})
		if w.faults > 0 {
			for _, f := range writeFaults {
				out = append(out, action{thread: i, outcome: f})
			}
			if w.sc.wrong && th.call.ch.n > 0 {
				for _, f := range wrongs {
					out = append(out, action{thread: i, outcome: f})
				}
			}
		}
	}
	for i := range w.late {
		out = append(out, action{late: i, event: "late"})
	}
	for _, e := range w.events {
		if w.sc.when == nil || w.sc.when(w, e) {
			out = append(out, action{event: e})
		}
	}
	return out
}

func (w *world) perform(a action) {
	switch a.event {
	case "":
	case "late":
		l := w.late[a.late]
		w.late = slices.Delete(w.late, a.late, a.late+1)
		c := &storeCall{ch: l.ch}
		w.carryOut(l.process, c, true)
		w.note("late write of %s arrives: %v", l.process.name, c.err == nil)
		return
	default:
		w.note("event: %s", a.event)
		w.events = slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return e == a.event })
		w.touched = true
		w.sc.events[a.event](w)
		return
	}
	th := w.threads[a.thread]
	c := th.call
	switch a.outcome {
	case "reads", "writes":
		w.carryOut(th.process, c, false)
	case "is answered":
	case "writes and waits":
		w.carryOut(th.process, c, false)
		c.done = true
		w.note("%s writes and waits for the answer %s -> %s", th.process.name, c.text(), w.stored())
		return
	case "is throttled":
		w.faults--
		c.err = &LeaseError{Op: "UpdateItem", Throttled: true, kind: ErrThrottled, Err: errLate}
	case "is applied and its reply lost":
		w.faults--
		w.carryOut(th.process, c, false)
		c.it, c.err = nil, &LeaseError{Op: "UpdateItem", MaybeApplied: true, now: true, Err: errLate}
	case "is held back":
		w.faults--
		w.late = append(w.late, lateCall{c.ch, th.process})
		c.err = &LeaseError{Op: "UpdateItem", MaybeApplied: true, Err: errLate}
	default:
		w.faults--
		w.wrongs++
		if w.carryOut(th.process, c, false); c.err == nil {
			garble(c, a.outcome)
		}
	}
	if w.tracing {
		w.note("%s %s %s -> %s", th.process.name, a.outcome, c.text(), w.stored())
	}
	w.resume(th)
}

// garble makes the answer to a lease a wrong one.
func garble(c *storeCall, how string) {
	switch how {
	case "is answered without a number":
		c.it.at, c.it.lastID = nil, nil
	case "is answered for another count":
		c.it.n++
	case "is answered 0":
		c.it.at, c.it.lastID = new(int64), new(int64)
	case "is answered for another token":
		c.it.tok = "another"
	}
}

func (c *storeCall) text() string {
	ch := c.ch
	switch {
	case ch == nil:
		return "(read)"
	case ch.n > 0:
		return fmt.Sprintf("(lease %d, token %.4s)", ch.n, ch.token)
	case ch.holds != "":
		return fmt.Sprintf("(give-back, holds %.4s, token %.4s)", ch.holds, ch.token)
	}
	return fmt.Sprintf("(change, epoch %d, token %.4s)", ch.epoch, ch.token)
}

func (w *world) stored() string {
	it, ok := w.mem.items[worldKey]
	if !ok {
		return "no item"
	}
	return fmt.Sprintf("lastID %s at %s n %d tok %.4s epoch %d from %s", text(it.lastID), text(it.at), it.n, it.tok, it.epoch, text(it.from))
}

func (w *world) resume(th *thread) {
	w.running = th
	call, ok := th.next()
	w.running = nil
	if !ok {
		call = nil
	}
	th.call = call
}

// run plays one schedule.
func (w *world) run() {
	for i, program := range w.sc.threads {
		th := &thread{w: w, name: string(rune('A' + i))}
		th.next, th.stop = iter.Pull(func(yield func(*storeCall) bool) {
			th.yield = yield
			program(w, th)
		})
		w.threads = append(w.threads, th)
	}
	defer func() {
		w.over = true
		for _, th := range w.threads {
			th.stop()
		}
		for _, p := range w.procs {
			p.a.cancel()
			p.a.queue.close()
			p.a.sampler.close(p.a)
		}
	}()
	for _, th := range w.threads {
		w.resume(th)
	}
	last := 0
	for w.bad == "" {
		all := w.actions(last)
		done := !slices.ContainsFunc(w.threads, func(th *thread) bool { return th.call != nil })
		n := len(all)
		if done {
			n++ // to end it here
		}
		i := w.pick.choose(n)
		if done {
			if i == 0 {
				break
			}
			i--
		}
		if all[i].event == "" {
			last = all[i].thread
		}
		w.perform(all[i])
	}
	if w.bad == "" {
		w.settle()
	}
}

// settle looks at every process that still runs, now that all is quiet: what is
// in memory is handed out, and then it leases once more, which must work, or
// must be refused if the process can see that the counter moved back.
func (w *world) settle() {
	for _, p := range w.procs {
		if p.closed {
			continue
		}
		for id, ok := p.s.TryNext(); ok; id, ok = p.s.TryNext() {
			w.issue(p, id)
		}
	}
	for _, p := range w.procs {
		if p.closed || w.bad != "" {
			continue
		}
		must, may := w.refused(p)
		w.direct = p
		p.ended = nil
		_, ok := p.s.TryNext()
		for !ok && p.refill(&thread{}) {
			var id int64
			if id, ok = p.s.TryNext(); ok {
				w.issue(p, id)
			}
		}
		w.direct = nil
		switch {
		case ok && must:
			w.fail("%s leases from a counter that moved back: %s", p.name, w.stored())
		case !ok && p.ended == nil:
			w.fail("%s gets no IDs", p.name)
		case !ok && must && !errors.Is(p.ended, ErrCounterMovedBack):
			w.fail("%s: %v", p.name, p.ended)
		case !ok && !may && (w.sc.allowed == nil || !w.sc.allowed(p.ended)):
			w.fail("%s: in the end: %v", p.name, p.ended)
		}
	}
}

// refused says whether p's next lease must, or may, be refused.
func (w *world) refused(p *actor) (must, may bool) {
	it, ok := w.mem.items[worldKey]
	if !ok {
		return p.knows && p.last != nil, true
	}
	if it.behindAt() {
		return true, true
	}
	d := it.definition()
	if p.last != nil && !w.sc.cycle && !w.sc.reuse {
		if it.lastID != nil && d.after(*p.last, *it.lastID) || it.lastID == nil && !d.after(it.first(), *p.last) {
			return true, true
		}
	}
	return false, w.touched && !w.sc.visible
}

// explore plays all schedules of a scenario with up to most deviations, and then
// some random ones. It returns how many.
func (sc *scenario) explore(t *testing.T, most, random int) (n int) {
	t.Helper()
	play := func(c *chooser, tracing bool) *world {
		w := &world{
			sc: sc, mem: &memory{items: map[string]item{}}, pick: c, owners: map[[2]int64]*actor{},
			faults: sc.faults, tracing: tracing,
			now: time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC), perDay: map[string]int64{},
		}
		for e := range sc.events {
			w.events = append(w.events, e)
		}
		slices.Sort(w.events)
		if sc.item != nil {
			w.mem.items[worldKey] = *sc.item
			w.history = append(w.history, *sc.item)
		}
		w.run()
		return w
	}
	report := func(taken []int, again *chooser) {
		t.Helper()
		w := play(again, true)
		t.Fatalf("%s\nschedule %v:\n  %s", w.bad, taken, strings.Join(w.trace, "\n  "))
	}
	for c := (&chooser{most: most}); ; {
		n++
		if w := play(c, false); w.bad != "" {
			report(c.taken, &chooser{taken: c.taken, of: c.of})
		}
		if !c.next() {
			break
		}
	}
	for seed := range uint64(random) {
		n++
		source := func() *chooser { return &chooser{rng: rand.New(rand.NewPCG(seed, 1))} }
		if w := play(source(), false); w.bad != "" {
			report(nil, source())
		}
	}
	return n
}
