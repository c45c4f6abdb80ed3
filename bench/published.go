package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// What others have published as text and pseudo-code, transcribed. Each is given
// what makes it look best: a handle instead of a lookup by name, and a store
// that answers at once.

// A counter is that store.
type counter struct{ last atomic.Int64 }

// lease returns the first of as many IDs as everything leases.
func (c *counter) lease() int64 { return c.last.Add(lease) - lease + 1 }

// published are the transcriptions.
func published() []contender {
	ctx := context.Background()
	return []contender{
		{name: "mutex around a block", kind: transcript, open: func() (loop, func(), error) {
			g := new(mutexBlock)
			return func(w *worker, n int) error {
				for range n {
					w.out = g.next()
				}
				return nil
			}, noEnd, nil
		}},
		{name: "channel of prefetched IDs", kind: transcript, open: func() (loop, func(), error) {
			g := newPrefetcher()
			return func(w *worker, n int) error {
				for range n {
					id, err := g.next(ctx)
					if err != nil {
						return err
					}
					w.out = id
				}
				return nil
			}, g.close, nil
		}},
		{name: "Leaf's double buffer", kind: transcript, open: func() (loop, func(), error) {
			g := newLeaf()
			return func(w *worker, n int) error {
				for range n {
					id, err := g.next()
					if err != nil {
						return err
					}
					w.out = id
				}
				return nil
			}, noEnd, nil
		}},
		{name: "Coupang's client", kind: transcript, open: func() (loop, func(), error) {
			g := newCoupang()
			return func(w *worker, n int) error {
				for range n {
					w.out = g.next()
				}
				return nil
			}, noEnd, nil
		}},
		{name: "packed word, CAS", kind: transcript, open: func() (loop, func(), error) {
			g := newPacked()
			return func(w *worker, n int) error {
				for range n {
					w.out = g.next()
				}
				return nil
			}, noEnd, nil
		}},
	}
}

// mutexBlock is what most services write first.
type mutexBlock struct {
	mu        sync.Mutex
	last, end int64
	store     counter
}

func (g *mutexBlock) next() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == g.end {
		first := g.store.lease()
		g.last, g.end = first-1, first+lease-1
	}
	g.last++
	return g.last
}

// prefetcher is a goroutine that keeps a channel full.
type prefetcher struct {
	ids  chan int64
	stop chan struct{}
	wg   sync.WaitGroup
}

func newPrefetcher() *prefetcher {
	g := &prefetcher{ids: make(chan int64, 1000), stop: make(chan struct{})}
	g.wg.Go(func() {
		var store counter
		for {
			first := store.lease()
			for i := range int64(lease) {
				select {
				case g.ids <- first + i:
				case <-g.stop:
					return
				}
			}
		}
	})
	return g
}

