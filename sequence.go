package ddbseq

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync/atomic"
)

// A Sequence hands out the IDs of one named counter. IDs come from blocks that
// were leased from the table beforehand, so that a call is one atomic add; only
// a caller that finds memory empty waits.
//
// Use Next unless you know better. TryNext is for callers who would rather do
// without an ID than wait, Fill and Reserve for those who need many at once.
//
// Within one process the IDs of Next are strictly increasing (decreasing for a
// descending sequence): if one call returned before another began, its ID comes
// first. There is no order between processes. A Sequence is made by
// [Allocator.Sequence]; all its methods may be called by any number of
// goroutines at once.
type Sequence struct {
	// cur shares its cache line with nothing that is written, and stands at an address that differs from
	// every cursor's in the low 12 bits: a load that aliases with a locked add
	// waits for it (+2 ns). 128 bytes are a size class, so that the alignment
	// holds; TestLayout pins all of it.
	_     [64]byte
	cur   atomic.Pointer[block]
	*core // never written again
	_     [48]byte
}

// A block is a run of leased IDs. Blocks are chained by next in the order they
// were leased, are never recycled, and stay valid for callers that still hold
// them: a recycled block could hand out an ID twice.
type block struct {
	// cursor is the index claimed last, -1 at first. Claims add to it, also past
	// the end, where they claim nothing. It is the only word that every call
	// writes and stands alone on its cache line: with the fields below beside it
	// a call on two cores costs 1.6 times as much. An index, not the ID: a
	// cursor that runs past MaxInt64 would come round negative and pass the
	// limit.
	cursor int64
	_      [56]byte

	// soft is the index from which on a claim takes the slow path: end, or less
	// to make one caller look at the stock. It is moved only by compare-and-swap
	// and never beyond end, and is loaded after the claim: what decides whether
	// an ID exists is end.
	soft  int64
	first int64
	step  int64
	end   int64 // number of IDs
	next  atomic.Pointer[block]
	seq   *Sequence // for the slow path, which would not be inlined with more parameters

	before *int64 // the last ID leased before first, if that has to precede it
	day    int64  // the day its lease was counted for, as 20060102; 0 = none
}

// dropped is what the cursor of a block is swapped for when its tail is taken
// away: past any end (see maxRun), and far from overflow.
const dropped = int64(1) << 62

type slowPath = func(ctx context.Context, b *block, i int64) (int64, error)

// claim takes the next ID of b with one locked add, one load and one compare.
// The slow path is a parameter because a call of a parameter counts less
// against the compiler's inlining budget than a direct call: this way Next is
// inlined into its callers, which is worth 4 ns a call on two cores.
func (b *block) claim(ctx context.Context, slow slowPath) (id int64, err error) {
	if id = atomic.AddInt64(&b.cursor, 1); id < atomic.LoadInt64(&b.soft) {
		id = b.first + id*b.step
		return
	}
	return slow(ctx, b, id)
}

// Next returns the next ID. It takes it from memory without looking at ctx; only
// when memory is empty it waits, in order of arrival, until a lease arrives or
// ctx ends. A caller whose ctx ends gets its error joined with the last error of
// the store. Errors that need somebody to act (access denied, no such table or
// sequence, exhausted, paused, ...) are returned at once to those who would wait,
// and for a second after to whoever comes, without another look.
func (s *Sequence) Next(ctx context.Context) (int64, error) { return s.cur.Load().claim(ctx, next) }

// next is the slow path of Next: the claim i on b reached the soft limit.
func next(ctx context.Context, b *block, i int64) (int64, error) {
	if id, ok := b.proceed(i); ok {
		return id, nil
	}
	g, err := b.seq.wait(ctx, waiter{want: 1})
	return g.first, err
}

// TryNext returns the next ID if there is one in memory. It never waits and
// never calls the store; when it finds memory low or empty it has a refill
// started in the background, as Next does.
func (s *Sequence) TryNext() (id int64, ok bool) {
	b := s.cur.Load()
	i := atomic.AddInt64(&b.cursor, 1)
	if i < atomic.LoadInt64(&b.soft) {
		return b.first + i*b.step, true
	}
	if id, ok = b.proceed(i); ok {
		return id, true
	}
	s.lookAgain()
	return 0, false
}

