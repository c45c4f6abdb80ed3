package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A source is a sequence of any make.
type source interface {
	Next(context.Context) (int64, error)
}

// mutexSequence is what a Sequence does in the plainest way, to show that the
// tests below ask for the right thing.
type mutexSequence struct {
	mu   sync.Mutex
	last int64
}

func (m *mutexSequence) Next(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	return m.last, nil
}

// hammer has workers take calls IDs each and checks order and uniqueness.
func hammer(t *testing.T, s source, workers, calls int) {
	t.Helper()
	var h history
	ids := make([][]int64, workers)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		mine := make([]int64, 0, calls)
		wg.Go(func() {
			for range calls {
				before := h.begin()
				id, err := s.Next(t.Context())
				if err == nil {
					err = h.end(before, id, id) // which says more than increasing for each worker
				}
				if err != nil {
					errs[w] = err
					return
				}
				mine = append(mine, id)
			}
			ids[w] = mine
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	n := int64(workers) * int64(calls)
	seen := make([]bool, n+1) // faster than sorting millions
	for _, mine := range ids {
		for _, id := range mine {
			if id < 1 || id > n || seen[id] {
				t.Fatalf("ID %d was handed out twice, or lies outside of 1 to %d", id, n)
			}
			seen[id] = true
		}
	}
}

func TestConcurrentCallersGetUniqueIDsInOrder(t *testing.T) {
	// DDBSEQ_STRESS=1 is ten times as much; with -race it takes half a minute.
	calls, many := 500, 10_000
	if os.Getenv("DDBSEQ_STRESS") == "1" {
		calls, many = 5_000, 100_000
	}
	for _, c := range []struct {
		block          int64
		workers, calls int
	}{{1, 8, 500}, {2, 64, calls}, {7, 64, calls}, {1000, 64, many}} {
		t.Run(fmt.Sprintf("block of %d", c.block), func(t *testing.T) {
			a := newTest(t, Memory(), fixed(c.block), func(o *Options) { o.forfeit = true })
			s := sequenceOf(t, a, "s")
			hammer(t, s, c.workers, c.calls)
			// Nothing was lost between the store and the callers.
			st := s.Stats()
			if n := int64(c.workers * c.calls); st.Issued != n || st.Leased != n+st.Remaining {
				t.Errorf("%d IDs were taken, the statistics say %+v", n, st)
			}
		})
	}
	t.Run("mutex", func(t *testing.T) { hammer(t, &mutexSequence{}, 64, calls) })
}

func TestOrderHoldsOnAnyNumberOfProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2, 16} {
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			runtime.GOMAXPROCS(procs)
			for _, advance := range []bool{false, true} {
				a := newTest(t, Memory(), func(o *Options) {
					o.MinBlock, o.MaxBlock = 5, 5
					if !advance {
						o.Runway = 0
					}
				})
				hammer(t, sequenceOf(t, a, "s"), 16, 400)
			}
		})
	}
}

func TestAllWaysToTakeIDsMix(t *testing.T) {
	for _, block := range []int64{1, 3, 50} {
		t.Run(fmt.Sprintf("block of %d", block), func(t *testing.T) {
			a := newTest(t, Memory(), func(o *Options) { o.MinBlock, o.MaxBlock, o.forfeit = block, block, true })
			s := sequenceOf(t, a, "s")
			const workers = 16
			var h history
			ids := make([][]int64, workers)
			errs := make([]error, workers)
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(w), uint64(block)))
					var mine []int64
					for range 1_000 {
						before := h.begin()
						var err error
						switch r.IntN(8) {
						default:
							var id int64
							if id, err = s.Next(t.Context()); err == nil {
								mine = append(mine, id)
								err = h.end(before, id, id)
							}
						case 0, 1:
							if id, ok := s.TryNext(); ok {
								mine = append(mine, id)
								err = h.end(before, id, id)
							}
						case 2:
							some := make([]int64, 1+r.IntN(9))
							if err = s.Fill(t.Context(), some); err == nil {
								mine = append(mine, some...)
								for i := 1; i < len(some); i++ {
									if some[i] <= some[i-1] {
										err = fmt.Errorf("Fill returned %d", some)
									}
								}
								err = errors.Join(err, h.end(before, some[0], some[len(some)-1]))
							}
						case 3:
							var b Block
							if b, err = s.Reserve(t.Context(), 1+r.Int64N(9)); err == nil {
								for id := range b.All() { // it has no place in the order
									mine = append(mine, id)
								}
							}
						}
						if err != nil {
							errs[w] = err
							return
						}
					}
					ids[w] = mine
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			n := int64(allDifferent(t, ids...))
			if st := s.Stats(); st.Issued != n || st.Leased != n+st.Remaining || st.Abandoned.Total() != 0 {
				t.Errorf("%d IDs were taken, the statistics say %+v", n, st)
			}
		})
	}
}

