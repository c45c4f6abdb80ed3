package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/bridge"
)

const (
	// A second's IDs of a process are taken at once, and the processes one after
	// the other over the second: the load on the item must not come from us.
	tick   = time.Second
	shares = 100

	// maxCallers bounds the callers of one process that wait at once. Callers
	// beyond these count as waits, and ask no more: a server whose callers all
	// wait takes no more requests.
	maxCallers = 16

	sequenceName = "fleet.id"
)

// process is one process of the fleet.
type process struct {
	dice
	f   *fleet
	all *ddbseq.Allocator
	seq *ddbseq.Sequence

	take     func(first, step, n int64)
	owed     float64 // of an ID
	stranded bool    // guarded by gate.mu

	state   sync.Mutex    // guards all below
	ready   time.Duration // when it had its first ID, or Warm had; 0 = not yet
	began   time.Duration
	waiting int
	run     run // the newest
}

// run is a run of IDs that one process handed out.
type run struct{ first, end int64 }

// overlap returns how many IDs are in more than one of runs, which it sorts.
func overlap(runs []run) (n int64) {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	var end int64
	for _, r := range runs {
		n += max(0, min(end, r.end)-r.first)
		end = max(end, r.end)
	}
	return n
}

// fleet is a simulation.
type fleet struct {
	*gate
	ctx     context.Context
	cancel  context.CancelFunc
	callers sync.WaitGroup
	procs   []*process

	res     sync.Mutex // guards all below
	runs    []run
	maxWait time.Duration
	errs    []error
}

func newFleet(s settings) (*fleet, error) {
	f := &fleet{gate: newGate(s), procs: make([]*process, s.processes)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	table := ddbseq.Memory()
	// The sequence exists: creating it is not what a fleet does when it starts.
	admin, err := ddbseq.New(table)
	if err != nil {
		return nil, err
	}
	if err := admin.Create(f.ctx, sequenceName); err != nil {
		return nil, err
	}
	if s.first > 0 {
		if err := admin.Alter(f.ctx, sequenceName, ddbseq.Tune(func(t *ddbseq.Tuning) { t.FirstBlock = &s.first })); err != nil {
			return nil, err
		}
	}
	if err := admin.Close(f.ctx); err != nil {
		return nil, err
	}
	for i := range f.procs {
		p := &process{f: f}
		p.pcg.Seed(s.seed, uint64(i))
		p.take = p.took
		store := bridge.Intercept(table, f.hook(p)).(*ddbseq.Store)
		p.all, err = ddbseq.New(store, func(o *ddbseq.Options) {
			bridge.SetRand(o, p.rand)
			o.Runway, o.LeaseEvery, o.WarmSplay = s.runway, s.leaseEvery, s.splay
			o.CreateMissing = false
		})
		if err != nil {
			return nil, err
		}
		if p.seq, err = p.all.Sequence(sequenceName); err != nil {
			return nil, err
		}
		f.procs[i] = p
	}
	return f, nil
}

// begin starts p: it asks for its first ID, or warms up, after delay.
func (f *fleet) begin(p *process, warm bool, delay time.Duration) {
	f.callers.Go(func() {
		time.Sleep(delay)
		p.began = f.now()
		if warm {
			f.note(p.all.Warm(f.ctx, sequenceName))
		} else {
			id, err := p.seq.Next(f.ctx)
			if err == nil {
				p.took(id, 1, 1)
			}
			f.note(err)
		}
		p.state.Lock()
		defer p.state.Unlock()
		p.ready = f.now()
	})
}

func (f *fleet) note(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	f.res.Lock()
	defer f.res.Unlock()
	if f.errs = append(f.errs, err); len(f.errs) > 10 {
		f.errs = f.errs[:10]
	}
}

// drive has all processes that are ready take IDs at the rate, for d.
func (f *fleet) drive(d time.Duration) {
	for end := f.now() + d; f.now() < end; {
		for i := range shares {
			if f.rate > 0 {
				for j := i; j < len(f.procs); j += shares {
					f.procs[j].use()
				}
			}
			time.Sleep(tick / shares)
		}
	}
}

// use takes what p needs for a second.
func (p *process) use() {
	p.state.Lock()
	ready, waiting := p.ready > 0, p.waiting
	p.state.Unlock()
	if !ready {
		return
	}
	p.owed += p.f.rate
	n := int64(p.owed)
	p.owed -= float64(n)
	if n == 0 {
		return
	}
	n -= bridge.Take(p.seq, n, p.take)
	if n == 0 {
		return
	}
	callers := min(n, int64(maxCallers-waiting))
	p.f.mu.Lock()
	p.f.counts.waits += callers
	p.f.counts.shed += n - callers
	p.f.mu.Unlock()
	p.state.Lock()
	p.waiting += int(callers)
	p.state.Unlock()
	for range callers {
		p.f.callers.Go(p.next)
	}
}

// next is a caller that found memory empty.
func (p *process) next() {
	began := p.f.now()
	id, err := p.seq.Next(p.f.ctx)
	if err == nil {
		p.took(id, 1, 1)
	}
	p.f.note(err)
	p.state.Lock()
	p.waiting--
	p.state.Unlock()
	p.f.res.Lock()
	defer p.f.res.Unlock()
	p.f.maxWait = max(p.f.maxWait, p.f.now()-began)
}

// took notes a run of IDs that p has handed out.
func (p *process) took(first, _, n int64) {
	p.f.mu.Lock()
	p.f.counts.issued += n
	p.f.mu.Unlock()
	p.state.Lock()
	defer p.state.Unlock()
	if first == p.run.end {
		p.run.end += n
		return
	}
	p.flush()
	p.run = run{first, first + n}
}

// flush hands the newest run in. requires state.
func (p *process) flush() {
	if p.run.end > p.run.first {
		p.f.res.Lock()
		defer p.f.res.Unlock()
		p.f.runs = append(p.f.runs, p.run)
	}
}

// duplicates returns how many IDs were handed out more than once.
func (f *fleet) duplicates() int64 {
	for _, p := range f.procs {
		p.state.Lock()
		p.flush()
		p.run = run{}
		p.state.Unlock()
	}
	return overlap(f.runs)
}

// notReady returns how many processes have no ID yet.
func (f *fleet) notReady() (n int) {
	for _, p := range f.procs {
		p.state.Lock()
		if p.ready == 0 {
			n++
		}
		p.state.Unlock()
	}
	return n
}

// close ends all processes.
func (f *fleet) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.cancel()
	f.callers.Wait()
	for _, p := range f.procs {
		_ = p.all.Close(context.Background()) // what it cannot give back it says, and nobody wants to know
	}
}