func (g *prefetcher) next(ctx context.Context) (int64, error) {
	select {
	case id := <-g.ids:
		return id, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (g *prefetcher) close() {
	close(g.stop)
	g.wg.Wait()
}

// leaf is Meituan's Leaf in segment mode: two segments under a read-write lock,
// the other one loaded once a tenth of this one is used up. A caller who finds
// both used up gets an error there; here it tries again.
type leaf struct {
	mu       sync.RWMutex
	segments [2]leafSegment
	pos      int
	ready    bool // the other segment
	loading  atomic.Bool
	store    counter
}

type leafSegment struct {
	value atomic.Int64
	max   int64
	step  int64
	_     [40]byte
}

func newLeaf() *leaf {
	g := new(leaf)
	g.load(&g.segments[0])
	return g
}

func (g *leaf) load(s *leafSegment) {
	first := g.store.lease()
	s.value.Store(first)
	s.max, s.step = first+lease, lease
}

func (g *leaf) next() (int64, error) {
	for range 1000 {
		g.mu.RLock()
		s := &g.segments[g.pos]
		if !g.ready && s.max-s.value.Load() < s.step/10*9 && g.loading.CompareAndSwap(false, true) {
			go g.loadOther()
		}
		if id := s.value.Add(1) - 1; id < s.max {
			g.mu.RUnlock()
			return id, nil
		}
		g.mu.RUnlock()
		for spin := 0; g.loading.Load(); spin++ {
			if spin > 10_000 {
				time.Sleep(10 * time.Millisecond)
				break
			}
		}
		g.mu.Lock()
		s = &g.segments[g.pos]
		if id := s.value.Add(1) - 1; id < s.max {
			g.mu.Unlock()
			return id, nil
		}
		if g.ready {
			g.pos, g.ready = 1-g.pos, false
		}
		g.mu.Unlock()
	}
	return 0, errors.New("both segments are used up")
}

func (g *leaf) loadOther() {
	g.mu.RLock()
	other := &g.segments[1-g.pos]
	g.mu.RUnlock()
	g.load(other)
	g.mu.Lock()
	g.ready = true
	g.loading.Store(false)
	g.mu.Unlock()
}

// coupang is the client of Coupang's sequence service: each call is recorded in
// a sliding window of 60 seconds, and the block that follows is fetched when
// less is left than the window's rate takes in some seconds.
type coupang struct {
	window  [60]atomic.Int64 // calls, by second
	second  atomic.Int64
	refill  atomic.Int64 // threshold
	current atomic.Pointer[coupangBlock]
	spare   atomic.Pointer[coupangBlock]
	busy    atomic.Bool
	mu      sync.Mutex
	store   counter
}

type coupangBlock struct {
	last atomic.Int64
	end  int64
}

func newCoupang() *coupang {
	g := new(coupang)
	g.current.Store(g.fetch())
	return g
}

func (g *coupang) fetch() *coupangBlock {
	first := g.store.lease()
	b := &coupangBlock{end: first + lease - 1}
	b.last.Store(first - 1)
	return b
}

const coupangBuffer, coupangFloor = 5, 1000 // seconds, IDs

func (g *coupang) record() {
	now := time.Now().Unix()
	if old := g.second.Load(); old != now && g.second.CompareAndSwap(old, now) {
		g.window[now%60].Store(0)
		var sum int64
		for i := range g.window {
			sum += g.window[i].Load()
		}
		g.refill.Store(max(coupangFloor, sum/60*coupangBuffer))
	}
	g.window[now%60].Add(1)
}

func (g *coupang) next() int64 {
	g.record()
	for {
		b := g.current.Load()
		id := b.last.Add(1)
		if b.end-id < g.refill.Load() && g.spare.Load() == nil && g.busy.CompareAndSwap(false, true) {
			go func() {
				g.spare.Store(g.fetch())
				g.busy.Store(false)
			}()
		}
		if id <= b.end {
			return id
		}
		g.mu.Lock()
		if g.current.Load() == b {
			after := g.spare.Swap(nil)
			if after == nil {
				after = g.fetch()
			}
			g.current.Store(after)
		}
		g.mu.Unlock()
	}
}

// packed keeps the number of its block and the position in it in one word.
type packed struct {
	_     [64]byte
	word  atomic.Uint64 // number << 40 | position
	_     [56]byte
	first [4]atomic.Int64 // by number
	mu    sync.Mutex
	store counter
}

const packedShift = 40

func newPacked() *packed {
	g := new(packed)
	g.first[0].Store(g.store.lease())
	return g
}

func (g *packed) next() int64 {
	for {
		w := g.word.Load()
		number, at := w>>packedShift, int64(w&(1<<packedShift-1))
		first := g.first[number%4].Load()
		if at == lease {
			g.advance(number)
			continue
		}
		if g.word.CompareAndSwap(w, w+1) {
			return first + at
		}
	}
}

func (g *packed) advance(number uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.word.Load()>>packedShift != number {
		return
	}
	number++
	g.first[number%4].Store(g.store.lease())
	g.word.Store(number << packedShift)
}