func TestDescendingSequencesCountDown(t *testing.T) {
	a := newTest(t, Memory(), fixed(3))
	s := sequenceOf(t, a, "down", IncrementBy(-5), MaxValue(100))
	ids := make([]int64, 8)
	if err := s.Fill(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if id != 100-5*int64(i) {
			t.Fatalf("got %d", ids)
		}
	}
}

// The layout decides whether two processors get in each other's way. It cannot
// be seen in results, only in nanoseconds.
func TestLayout(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("for 64-bit platforms")
	}
	const line = 64
	if size := unsafe.Sizeof(block{}); size != 128 {
		t.Errorf("a block has %d bytes, not the 128 of a size class", size)
	}
	if at, after := unsafe.Offsetof(block{}.cursor), unsafe.Offsetof(block{}.soft); at != 0 || after < line {
		t.Errorf("the cursor at %d shares its cache line with soft at %d", at, after)
	}
	if size := unsafe.Sizeof(Sequence{}); size != 128 {
		t.Errorf("a Sequence has %d bytes, not the 128 of a size class", size)
	}
	if at := unsafe.Offsetof(Sequence{}.cur); at != line {
		t.Errorf("cur is at %d and not at the start of a cache line of its own", at)
	}
	a := newTest(t, Memory())
	for i := range 20 {
		s := sequenceOf(t, a, fmt.Sprint(i))
		must(s.Next(t.Context()))
		if p := uintptr(unsafe.Pointer(&s.cur)); p%128 != 64 {
			t.Errorf("cur at %#x, want 64 modulo 128", p)
		}
		if p := uintptr(unsafe.Pointer(s.cur.Load())); p%128 != 0 {
			t.Errorf("the block at %#x is not aligned to 128", p)
		}
	}
}