// proceed resolves a claim at or past the soft limit: it returns its ID, or one
// of the following blocks', or none if all are used up.
func (b *block) proceed(i int64) (id int64, ok bool) {
	for {
		if i < b.end {
			b.reached(i)
			return b.at(i), true
		}
		n := b.next.Load()
		if n == nil {
			return 0, false
		}
		// cur moves on only now that somebody overshot b, so that nobody is
		// given an ID of n while one of b can still be claimed after it.
		b.seq.cur.CompareAndSwap(b, n)
		b = n
		i = atomic.AddInt64(&b.cursor, 1)
	}
}

// reached lets exactly one of the claims past the soft limit look at the stock.
func (b *block) reached(i int64) {
	soft := atomic.LoadInt64(&b.soft)
	if soft < b.end && i >= soft && atomic.CompareAndSwapInt64(&b.soft, soft, b.end) {
		if !b.seq.lookAgain() {
			return
		}
		// The refill that was just started sits in this processor's queue, and
		// when all processors are busy it stays there for 10 ms or more.
		// Yielding once per block starts it within microseconds.
		runtime.Gosched()
	}
}

// Fill fills ids with len(ids) IDs, strictly increasing in the direction of the
// sequence (anew after a wrap of CYCLE), though not without gaps: other callers
// take IDs in between. It waits when memory does not hold enough. If it returns
// an error ids holds nothing of use, and the IDs that it had claimed by then are
// abandoned. An empty ids is refused with ErrInvalidCount.
func (s *Sequence) Fill(ctx context.Context, ids []int64) error {
	if err := s.countable(int64(len(ids))); err != nil {
		return err
	}
	filled := 0
	put := func(first, step, n int64) {
		for range n {
			ids[filled] = first
			first += step
			filled++
		}
	}
	for b := s.cur.Load(); ; {
		want := int64(len(ids) - filled)
		if from, n := b.claimUpTo(want, true); n > 0 {
			put(b.at(from), b.step, n)
			if n == want {
				return nil
			}
			want -= n
		}
		if n := b.next.Load(); n != nil {
			s.cur.CompareAndSwap(b, n)
			b = n
			continue
		}
		g, err := s.wait(ctx, waiter{want: want, total: int64(len(ids))})
		if err != nil {
			s.abandon(int64(filled))
			return err
		}
		put(g.first, g.step, g.n)
		if filled == len(ids) {
			return nil
		}
		b = s.cur.Load()
	}
}

// claimUpTo claims as many of n IDs as b has left, by one add, and returns the
// index of the first. Without look the caller sees to the soft limit.
func (b *block) claimUpTo(n int64, look bool) (from, got int64) {
	if b.left() == 0 {
		return 0, 0 // adds of any n past the end would bring the cursor round some day
	}
	from = atomic.AddInt64(&b.cursor, n) - n + 1
	if got = min(n, b.end-from); got <= 0 {
		return 0, 0
	}
	if last := from + got - 1; look && last >= atomic.LoadInt64(&b.soft) {
		b.reached(last)
	}
	return from, got
}

// A Block is a run of IDs without gaps.
type Block struct {
	First int64 // the first ID
	Step  int64 // from one ID to the next; negative for a descending sequence
	N     int64 // how many IDs
}

// At returns the ID with index i, 0 <= i < N.
func (b Block) At(i int64) int64 { return b.First + i*b.Step }

// Last returns the last ID.
func (b Block) Last() int64 { return b.At(b.N - 1) }

// All yields the IDs in order.
func (b Block) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i := range b.N {
			if !yield(b.At(i)) {
				return
			}
		}
	}
}

