package ddbseq

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// stored returns an item as Create leaves it.
func storedItem(cs ...Clause) *item {
	c := gather(cs).explicit()
	return &item{key: worldKey, def: &c, ver: "ver", born: "born", tok: "created", v: layoutVersion}
}

// withLast returns it as a lease of somebody else's, one ID, left it.
func withLast(it *item, last int64) *item {
	it.lastID, it.at, it.n, it.tok = &last, &last, 1, "theirs"
	return it
}

func takes(n int) func(*world, *thread) {
	return func(w *world, th *thread) { w.process(th.name).take(th, n) }
}

func takesAndCloses(n int) func(*world, *thread) {
	return func(w *world, th *thread) {
		p := w.process(th.name)
		p.take(th, n)
		p.close()
	}
}

// admin runs an admin call of a process of its own.
func admin(call func(p *actor) error) func(*world, *thread) {
	return func(w *world, th *thread) {
		p := w.process(th.name)
		p.closed = true // it never leases
		w.judge(call(p))
	}
}

// edit changes the item by hand.
func edit(f func(*item)) func(*world) {
	return func(w *world) {
		it := w.mem.items[worldKey]
		f(&it)
		w.mem.items[worldKey] = it
	}
}

func exists(w *world, _ string) bool {
	it, ok := w.mem.items[worldKey]
	return ok && it.lastID != nil
}