func TestNextIsInlined(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command")
	}
	out, err := exec.CommandContext(t.Context(), tool, "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"can inline (*Sequence).Next\n", "can inline (*block).claim\n", "inlining call to (*block).claim\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the compiler does not say %q", want)
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	a := newTest(t, Memory(), fixed(1<<20))
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	ctx := t.Context()
	ids := make([]int64, 10)
	for name, f := range map[string]func(){
		"Next":           func() { must(s.Next(ctx)) },
		"TryNext":        func() { _, _ = s.TryNext() },
		"Fill":           func() { must(0, s.Fill(ctx, ids)) },
		"Reserve":        func() { must(s.Reserve(ctx, 10)) },
		"Allocator.Next": func() { must(a.Next(ctx, "s")) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// interleave runs all orders in which the steps of threads can be taken. Each
// order begins with what setup returns and ends with check.
func interleave[T any](setup func() T, threads func(T) [][]func(), check func(T, string)) (orders int) {
	lengths := make([]int, 0, 4)
	for _, th := range threads(setup()) {
		lengths = append(lengths, len(th))
	}
	var walk func(order []int)
	walk = func(order []int) {
		done := make([]int, len(lengths))
		for _, th := range order {
			done[th]++
		}
		leaf := true
		for th := range lengths {
			if done[th] < lengths[th] {
				leaf = false
				walk(append(order[:len(order):len(order)], th))
			}
		}
		if !leaf {
			return
		}
		orders++
		state := setup()
		steps := threads(state)
		for _, th := range order {
			steps[th][0]()
			steps[th] = steps[th][1:]
		}
		check(state, fmt.Sprint(order))
	}
	walk(nil)
	return orders
}

// aBlock is a block in the hands of threads that go step by step.
type aBlock struct {
	b       *block
	got     []int64
	claimed int64 // what drop returned; -1 = not yet
	looked  int   // how many saw that the limit was passed
}

func newABlock(end, soft int64) *aBlock {
	return &aBlock{b: &block{cursor: -1, first: 100, step: 1, end: end, soft: soft}, claimed: -1}
}

// claimSteps are the shared accesses of Next up to the next block, one each.
func (x *aBlock) claimSteps() []func() {
	var i, soft, again int64
	slow := false
	return []func(){
		func() { x.b.cursor++; i = x.b.cursor },
		func() {
			if soft = x.b.soft; i < soft {
				x.got = append(x.got, x.b.at(i))
			} else if slow = i < x.b.end; slow {
				x.got = append(x.got, x.b.at(i))
			}
		},
		func() { again = x.b.soft },
		func() {
			if slow && again < x.b.end && i >= again && x.b.soft == again {
				x.b.soft = x.b.end
				x.looked++
			}
		},
	}
}

func TestNoOrderOfClaimsAndDropLosesOrRepeatsAnID(t *testing.T) {
	for _, end := range []int64{1, 2, 3} {
		orders := interleave(func() *aBlock { return newABlock(end, end) },
			func(x *aBlock) [][]func() {
				return [][]func(){x.claimSteps(), x.claimSteps(), {func() { x.claimed = x.b.drop() }}}
			},
			func(x *aBlock, order string) {
				if int64(len(x.got)) != x.claimed {
					t.Fatalf("end %d, order %s: %d IDs handed out, drop counted %d", end, order, len(x.got), x.claimed)
				}
				allDifferent(t, x.got)
				if x.b.left() != 0 {
					t.Fatalf("%d are left after drop", x.b.left())
				}
			})
		if orders < 600 {
			t.Errorf("only %d orders", orders)
		}
	}
	// The obvious alternative, to end a block by lowering its end, is wrong.
	wrong := 0
	interleave(func() *aBlock { return newABlock(2, 2) },
		func(x *aBlock) [][]func() {
			return [][]func(){x.claimSteps(), {func() { x.claimed = min(x.b.cursor+1, x.b.end); x.b.end, x.b.soft = 0, 0 }}}
		},
		func(x *aBlock, _ string) {
			if int64(len(x.got)) != x.claimed {
				wrong++
			}
		})
	if wrong == 0 {
		t.Error("the enumeration finds nothing wrong with lowering end")
	}
}

func TestPassingTheSoftLimitIsSeenExactlyOnce(t *testing.T) {
	const end, target = 4, 1
	interleave(func() *aBlock { return newABlock(end, end) },
		func(x *aBlock) [][]func() {
			return [][]func(){x.claimSteps(), x.claimSteps(), {
				// limit, one shared access a step; nobody else raises soft before.
				func() { x.b.soft = target },
				func() {
					if x.b.cursor >= target && x.b.soft == target {
						x.b.soft = end
						x.looked++
					}
				},
			}}
		},
		func(x *aBlock, order string) {
			if x.looked != 1 {
				t.Fatalf("order %s: %d looked at the stock", order, x.looked)
			}
			allDifferent(t, x.got)
		})
}

func TestReserveTakesAllOrNothing(t *testing.T) {
	b := newABlock(10, 10).b
	for _, c := range []struct {
		n, from int64
		ok      bool
	}{{11, 0, false}, {4, 0, true}, {7, 0, false}, {6, 4, true}, {1, 0, false}} {
		if from, ok := b.reserve(c.n, true); ok != c.ok || from != c.from {
			t.Errorf("reserve(%d) = %d, %t, want %d, %t", c.n, from, ok, c.from, c.ok)
		}
	}
	b = newABlock(10, 10).b
	b.drop()
	if _, ok := b.reserve(1, true); ok {
		t.Error("something could be reserved of a dropped block")
	}
}

// A cursor must not come round: what it counts has to end long before MaxInt64.
func TestHugeBlocksNeverWrapTheCursor(t *testing.T) {
	taken := func(t *testing.T, a *Allocator) {
		t.Helper()
		s := sequenceOf(t, a, "s")
		b, err := s.Reserve(t.Context(), math.MaxInt64)
		if err != nil && !errors.Is(err, ErrInvalidCount) {
			t.Fatal(err)
		}
		for range 4 {
			if id, err := s.Next(t.Context()); err == nil && id <= b.N {
				t.Fatalf("Next returned %d, and so did Reserve of %d", id, b.N)
			}
		}
	}
	t.Run("reserve", func(t *testing.T) { taken(t, newTest(t, Memory(), fixed(10))) })
	t.Run("block", func(t *testing.T) {
		a, err := New(Memory(), fixed(math.MaxInt64))
		if errors.Is(err, ErrInvalidOptions) {
			return
		}
		s := sequenceOf(t, a, "s")
		must(s.Next(t.Context()))
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if id, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %d, %v", id, err)
		}
	})
}

// One ID that nobody takes must not hold on to all blocks that come after it.
func TestBlocksUsedUpBehindAnotherAreLetGo(t *testing.T) {
	a := newTest(t, Memory(), createMissing, fixed(100), func(o *Options) { o.forfeit = true })
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	for range 1000 {
		must(s.Reserve(t.Context(), 100))
	}
	n := 0
	for b := s.cur.Load(); b != nil; b = b.next.Load() {
		n++
	}
	if n > 3 {
		t.Errorf("cur leads through %d blocks", n)
	}
	for id := int64(2); id <= 100; id++ { // and the rest of the first one is there
		if got := must(s.Next(t.Context())); got != id {
			t.Fatalf("got %d, want %d", got, id)
		}
	}
	if got := must(s.Next(t.Context())); got != 100_101 {
		t.Errorf("got %d, want the first ID after those that were reserved", got)
	}
}

// However large and however many, claims past the end must not bring the cursor
// round: it would come back to IDs that were handed out.
func TestClaimsOfAUsedUpBlockDoNotMoveItsCursor(t *testing.T) {
	a := newTest(t, Memory(), createMissing, fixed(10))
	s := sequenceOf(t, a, "s")
	must(s.Next(t.Context()))
	b := s.cur.Load()
	if from, n := b.claimUpTo(1<<60, true); from != 1 || n != 9 {
		t.Fatalf("claimed %d from %d", n, from)
	}
	at := atomic.LoadInt64(&b.cursor)
	for range 100 {
		if _, n := b.claimUpTo(1<<60, true); n != 0 {
			t.Fatalf("claimed %d more", n)
		}
	}
	if now := atomic.LoadInt64(&b.cursor); now != at {
		t.Errorf("the cursor went from %d to %d", at, now)
	}
}
