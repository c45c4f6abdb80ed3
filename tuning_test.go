package ddbseq

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func TestStoredTuningGoesBeforeCodeAndDefaults(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			store := st.open(t)
			admin := newTest(t, store)
			if err := admin.Create(ctx, "s"); err != nil {
				t.Fatal(err)
			}
			first := int64(3)
			if err := admin.Alter(ctx, "s", Tune(func(t *Tuning) { t.FirstBlock = &first })); err != nil {
				t.Fatal(err)
			}
			// The code says blocks of 2; the table says that the first one has 3.
			a := newTest(t, store, fixed(2), func(o *Options) { o.MaxBlock = 4 })
			if _, err := a.Next(ctx, "s"); err != nil {
				t.Fatal(err)
			}
			if got := a.Stats().Leased; got != 3 {
				t.Errorf("first block has %d IDs, want 3", got)
			}
			n := int64(10)
			if err := admin.Alter(ctx, "s", Tune(func(t *Tuning) { t.MinBlock, t.MaxBlock = &n, &n })); err != nil {
				t.Fatal(err)
			}
			sizes := map[int64]bool{}
			for range 40 {
				before := a.Stats().Leased
				if _, err := a.Next(ctx, "s"); err != nil {
					t.Fatal(err)
				}
				if got := a.Stats().Leased - before; got > 0 {
					sizes[got] = true
				}
			}
			if !sizes[10] || len(sizes) > 2 {
				t.Errorf("block sizes %v; want 10 from the second lease after the change on", sizes)
			}
			d, err := admin.Describe(ctx, "s")
			if err != nil || d.Tuning.FirstBlock == nil || *d.Tuning.FirstBlock != 3 || *d.Tuning.MaxBlock != 10 {
				t.Errorf("%+v, %v", d.Tuning, err)
			}
		})
	}
}

func TestAChangeOfTuningCostsNobodyAWrite(t *testing.T) {
	ctx := t.Context()
	store := Memory()
	admin := newTest(t, store)
	if err := admin.Create(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	a := newTest(t, store, fixed(1))
	for range 3 {
		if _, err := a.Next(ctx, "s"); err != nil {
			t.Fatal(err)
		}
	}
	before := a.Stats()
	n := int64(5)
	if err := admin.Alter(ctx, "s", Tune(func(t *Tuning) { t.MaxBlock = &n })); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if got := a.Stats().Sub(before).Attempts; got != 1 {
		t.Errorf("the lease after a change of tuning took %d calls, want 1", got)
	}
}

func TestPauseStopsLeasesAndResumeLetsThemGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := Memory()
		admin := newTest(t, store)
		a := newTest(t, store, fixed(2))
		if _, err := a.Next(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		if err := admin.Alter(ctx, "s", Pause()); err != nil {
			t.Fatal(err)
		}
		if id, err := a.Next(ctx, "s"); err != nil || id != 2 {
			t.Errorf("what is in memory: %d, %v", id, err)
		}
		if _, err := a.Next(ctx, "s"); !errors.Is(err, ErrPaused) {
			t.Errorf("%v, want ErrPaused", err)
		}
		if err := admin.Alter(ctx, "s", Resume()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultErrorHold)
		if id, err := a.Next(ctx, "s"); err != nil || id != 3 {
			t.Errorf("after Resume: %d, %v", id, err)
		}
	})
}

func TestConfigPollReachesIdleProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := Memory()
		admin := newTest(t, store)
		a := newTest(t, store, func(o *Options) { o.ConfigPoll = 10 * time.Second })
		if _, err := a.Next(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		seq, err := a.Sequence("s")
		if err != nil {
			t.Fatal(err)
		}
		n := int64(77)
		if err := admin.Alter(ctx, "s", Tune(func(t *Tuning) { t.MaxBlock = &n })); err != nil {
			t.Fatal(err)
		}
		time.Sleep(13 * time.Second)
		synctest.Wait()
		seq.mu.Lock()
		defer seq.mu.Unlock()
		if seq.plan.cfg.maxBlock != n {
			t.Errorf("MaxBlock is %d after the interval, want %d", seq.plan.cfg.maxBlock, n)
		}
	})
}