func isAny(errs ...error) func(error) bool {
	return func(err error) bool {
		for _, e := range errs {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
}

// restores makes events that put the item back to how it was after each of its
// first n writes.
func restores(n int) map[string]func(*world) {
	out := map[string]func(*world){}
	for i := range n {
		out[fmt.Sprint("restore ", i)] = func(w *world) {
			w.mem.items[worldKey] = w.history[i]
			w.blurred = true
			w.events = nil
		}
	}
	return out
}

func restorable(w *world, e string) bool {
	var i int
	_, _ = fmt.Sscanf(e, "restore %d", &i)
	return i < len(w.history)-1
}

func scenarios() []*scenario {
	return []*scenario{
		{
			name: "give-back after a give-back", item: storedItem(), block: 2, faults: 1,
			threads: []func(*world, *thread){takesAndCloses(1), takesAndCloses(1), takes(1)},
		},
		{
			name: "give-back, two faults", item: storedItem(), block: 2, faults: 2,
			threads: []func(*world, *thread){takesAndCloses(1), takesAndCloses(1)},
		},
		{
			name: "give-back, three faults", item: withLast(storedItem(), 10), block: 4, faults: 3,
			threads: []func(*world, *thread){takesAndCloses(1), takes(5)},
		},
		{
			name: "descending", item: storedItem(IncrementBy(-3), MaxValue(100)), block: 2, faults: 1,
			threads: []func(*world, *thread){takesAndCloses(3), takesAndCloses(1)},
		},
		{
			name: "created by the first lease", block: 2, faults: 2,
			threads: []func(*world, *thread){takes(1), takesAndCloses(1)},
		},
		{
			name: "reads denied", item: storedItem(), block: 2, faults: 1, blind: true,
			threads: []func(*world, *thread){takesAndCloses(1), takes(1)},
		},
		{
			name: "wrong numbers", item: withLast(storedItem(), 10), block: 2, faults: 2, wrong: true,
			threads: []func(*world, *thread){takesAndCloses(3), takes(1)},
		},
		{
			name: "refresh under a lease", item: storedItem(), block: 2, faults: 1,
			threads: []func(*world, *thread){
				func(w *world, th *thread) { w.process("A").take(th, 3) },
				func(w *world, _ *thread) { w.procs[0].refresh() },
				takesAndCloses(1),
			},
		},
		{
			name: "restart into old values", item: withLast(storedItem(), 4), block: 2, faults: 1, reuse: true,
			allowed: isAny(ErrOutcomeUnknown),
			threads: []func(*world, *thread){
				takesAndCloses(3), takes(1),
				admin(func(p *actor) error { return p.a.Restart(p.ctx(), worldKey, 1, AllowReuse()) }),
			},
		},
		{
			name: "restart by oneself under a lease", item: withLast(storedItem(), 4), block: 2, faults: 1, reuse: true,
			allowed: isAny(ErrOutcomeUnknown),
			threads: []func(*world, *thread){
				func(w *world, th *thread) { w.process("A").take(th, 3) },
				func(w *world, _ *thread) {
					p := w.procs[0]
					err := p.a.Restart(p.ctx(), worldKey, 1, AllowReuse())
					if w.judge(err); err == nil {
						p.since = w.life
					}
				},
				takesAndCloses(1),
			},
		},
		{
			name: "restart onwards", item: withLast(storedItem(), 4), block: 2, faults: 1,
			allowed: isAny(ErrOutcomeUnknown, ErrReuse),
			threads: []func(*world, *thread){
				takesAndCloses(3), takes(1),
				admin(func(p *actor) error { return p.a.Restart(p.ctx(), worldKey, 9) }),
			},
		},
		{
			name: "restart onwards of a new one", item: storedItem(), block: 2, faults: 2,
			allowed: isAny(ErrOutcomeUnknown, ErrReuse),
			threads: []func(*world, *thread){
				takesAndCloses(1),
				admin(func(p *actor) error { return p.a.RestartAfter(p.ctx(), worldKey, 2) }),
			},
		},
		{
			name: "alter", item: withLast(storedItem(), 4), block: 2, faults: 1,
			threads: []func(*world, *thread){
				takesAndCloses(3), takes(1),
				admin(func(p *actor) error { return p.a.Alter(p.ctx(), worldKey, IncrementBy(5), MaxValue(1000)) }),
			},
		},
		{
			name: "turn round", item: withLast(storedItem(), 50), block: 2, faults: 1, reuse: true,
			allowed: isAny(ErrOutcomeUnknown),
			threads: []func(*world, *thread){
				takesAndCloses(3),
				admin(func(p *actor) error { return p.a.Alter(p.ctx(), worldKey, IncrementBy(-1), AllowReuse()) }),
			},
		},
		{
			name: "advance", item: withLast(storedItem(), 4), block: 2, faults: 1,
			threads: []func(*world, *thread){
				takesAndCloses(1), takes(3),
				admin(func(p *actor) error {
					v, err := p.a.Advance(p.ctx(), worldKey, 7)
					if err == nil && v >= 7 {
						p.w.floor = new(int64(7))
					}
					return err
				}),
			},
		},
		{
			name: "cycle", item: storedItem(MaxValue(3), Cycle()), block: 2, faults: 1, cycle: true,
			threads: []func(*world, *thread){takesAndCloses(3), takes(3)},
		},
		{
			name: "exhausted", item: storedItem(MaxValue(5)), block: 2, faults: 1, allowed: isAny(ErrExhausted),
			threads: []func(*world, *thread){takesAndCloses(3), takesAndCloses(3)},
		},
		{
			name: "daily limit", item: storedItem(DailyLimit(4)), block: 3, faults: 2, limit: 4, allowed: isAny(ErrDailyLimit),
			threads: []func(*world, *thread){takesAndCloses(1), takesAndCloses(4)},
		},
		{
			name: "daily limit over midnight", item: storedItem(DailyLimit(3)), block: 2, faults: 1, limit: 3, allowed: isAny(ErrDailyLimit),
			events: map[string]func(*world){"midnight": func(w *world) {
				w.touched, w.now = false, w.now.Add(2*time.Hour)
			}},
			threads: []func(*world, *thread){takesAndCloses(3), takesAndCloses(1), takes(2)},
		},
		{
			name: "lowered by hand", item: withLast(storedItem(), 10), block: 2, faults: 1, visible: true,
			when:    func(w *world, _ string) bool { it := w.mem.items[worldKey]; return *it.lastID > 10 },
			events:  map[string]func(*world){"lower": edit(func(it *item) { it.lastID = new(int64(9)) })},
			threads: []func(*world, *thread){takesAndCloses(3), takes(1), takes(1)},
		},
		{
			name: "lowered by hand under an Advance", item: withLast(storedItem(), 10), block: 2,
			when:   func(w *world, _ string) bool { it := w.mem.items[worldKey]; return *it.lastID > 12 },
			events: map[string]func(*world){"lower": edit(func(it *item) { it.lastID = new(int64(9)) })},
			threads: []func(*world, *thread){
				takes(3), takes(1),
				admin(func(p *actor) error {
					_, err := p.a.Advance(p.ctx(), worldKey, 12)
					return err
				}),
			},
		},
		{
			name: "raised by an old generator", item: &item{key: worldKey, lastID: new(int64(10))}, block: 2, faults: 1,
			when: exists,
			events: map[string]func(*world){"old generator": func(w *world) {
				w.touched = false // nothing that anyone may complain of
				it := w.mem.items[worldKey]
				old := &actor{name: "old generator"}
				for i := range int64(2) {
					id := *it.lastID + 1 + i
					if _, ok := w.owners[[2]int64{0, id}]; ok {
						w.fail("%d would be issued twice", id)
					}
					w.owners[[2]int64{0, id}] = old
				}
				it.lastID = new(*it.lastID + 2)
				w.mem.items[worldKey] = it
			}},
			threads: []func(*world, *thread){takesAndCloses(1), takes(1)},
		},
		{
			name: "restored", item: withLast(storedItem(), 10), block: 2, faults: 1,
			when: restorable, events: restores(4),
			threads: []func(*world, *thread){takesAndCloses(3), takes(1)},
		},
		{
			name: "deleted", item: withLast(storedItem(), 10), block: 2, faults: 1,
			events:  map[string]func(*world){"delete": func(w *world) { delete(w.mem.items, worldKey) }},
			threads: []func(*world, *thread){takesAndCloses(1), takes(3)},
		},
		{
			name: "deleted and created by a lease", block: 2, faults: 1,
			when: exists,
			events: map[string]func(*world){"delete": func(w *world) {
				delete(w.mem.items, worldKey)
				w.blurred = true // for a process that had not seen it
			}},
			threads: []func(*world, *thread){takesAndCloses(3), takes(1)},
		},
		{
			name: "deleted and made anew", item: withLast(storedItem(), 10), block: 2, faults: 1,
			events: map[string]func(*world){"make anew": func(w *world) {
				it := storedItem()
				it.born, it.ver = "born again", "ver again"
				w.mem.items[worldKey] = *it
				w.blurred = true
			}},
			threads: []func(*world, *thread){takesAndCloses(3), takes(1)},
		},
	}
}

// TestInterleavings tries all schedules of all scenarios with up to three
// deviations from the undisturbed one, and random ones with more. With
// DDBSEQ_STRESS=1 it is five, which takes some minutes. The race detector finds
// nothing in coroutines that take turns, and makes them slow.
func TestInterleavings(t *testing.T) {
	most, random := 3, 100
	if raceEnabled {
		most, random = 2, 20
	}
	if os.Getenv("DDBSEQ_STRESS") != "" {
		most, random = 5, 20_000
	}
	total := 0
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sc.explore(t, most, random)
				total += n
				t.Logf("%d schedules", n)
			})
		})
	}
	t.Logf("%d schedules", total)
}
