package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// dayStore is a store as one host sees it: with a clock of its own, and replies
// that are lost. It books what is leased by the day that the item has then.
type dayStore struct {
	backend
	skew time.Duration
	lost float64
	mu   *sync.Mutex
	rng  *rand.Rand
	days map[string]int64
}

func (d *dayStore) clock() time.Time { return time.Now().Add(d.skew) }

func (d *dayStore) apply(ctx context.Context, ch *change) (*item, error) {
	time.Sleep(5 * time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	it, err := d.backend.apply(ctx, ch)
	if err == nil && ch.limit != nil {
		d.days[it.day] += ch.n
	}
	if err == nil && ch.unuse > 0 {
		d.days[it.day] -= ch.unuse
	}
	if d.rng.Float64() < d.lost {
		return nil, &LeaseError{Op: "UpdateItem", MaybeApplied: true, Err: errors.New("reply lost")}
	}
	return it, err
}

func TestADailyLimitHoldsForTheFleetOverMidnight(t *testing.T) {
	const limit, hosts = 1000, 16
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			time.Sleep(time.Until(time.Now().Truncate(24*time.Hour).AddDate(0, 0, 1)) - 10*time.Minute)
			table := Memory()
			admin := newTest(t, table)
			if err := admin.Create(ctx, "s", DailyLimit(limit)); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			days := map[string]int64{}
			rng := rand.New(rand.NewPCG(seed, 1))
			var wg sync.WaitGroup
			var issued atomic.Int64
			midnight := time.Now().Add(15 * time.Minute) // past it for the slowest clock
			var early sync.Map
			for i := range hosts {
				skew := time.Duration(i)*10*time.Minute/(hosts-1) - 5*time.Minute
				a := newTest(t, &Store{backend: &dayStore{backend: table.backend, skew: skew, lost: 0.3, mu: &mu, rng: rng, days: days}},
					fixed(int64(1+i%5)*10), func(o *Options) { o.forfeit = i%2 == 0 })
				wg.Go(func() {
					for time.Until(midnight) > -10*time.Minute {
						_, err := a.Next(ctx, "s")
						switch {
						case err == nil:
							issued.Add(1)
							if time.Until(midnight) < 0 {
								early.Store(i, true)
							}
							time.Sleep(time.Duration(100+i) * time.Millisecond)
						case errors.Is(err, ErrDailyLimit):
							var le *DailyLimitError
							if !errors.As(err, &le) || le.Limit != limit || le.ResetAt.IsZero() {
								t.Errorf("%v", err)
							}
							time.Sleep(time.Second)
						default:
							t.Errorf("host %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(days) != 2 {
				t.Errorf("days %v, want 2", days)
			}
			for day, n := range days {
				if n > limit || n < limit-hosts*50 {
					t.Errorf("%s: %d IDs leased of %d", day, n, limit)
				}
			}
			if issued.Load() > 2*limit {
				t.Errorf("%d IDs in two days of %d", issued.Load(), limit)
			}
		})
	}
}

func TestTheFirstCallOfTheNewDaySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a := newTest(t, Memory(), fixed(40))
		if err := a.Create(ctx, "s", DailyLimit(100), DailyLimitZone("Europe/Berlin")); err != nil {
			t.Fatal(err)
		}
		berlin, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Skip(err)
		}
		for range 3 {
			for i := range 100 {
				if _, err := a.Next(ctx, "s"); err != nil {
					t.Fatalf("call %d: %v", i, err)
				}
			}
			_, err := a.Next(ctx, "s")
			le, ok := errors.AsType[*DailyLimitError](err)
			if !ok || le.Used != 100 {
				t.Fatalf("call 101: %v", err)
			}
			y, m, d := time.Now().In(berlin).Date()
			if want := time.Date(y, m, d+1, 0, 0, 0, 0, berlin); !le.ResetAt.Equal(want) {
				t.Fatalf("reset at %v, want %v", le.ResetAt, want)
			}
			time.Sleep(time.Until(le.ResetAt) - time.Millisecond)
			if _, err := a.Next(ctx, "s"); !errors.Is(err, ErrDailyLimit) {
				t.Fatalf("a moment before the reset: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func TestADayNeverComesAgainNorFromTheFarFuture(t *testing.T) {
	utc := time.UTC
	at := func(s string) time.Time {
		v, err := time.ParseInLocation("2006-01-02 15:04", s, utc)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ stored, now, want string }{
		{"", "2026-03-01 10:00", "2026-03-01"},
		{"2026-03-01", "2026-03-01 10:00", "2026-03-01"},
		{"2026-02-28", "2026-03-01 00:00", "2026-03-01"},
		{"2026-03-02", "2026-03-01 23:59", "2026-03-02"}, // another host is past midnight
		{"2026-03-03", "2026-03-01 23:59", "2026-03-01"}, // nobody can be
		{"2099-01-01", "2026-03-01 10:00", "2026-03-01"},
	} {
		if got := today(c.stored, at(c.now), utc); got != c.want {
			t.Errorf("stored %q at %s: %s, want %s", c.stored, c.now, got, c.want)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	for day, hours := range map[string]int{"2026-03-29": 23, "2026-10-25": 25, "2026-06-01": 24} {
		start, _ := time.ParseInLocation(dayFormat, day, berlin)
		if got := dayEnds(day, berlin).Sub(start); got != time.Duration(hours)*time.Hour {
			t.Errorf("%s has %v, want %d h", day, got, hours)
		}
	}
}

// Where the clocks go forward at midnight there is none.
func TestADayEndsWhereTheNextBegins(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Havana", "America/Santiago", "Africa/Cairo", "Asia/Beirut", "Atlantic/Azores", "Australia/Lord_Howe"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Skip(err)
		}
		for noon := time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC); noon.Year() < 2030; noon = noon.AddDate(0, 0, 1) {
			day, next := noon.Format(dayFormat), noon.AddDate(0, 0, 1).Format(dayFormat)
			if end := dayEnds(day, zone); end.Format(dayFormat) != next || end.Add(-1).Format(dayFormat) != day {
				t.Errorf("%s: %s ends at %v", name, day, end)
			}
		}
	}
}

func TestBadLimitsAreRefusedAtOnce(t *testing.T) {
	a := newTest(t, Memory())
	for _, cs := range [][]Clause{
		{DailyLimit(-1)},
		{DailyLimit(5), DailyLimitZone("Mars/Olympus")},
		{DailyLimit(5), DailyLimitZone("Local")},
	} {
		if err := a.Create(t.Context(), "s", cs...); !errors.Is(err, ErrInvalidDefinition) {
			t.Errorf("%v", err)
		}
	}
	if _, err := a.Describe(t.Context(), "s"); !errors.Is(err, ErrNotFound) {
		t.Errorf("something was made: %v", err)
	}
}

func TestLimitsAreKeptOnEveryStore(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			store := st.open(t)
			a := newTest(t, store, fixed(7))
			if err := a.Create(ctx, "s", DailyLimit(20)); err != nil {
				t.Fatal(err)
			}
			seq, err := a.Sequence("s")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := seq.Reserve(ctx, 5); err != nil {
				t.Fatal(err)
			}
			if _, err := seq.Reserve(ctx, 30); !errors.Is(err, ErrDailyLimit) {
				t.Errorf("30 of 20: %v", err)
			}
			// The rest is still there for those who want less.
			for i := range 15 {
				if _, err := a.Next(ctx, "s"); err != nil {
					t.Fatalf("%d: %v", i, err)
				}
			}
			if _, err := a.Next(ctx, "s"); !errors.Is(err, ErrDailyLimit) {
				t.Errorf("the 21st: %v", err)
			}
			d, err := a.Describe(ctx, "s")
			if err != nil || d.Used != 20 || d.DailyLimit != 20 || d.LastID != 20 {
				t.Errorf("%+v, %v", d, err)
			}
			if err := a.Alter(ctx, "s", DailyLimit(25)); err != nil {
				t.Fatal(err)
			}
			if id, err := a.Next(ctx, "s"); err != nil || id != 21 {
				t.Errorf("after the limit was raised: %d, %v", id, err)
			}
			// What is given back counts no more.
			if err := a.Close(ctx); err != nil {
				t.Fatal(err)
			}
			b := newTest(t, store)
			if d, err = b.Describe(ctx, "s"); err != nil || d.Used != 21 || d.LastID != 21 {
				t.Errorf("after Close: %+v, %v", d, err)
			}
			if d.Leased != 25 || d.Issued != 21 || d.Returned != 4 || d.GapRatio() != 0 {
				t.Errorf("ledger: leased %d, issued %d, returned %d, gaps %v", d.Leased, d.Issued, d.Returned, d.GapRatio())
			}
			if err := b.Alter(ctx, "s", NoDailyLimit()); err != nil {
				t.Fatal(err)
			}
			if d, err = b.Describe(ctx, "s"); err != nil || d.DailyLimit != 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func TestTheLedgerShowsACrashLoop(t *testing.T) {
	ctx := t.Context()
	store := Memory()
	admin := newTest(t, store)
	if err := admin.Create(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		crash := newTest(t, store, func(o *Options) { o.forfeit = true })
		if _, err := crash.Next(ctx, "s"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := admin.Describe(ctx, "s")
	if err != nil || d.GapRatio() < 0.95 {
		t.Errorf("gap ratio %v, %v", d.GapRatio(), err)
	}
}

func TestTheItemStaysBelowAKilobyte(t *testing.T) {
	for _, st := range stores() {
		if st.name == "memory" {
			continue
		}
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			name := fmt.Sprintf("%0255d", 1)
			store := st.open(t)
			d := store.backend.(*dynamo)
			m := &meter{Client: d.client.(*dynamodb.Client)}
			d.client = m
			store, clock := withClock(store)
			a := newTest(t, store, fixed(999_999))
			minute := 59*time.Minute + 59*time.Second + 999*time.Millisecond
			if err := a.Create(ctx, name, StartWith(-1<<63), MinValue(-1<<63), MaxValue(1<<63-1), IncrementBy(1234567890123),
				NoCycle(), DailyLimit(1<<62), DailyLimitZone("America/Argentina/ComodRivadavia")); err != nil {
				t.Fatal(err)
			}
			if err := a.Alter(ctx, name, Tune(func(t *Tuning) {
				n := int64(1234567890123456789)
				small := int64(1000)
				t.Runway, t.LeaseEvery, t.MinBlock, t.MaxBlock, t.FirstBlock, t.Paused = &minute, &minute, &small, &n, &small, new(false)
			})); err != nil {
				t.Fatal(err)
			}
			for range 9 {
				if _, err := a.Next(ctx, name); err != nil {
					t.Fatal(err)
				}
				if err := a.Refresh(ctx, name); err != nil {
					t.Fatal(err)
				}
				clock.advance(24 * time.Hour)
			}
			if len(m.writes) < 20 || slices.Max(m.writes) != 1 {
				t.Errorf("writes of the fullest item cost %v units, want 1 each", m.writes)
			}
		})
	}
}

// What says that there is no limit is no limit: its zone, however long, is not
// kept, and a give-back takes nothing off a day that another write has begun.
func TestNoDailyLimitIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := Memory()
		a := newTest(t, store, func(o *Options) { o.MinBlock, o.MaxBlock = 100, 100 })
		if err := a.Create(ctx, "s", NoDailyLimit(), DailyLimitZone(strings.Repeat("z", 5000))); err != nil {
			t.Fatal(err)
		}
		if said := must(store.backend.get(ctx, "s")).said(); said.daily != nil || said.zone != nil {
			t.Errorf("stored: %v, %v", said.daily, said.zone)
		}
		must(a.Next(ctx, "s"))
		time.Sleep(24 * time.Hour)
		for range 60 { // a second block, which begins the day
			must(a.Next(ctx, "s"))
		}
		synctest.Wait()
		if err := a.Refresh(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		if d := must(a.Describe(ctx, "s")); d.Used < 0 {
			t.Errorf("%d used on %s", d.Used, d.Day)
		}
	})
}

// An operator who removes used begins the day's count anew, and stops nobody.
func TestUsedMayBeRemovedByHand(t *testing.T) {
	for _, st := range stores()[1:] {
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			store := st.open(t)
			d := store.backend.(*dynamo)
			a := newTest(t, store, fixed(10))
			if err := a.Create(ctx, "s", DailyLimit(20)); err != nil {
				t.Fatal(err)
			}
			remove := func() {
				t.Helper()
				if _, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &d.name, Key: d.keyOf("s"),
					UpdateExpression: aws.String("REMOVE used")}); err != nil {
					t.Fatal(err)
				}
			}
			s := sequenceOf(t, a, "s")
			must(s.Reserve(ctx, 10))
			remove()
			soon, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if _, err := s.Next(soon); err != nil {
				t.Fatal(err)
			}
			remove()
			if err := a.Refresh(ctx, "s"); err != nil {
				t.Error(err)
			}
			if got := must(a.Describe(ctx, "s")); got.Used != 0 || got.LastID != 11 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A host whose clock is set, as many are soon after they start, changes no day.
func TestTheStoresClockDoesNotFollowOurs(t *testing.T) {
	d := DynamoDB(testClient("http://127.0.0.1:1"), "t").backend.(*dynamo)
	if off := time.Since(d.clock()); off > time.Minute {
		t.Errorf("before any reply: off by %v", off)
	}
	date := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	r := dated{date: date, at: time.Now()}
	// Our clock is set by 73 years from here on: seconds are counted in these bits.
	(*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&r.at)).wall -= 73 * 365 * 86400 << 30
	if set := time.Now().Round(0).Sub(r.at.Round(0)); set < 72*365*24*time.Hour {
		t.Fatalf("the test is out of date: set by %v", set)
	}
	d.dated.Store(&r)
	if now := d.clock(); now.Sub(date) > time.Minute {
		t.Errorf("the store's clock is %v, want %v", now, date)
	}
}
