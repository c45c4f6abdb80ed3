package proof

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/goleak"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/bridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nothing is what a TryNext returns that found memory empty.
const nothing = math.MinInt64

// upwards is a fetch-and-add that may leave gaps: the state is the last ID, and
// an ID is right if it lies beyond.
var upwards = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, _, output any) (bool, any) {
		last, id := state.(int64), output.(int64)
		if id == nothing {
			return true, last
		}
		return id > last, id
	},
	DescribeOperation: func(_, output any) string { return fmt.Sprint(output) },
}

// A history is the calls to one Sequence, by when they began and ended.
type history struct {
	mu    sync.Mutex
	began time.Time
	calls []porcupine.Operation
}

func (h *history) record(client int, call func() int64) {
	from := time.Since(h.began).Nanoseconds()
	id := call()
	to := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, porcupine.Operation{ClientId: client, Call: from, Output: id, Return: to})
}

// shaky makes one call in three fail in one of the ways a network has.
func shaky(seed uint64) bridge.Hook {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	return func(ctx context.Context, op, key string, do func() error) error {
		mu.Lock()
		what, wait := rng.IntN(9), time.Duration(rng.IntN(200))*time.Microsecond
		mu.Unlock()
		time.Sleep(wait)
		switch what {
		case 0:
			return &bridge.Fault{Throttled: true, Message: "throttled"}
		case 1:
			return &bridge.Fault{MaybeApplied: true, Message: "lost on the way"}
		case 2:
			if err := do(); err != nil {
				return err
			}
			return &bridge.Fault{MaybeApplied: true, Message: "answer lost"}
		}
		return do()
	}
}

func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	const rounds, clients, calls = 12, 6, 60
	var total, waited int
	for seed := range uint64(rounds) {
		store := bridge.Intercept(ddbseq.Memory(), shaky(seed)).(*ddbseq.Store)
		histories := make([]*history, 2) // two processes, each with its own order
		var every []int64
		var wg sync.WaitGroup
		var allocators []*ddbseq.Allocator
		for i := range histories {
			h := &history{began: time.Now()}
			histories[i] = h
			a, err := ddbseq.New(store, func(o *ddbseq.Options) {
				o.CreateMissing = true
				o.MinBlock, o.MaxBlock = int64(seed%5)+1, 40
				if seed%2 == 0 {
					o.Runway = 0
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			allocators = append(allocators, a)
			s, err := a.Sequence("s")
			if err != nil {
				t.Fatal(err)
			}
			for c := range clients {
				wg.Go(func() {
					for k := range calls {
						h.record(c, func() int64 {
							if k%4 == 3 {
								if id, ok := s.TryNext(); ok {
									return id
								}
								return nothing
							}
							id, err := s.Next(t.Context())
							if err != nil {
								t.Error(err)
							}
							return id
						})
					}
				})
			}
		}
		wg.Wait()
		for i, a := range allocators {
			waited += int(a.Stats().Waited)
			if err := a.Close(t.Context()); err != nil {
				t.Error(err)
			}
			h := histories[i]
			total += len(h.calls)
			if result := porcupine.CheckOperationsTimeout(upwards, h.calls, 10*time.Second); result != porcupine.Ok {
				t.Fatalf("seed %d: the history is %v", seed, result)
			}
			for _, c := range h.calls {
				if id := c.Output.(int64); id != nothing {
					every = append(every, id)
				}
			}
		}
		slices.Sort(every)
		if n := len(every); len(slices.Compact(every)) != n {
			t.Fatalf("seed %d: an ID was handed out twice", seed)
		}
	}
	t.Logf("%d calls, %d of them waited", total, waited)
}

// The check must be able to fail.
func TestTheCheckSeesAStaleRead(t *testing.T) {
	t.Parallel()
	calls := []porcupine.Operation{
		{ClientId: 0, Call: 0, Output: int64(2), Return: 10},
		{ClientId: 1, Call: 5, Output: int64(1), Return: 15}, // overlaps: may come first
		{ClientId: 0, Call: 20, Output: int64(3), Return: 30},
	}
	if !porcupine.CheckOperations(upwards, calls) {
		t.Error("a good history was refused")
	}
	calls[1].Call = 11
	if porcupine.CheckOperations(upwards, calls) {
		t.Error("a call that began after another had ended got a smaller ID")
	}
	if _, err := ddbseq.New(nil); !errors.Is(err, ddbseq.ErrInvalidOptions) {
		t.Error(err)
	}
}