// Reserve returns n consecutive IDs. They come from one block in memory if one
// has as many left, otherwise they are leased for this call. Inside they go in the
// direction of the sequence; among concurrent and later calls they have no place:
// Next may still return smaller IDs from blocks leased before. Reserve waits as
// Next does. n < 1, or more than the sequence has in all, is refused with
// ErrInvalidCount, and more than is left of it or of its day with ErrExhausted or
// ErrDailyLimit; nothing is leased for it then.
func (s *Sequence) Reserve(ctx context.Context, n int64) (Block, error) {
	if err := s.countable(n); err != nil {
		return Block{}, err
	}
	look := false
	for b := s.cur.Load(); ; {
		if from, ok := b.reserve(n, true); ok {
			if look {
				s.lookAgain()
			}
			return Block{First: b.at(from), Step: b.step, N: n}, nil
		}
		if after := b.next.Load(); after != nil {
			if b.left() == 0 { // all claimed, and so it stays
				s.cur.CompareAndSwap(b, after)
			} else if atomic.LoadInt64(&b.soft) < b.end {
				look = true // no claim of ours will pass the limit here
			}
			b = after
			continue
		}
		g, err := s.wait(ctx, waiter{want: n, whole: true})
		if err != nil {
			return Block{}, err
		}
		return Block{First: g.first, Step: g.step, N: g.n}, nil
	}
}

// reserve claims n IDs at once, or none: by compare-and-swap, because an add
// that finds too few left cannot be taken back. Without look the caller sees to
// the soft limit.
func (b *block) reserve(n int64, look bool) (from int64, ok bool) {
	for {
		c := atomic.LoadInt64(&b.cursor)
		if b.end-c-1 < n {
			return 0, false
		}
		if atomic.CompareAndSwapInt64(&b.cursor, c, c+n) {
			if look && c+n >= atomic.LoadInt64(&b.soft) {
				b.reached(c + n)
			}
			return c + 1, true
		}
	}
}

func (b *block) at(i int64) int64 { return b.first + i*b.step }

// left returns how many IDs of b are unclaimed.
func (b *block) left() int64 { return max(0, b.end-1-atomic.LoadInt64(&b.cursor)) }

// drop takes what is unclaimed of b, for good: after the swap every claim lies
// past the end. It returns how many IDs had been claimed. Lowering end or soft
// instead would let a claim made before be counted as taken away as well.
func (b *block) drop() (claimed int64) {
	return min(atomic.SwapInt64(&b.cursor, dropped)+1, b.end)
}

// limit moves the soft limit. It reports whether a claim had passed it already,
// in which case nobody else will act on it.
func (b *block) limit(soft int64) (passed bool) {
	for {
		old := atomic.LoadInt64(&b.soft)
		if old != soft && !atomic.CompareAndSwapInt64(&b.soft, old, soft) {
			continue
		}
		// A claim loads soft after its add and this loads cursor after storing
		// soft: one of the two sees the other.
		return soft < b.end && atomic.LoadInt64(&b.cursor) >= soft && atomic.CompareAndSwapInt64(&b.soft, soft, b.end)
	}
}

func (s *Sequence) countable(n int64) error {
	if n > maxRun {
		return fmt.Errorf("%w: %d of sequence %q in table %q; at most 2^61 fit into a block", ErrInvalidCount, n, s.name, s.a.store.table())
	}
	if n < 1 {
		return fmt.Errorf("%w: %d of sequence %q in table %q; ask for 1 or more", ErrInvalidCount, n, s.name, s.a.store.table())
	}
	if d, ok := s.knownDefinition(); ok && uint64(n) > d.size() {
		return s.tooMany(n, d)
	}
	return nil
}

func (s *core) tooMany(n int64, d Definition) error {
	return fmt.Errorf("%w: %d of sequence %q in table %q, which has %d in all (%v)", ErrInvalidCount, n, s.name, s.a.store.table(), d.size(), d)
}

// knownDefinition returns the definition as a lease showed it lately, or as the
// code says it if it says all that its size depends on.
func (s *core) knownDefinition() (Definition, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.learned > 0 && s.a.now()-s.learned < s.a.opts.errorHold {
		return s.facts.def, true
	}
	return s.code.definition(), s.code.increment != nil && s.code.min != nil && s.code.max != nil
}

// Name returns the name of the sequence.
func (s *Sequence) Name() string { return s.name }