func TestBadStoredTuningIsSaidAndTheLastGoodKept(t *testing.T) {
	good, bad := int64(10), int64(-5)
	a := newTest(t, Memory())
	if _, err := a.Next(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	s, err := a.Sequence("s")
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.retune(&tuning{Tuning: Tuning{MinBlock: &good, MaxBlock: &good}})
	for _, b := range []*tuning{{Tuning: Tuning{MaxBlock: &bad}}, {bad: "attribute tune.maxBlock is S"}, {Tuning: Tuning{FirstBlock: &bad}}} {
		s.retune(b)
		if s.badTune == "" || s.plan.cfg.maxBlock != good {
			t.Errorf("%+v: said %q, MaxBlock %d", b, s.badTune, s.plan.cfg.maxBlock)
		}
	}
	s.mu.Unlock()
	if err := a.Alter(t.Context(), "s", Tune(func(t *Tuning) { t.MaxBlock = &bad })); !errors.Is(err, ErrInvalidOptions) {
		t.Errorf("%v", err)
	}
}

func TestTuneIsReadFromTheTableAsOperatorsWriteIt(t *testing.T) {
	parse := func(m map[string]types.AttributeValue) *tuning {
		d := DynamoDB(testClient("http://127.0.0.1:1"), "t").backend.(*dynamo)
		it, err := d.parse("s", map[string]types.AttributeValue{"tune": &types.AttributeValueMemberM{Value: m}})
		if err != nil {
			t.Fatal(err)
		}
		return it.tune
	}
	got := parse(map[string]types.AttributeValue{
		"runway": &types.AttributeValueMemberS{Value: "1h"}, "maxBlock": &types.AttributeValueMemberN{Value: "9"},
		"paused": &types.AttributeValueMemberBOOL{Value: true}, "later": &types.AttributeValueMemberS{Value: "ignored"},
	})
	if got.bad != "" || *got.Runway != time.Hour || *got.MaxBlock != 9 || !got.paused() {
		t.Errorf("%+v", got)
	}
	for name, v := range map[string]types.AttributeValue{
		"runway": &types.AttributeValueMemberN{Value: "60"}, "leaseEvery": &types.AttributeValueMemberS{Value: "soon"},
		"minBlock": &types.AttributeValueMemberN{Value: "1.5"}, "maxBlock": &types.AttributeValueMemberS{Value: "9"},
	} {
		if got := parse(map[string]types.AttributeValue{name: v}); got.bad == "" {
			t.Errorf("%s = %s was taken", name, show(v))
		}
	}
	if !parse(map[string]types.AttributeValue{"paused": &types.AttributeValueMemberS{Value: "yes"}}).paused() {
		t.Error("paused that is not false does not pause, though the condition of a lease says so")
	}
}

func TestARunningFleetObeysItsOperator(t *testing.T) {
	ctx := t.Context()
	store := Memory()
	admin := newTest(t, store)
	if err := admin.Create(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	stop := make(chan struct{})
	var mu sync.Mutex
	seen := map[int64]bool{}
	var issued atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		a := newTest(t, store, func(o *Options) { o.MinBlock, o.errorHold = 5, time.Microsecond })
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id, err := a.Next(ctx, "s")
				if errors.Is(err, ErrPaused) || errors.Is(err, ErrDailyLimit) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[id] {
					t.Errorf("%d twice", id)
				}
				seen[id] = true
				mu.Unlock()
				issued.Add(1)
			}
		})
	}
	for range 100 {
		var c Clause
		switch n := rng.Int64N(1000) + 1; rng.IntN(4) {
		case 0:
			c = Tune(func(t *Tuning) { t.MaxBlock = &n })
		case 1:
			c = Tune(func(t *Tuning) { t.Paused = new(t.Paused == nil || !*t.Paused) })
		case 2:
			c = DailyLimit(1_000_000 + n)
		case 3:
			c = NoDailyLimit()
		}
		if err := admin.Alter(ctx, "s", c); err != nil {
			t.Fatal(err)
		}
		// Let the fleet get on, if it may.
		for i, before := 0, issued.Load(); i < 10_000 && issued.Load() < before+100; i++ {
			runtime.Gosched()
		}
	}
	if err := admin.Alter(ctx, "s", Resume(), NoDailyLimit()); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	if len(seen) < 1000 {
		t.Errorf("only %d IDs were issued", len(seen))
	}
}