// simulate runs a fleet and prints what it did.
func simulate(s settings, out io.Writer) (*report, error) {
	f, err := newFleet(s)
	if err != nil {
		return nil, err
	}
	r := &report{f: f}
	switch s.mode {
	case modeStart:
		err = f.modeStart(r)
	case modeSteady:
		err = f.modeSteady(r)
	case modeOutage:
		err = f.modeOutage(r)
	}
	f.res.Lock()
	err = errors.Join(append(f.errs, err)...)
	f.res.Unlock()
	f.close()
	if err != nil {
		return nil, err
	}
	r.duplicates = f.duplicates()
	r.print(out)
	if s.series {
		r.printSeries(out)
	}
	if r.duplicates > 0 {
		err = fmt.Errorf("fleet: %d IDs were handed out twice", r.duplicates)
	}
	return r, err
}

// modeStart: all begin at once, until all are ready.
func (f *fleet) modeStart(r *report) error {
	for _, p := range f.procs {
		f.begin(p, f.warm, time.Duration(p.rand()*float64(f.within)))
	}
	patience := 20*f.ideal(f.processes) + f.within + f.splay + time.Minute
	for f.notReady() > 0 {
		if f.now() > patience {
			return fmt.Errorf("fleet: %d processes are not ready after %v", f.notReady(), f.now())
		}
		f.drive(tick)
	}
	r.measure(counts{}, 0)
	return nil
}

// warmUpFleet brings the fleet to where it would be after days.
func (f *fleet) warmUpFleet() error {
	for _, p := range f.procs {
		f.begin(p, true, 0)
	}
	f.drive(f.warmUp)
	if n := f.notReady(); n > 0 {
		return fmt.Errorf("fleet: %d processes are not ready after the warm-up", n)
	}
	f.res.Lock()
	defer f.res.Unlock()
	f.maxWait = 0
	return nil
}

func (f *fleet) modeSteady(r *report) error {
	if err := f.warmUpFleet(); err != nil {
		return err
	}
	before, since := f.snapshot(), f.now()
	r.warmUp = before
	f.drive(f.length)
	r.measure(before, since)
	r.late.writes, r.late.throttled = f.peak(since, f.now())
	return nil
}

func (f *fleet) modeOutage(r *report) error {
	if err := f.warmUpFleet(); err != nil {
		return err
	}
	before, since := f.snapshot(), f.now()
	r.warmUp = before
	f.setAway(true)
	f.drive(f.outage)
	during := f.snapshot().minus(before)
	r.probes = float64(during.calls()) / f.outage.Seconds() / float64(f.processes)
	back := f.now()
	r.stranded = f.setAway(false)
	f.drive(f.length)
	r.measure(before, since)
	f.mu.Lock()
	refilled := f.refilled
	f.mu.Unlock()
	if refilled < back && r.stranded > 0 {
		return fmt.Errorf("fleet: some of %d processes were not refilled in %v", r.stranded, f.length)
	}
	r.refill = max(0, refilled-back)
	r.recovery.writes, r.recovery.throttled = f.peak(back.Truncate(seriesEvery), refilled)
	// One LeaseEvery later is when those that were refilled together are due
	// together again.
	r.late.writes, r.late.throttled = f.peak(refilled+f.leaseEvery/2, refilled+f.leaseEvery*5/2)
	return nil
}