// FirstBlock is no way past MaxBlock, nor past what makes the rest unusable.
func TestFirstBlockIsBounded(t *testing.T) {
	big := int64(1e15)
	for name, c := range map[string]struct {
		tune *tuning
		want int64
	}{
		"beyond MaxBlock":  {&tuning{Tuning: Tuning{FirstBlock: &big}}, 1000},
		"beyond tune's":    {&tuning{Tuning: Tuning{FirstBlock: &big, MaxBlock: new(int64(300))}}, 300},
		"read in part":     {&tuning{Tuning: Tuning{FirstBlock: &big}, bad: "runway is N 5"}, 100},
		"with a bad block": {&tuning{Tuning: Tuning{FirstBlock: new(int64(500)), MaxBlock: new(int64(-5))}}, 100},
	} {
		store := Memory()
		a := newTest(t, store, func(o *Options) { o.MaxBlock, o.forfeit = 1000, true })
		if err := a.Create(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		m := store.backend.(*memory)
		m.mu.Lock()
		it := m.items["s"]
		it.tune = c.tune
		m.items["s"] = it
		m.mu.Unlock()
		must(a.Next(t.Context(), "s"))
		if got := a.Stats().BlockSize; got != c.want {
			t.Errorf("%s: the first block has %d IDs, want %d", name, got, c.want)
		}
	}
}

// Two operators who tune at once both have their way, also when the reply to one
// is lost and it says it again.
func TestTuningLosesNoOthersTuning(t *testing.T) {
	for _, st := range stores() {
		for _, reply := range []string{"heard", "lost"} {
			t.Run(st.name+", "+reply, func(t *testing.T) {
				ctx := t.Context()
				store := st.open(t)
				other := newTest(t, store)
				if err := other.Create(ctx, "s"); err != nil {
					t.Fatal(err)
				}
				if err := other.Alter(ctx, "s", Tune(func(t *Tuning) { t.Runway, t.FirstBlock = new(90*time.Second), new(int64(7)) })); err != nil {
					t.Fatal(err)
				}
				tapped := &tap{backend: store.backend}
				calls := 0
				tapped.set(func(_ *change, do func() (*item, error)) (*item, error) {
					if calls++; calls > 1 {
						return do()
					}
					if reply == "lost" {
						_, _ = do()
					}
					if err := other.Alter(ctx, "s", Pause()); err != nil {
						t.Error(err)
					}
					if reply == "lost" {
						return nil, lost()
					}
					return do()
				})
				a := newTest(t, &Store{backend: tapped})
				if err := a.Alter(ctx, "s", Tune(func(t *Tuning) { t.MaxBlock = new(int64(500)) })); err != nil {
					t.Fatal(err)
				}
				d := must(other.Describe(ctx, "s"))
				if !d.Paused || d.Tuning.MaxBlock == nil || *d.Tuning.MaxBlock != 500 || *d.Tuning.Runway != 90*time.Second || *d.Tuning.FirstBlock != 7 {
					t.Errorf("paused %t, %+v", d.Paused, d.Tuning)
				}
			})
		}
	}
}
