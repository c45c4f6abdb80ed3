package ddbseq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ddbseq/ddbseq/internal/emulator"
)

// atOnce makes retries wait for nothing.
func atOnce(o *Options) { o.rand = func() float64 { return 0 } }

// strict is a process that makes no sequence, leases n IDs at a time, and loses
// what it holds when it ends.
func strict(n int64) func(*Options) {
	return func(o *Options) {
		fixed(n)(o)
		atOnce(o)
		o.CreateMissing, o.forfeit = false, true
	}
}

// next1 is a.Next that does not get an error of before.
func next1(t testing.TB, a *Allocator, name string) (int64, error) {
	t.Helper()
	unhold(a, name)
	return a.Next(t.Context(), name)
}

// want checks the next IDs of a.
func want(t testing.TB, a *Allocator, name string, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		if got, err := next1(t, a, name); err != nil || got != id {
			t.Fatalf("next of %s is %d, %v, want %d", name, got, err, id)
		}
	}
}

// wantErr checks that err matches target and its text holds all of texts.
func wantErr(t testing.TB, err, target error, texts ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%v, want %v", err, target)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCreateIsIdempotentAndRefusesAnotherDefinition(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(1))
			ok(t, a.Create(ctx, "s", IncrementBy(2), MaxValue(99)))
			want(t, a, "s", 1, 3)
			before, err := a.Describe(ctx, "s")
			ok(t, err)
			ok(t, a.Create(ctx, "s", IncrementBy(2), MaxValue(99)))
			ok(t, a.Create(ctx, "s", StartWith(1), IncrementBy(2), MinValue(1), MaxValue(99), NoCycle())) // the defaults in words
			err = a.Create(ctx, "s", IncrementBy(3), MaxValue(99))
			wantErr(t, err, ErrDefinitionMismatch, `"s"`, s.backend.table(), "INCREMENT is 3 in the code and 2 in the table", "Alter")
			if after, err := a.Describe(ctx, "s"); err != nil || after != before {
				t.Errorf("%+v, %v, want %+v", after, err, before)
			}
			want(t, a, "s", 5)
			if got := ruleOf(t, a.Create(ctx, "t", MaxValue(0))); got != "min_not_below_max" {
				t.Error(got)
			}
			_, err = a.Describe(ctx, "t")
			wantErr(t, err, ErrNotFound, `"t"`, "Create")
		})
	}
}

// A process that creates its sequences when it starts must start again after an
// operator has altered them.
func TestCreateAgreesWithWhatIsNotSaid(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(1))
			create := func() error { return a.Create(ctx, "s", StartWith(1000)) }
			ok(t, create())
			ok(t, a.Alter(ctx, "s", MaxValue(1<<40), IncrementBy(3), DailyLimit(1_000_000), DailyLimitZone("Europe/Berlin")))
			ok(t, create())
			ok(t, a.Create(ctx, "s"))
			ok(t, a.Alter(ctx, "s", Tune(func(tn *Tuning) { tn.Runway = new(time.Hour) })))
			ok(t, create())
			for text, cs := range map[string][]Clause{
				"START is 999 in the code and 1000 in the table":         {StartWith(999)},
				"MAXVALUE is 10000 in the code and 1099511627776 in the": {StartWith(1000), MaxValue(10_000)},
				"the daily limit is 5":                                   {StartWith(1000), DailyLimit(5)},
				"the type asked for holds -2147483648 to 2147483647":     {Int32()},
			} {
				wantErr(t, a.Create(ctx, "s", cs...), ErrDefinitionMismatch, `"s"`, s.backend.table(), text, "Alter")
			}
		})
	}
}

// Only a write can have an unknown outcome: what a process holds is worth most
// while the table cannot be reached.
func TestAnAdministrativeCallThatCannotEvenReadChangesNothing(t *testing.T) {
	for name, fail := range map[string]fault{
		"hangs": {hang: true},
		"fails": {err: &LeaseError{Op: "GetItem", Table: "t", MaybeApplied: true, Err: errBoom}},
	} {
		for what, call := range map[string]func(context.Context, *Allocator) error{
			"alter":   func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", MaxValue(1<<40)) },
			"restart": func(ctx context.Context, a *Allocator) error { return a.Restart(ctx, "s", 5000) },
			"tune":    func(ctx context.Context, a *Allocator) error { return a.Alter(ctx, "s", Pause()) },
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log bytes.Buffer
					store, f := withFaults(Memory(), nil)
					a := newTest(t, store, fixed(100), createMissing, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
					must(a.Next(t.Context(), "s"))
					f.set(func(op, _ string, _ int) fault {
						if op != "GetItem" {
							return fault{}
						}
						return fail
					})
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					err := call(ctx, a)
					wantErr(t, err, context.DeadlineExceeded, `reading sequence "s" in table`)
					if errors.Is(err, ErrOutcomeUnknown) || strings.Contains(err.Error(), "\n") {
						t.Errorf("got %v", err)
					}
					if n := strings.Count(log.String(), "call failed, trying again"); n != 1 {
						t.Errorf("the log has it %d times: %s", n, &log)
					}
					f.set(nil)
					if n := a.Stats().Remaining; n != 99 {
						t.Errorf("memory holds %d IDs, want the 99 it had", n)
					}
				})
			})
		}
	}
}

// The first failure is logged, also behind a change of somebody else's.
func TestTheFirstFailureIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := Memory()
		store, f := withFaults(m, nil)
		a := newTest(t, store, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		b := newTest(t, m)
		ok(t, a.Create(t.Context(), "s"))
		n := f.count("s")
		f.set(func(_, _ string, call int) fault {
			if call == n+2 { // between its reading and its writing
				ok(t, b.Alter(t.Context(), "s", MaxValue(1000)))
			}
			if call > n+2 && call < n+6 {
				return fault{err: transient()}
			}
			return fault{}
		})
		ok(t, a.Alter(t.Context(), "s", Cycle()))
		if n := strings.Count(log.String(), "call failed, trying again"); n != 1 {
			t.Errorf("the log has it %d times: %s", n, &log)
		}
	})
}

func TestOfConcurrentCreatesOneDefinitionWins(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			s := st.open(t)
			const n = 12
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				a := newTest(t, s, strict(1))
				wg.Go(func() { errs[i] = a.Create(t.Context(), "s", StartWith(int64(100+i%2))) })
			}
			wg.Wait()
			d, err := newTest(t, s).Describe(t.Context(), "s")
			ok(t, err)
			for i, err := range errs {
				if d.Definition.Start == int64(100+i%2) {
					ok(t, err)
				} else {
					wantErr(t, err, ErrDefinitionMismatch)
				}
			}
		})
	}
}

func TestAlterBeforeTheFirstNextKeepsStartFirst(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(2))
			ok(t, a.Create(ctx, "s", StartWith(7)))
			ok(t, a.Alter(ctx, "s", IncrementBy(10)))
			ok(t, a.Alter(ctx, "s", StartWith(3))) // only where a bare RESTART goes
			want(t, a, "s", 7, 17, 27)
			ok(t, a.Alter(ctx, "s", RestartAtStart(), AllowReuse()))
			want(t, a, "s", 3, 13)
		})
	}
}

func TestRestartThenAlterIsAsInPostgreSQL(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(3))
			ok(t, a.Create(ctx, "s", MaxValue(100)))
			want(t, a, "s", 1, 2)
			ok(t, a.Restart(ctx, "s", 50))
			ok(t, a.Alter(ctx, "s", IncrementBy(20)))
			if got := ruleOf(t, a.Alter(ctx, "s", MaxValue(49))); got != "restart_above_max" {
				t.Error(got) // 50 is still to come
			}
			if got := ruleOf(t, a.Alter(ctx, "s", MinValue(51), StartWith(60))); got != "restart_below_min" {
				t.Error(got)
			}
			if got := ruleOf(t, a.Alter(ctx, "s", MinValue(51))); got != "start_below_min" {
				t.Error(got)
			}
			want(t, a, "s", 50, 70, 90)
			_, err := a.Next(ctx, "s")
			wantErr(t, err, ErrExhausted, "maximum 100", "last leased 90")
			// A bound and RESTART in one: RESTART replaces the position first.
			ok(t, a.Alter(ctx, "s", MaxValue(40), RestartWith(35), AllowReuse()))
			want(t, a, "s", 35)
			ok(t, a.RestartAfter(ctx, "s", 38, AllowReuse()))
			ok(t, a.Alter(ctx, "s", IncrementBy(1)))
			want(t, a, "s", 39, 40)
			ok(t, a.Alter(ctx, "s", IncrementBy(-30), AllowReuse())) // a change of sign keeps the bounds
			want(t, a, "s", 10)
			_, err = a.Next(ctx, "s")
			wantErr(t, err, ErrExhausted, "minimum 1")
			ok(t, a.Alter(ctx, "s", Cycle()))
			want(t, a, "s", 40, 10, 40)
		})
	}
}

func TestGoingBackNeedsAllowReuse(t *testing.T) {
	type call = func(a *Allocator, cs ...Clause) error
	ctx := t.Context()
	restart := func(v int64) call {
		return func(a *Allocator, cs ...Clause) error { return a.Restart(ctx, "s", v, cs...) }
	}
	restartAfter := func(v int64) call {
		return func(a *Allocator, cs ...Clause) error { return a.RestartAfter(ctx, "s", v, cs...) }
	}
	alter := func(with ...Clause) call {
		return func(a *Allocator, cs ...Clause) error { return a.Alter(ctx, "s", slices.Concat(with, cs)...) }
	}
	for _, c := range []struct {
		name  string
		inc   int64 // of 0..1000 from the middle
		do    call
		reuse bool
	}{
		// Ascending: 500..509 are leased.
		{"up, back", 1, restart(400), true},
		{"up, to what is leased last", 1, restart(509), true},
		{"up, to what comes next", 1, restart(510), false},
		{"up, ahead", 1, restart(900), false},
		{"up, to the very end", 1, restart(1000), false},
		{"up, after what is before the last", 1, restartAfter(508), true},
		{"up, after the last", 1, restartAfter(509), false},
		{"up, after the very end", 1, restartAfter(1000), false},
		{"up, RESTART", 1, alter(RestartAtStart()), true},
		{"up, RESTART WITH back", 1, alter(RestartWith(0)), true},
		{"up, RESTART WITH ahead", 1, alter(RestartWith(510)), false},
		{"up, turning", 1, alter(IncrementBy(-1)), true},
		{"up, turning ahead", 1, alter(IncrementBy(-1), RestartWith(900)), true},
		{"up, another stride", 1, alter(IncrementBy(7)), false},
		// Descending: 500..491 are leased.
		{"down, back", -1, restart(600), true},
		{"down, to what is leased last", -1, restart(491), true},
		{"down, to what comes next", -1, restart(490), false},
		{"down, ahead", -1, restart(0), false},
		{"down, after what is before the last", -1, restartAfter(492), true},
		{"down, after the last", -1, restartAfter(491), false},
		{"down, RESTART", -1, alter(RestartAtStart()), true},
		{"down, RESTART WITH ahead", -1, alter(RestartWith(490)), false},
		{"down, turning", -1, alter(IncrementBy(1)), true},
		{"down, another stride", -1, alter(IncrementBy(-7)), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, allowed := range []bool{false, true} {
				s := Memory()
				a := newTest(t, s, strict(10))
				ok(t, a.Create(ctx, "s", IncrementBy(c.inc), MinValue(0), MaxValue(1000), StartWith(500)))
				want(t, a, "s", 500)
				before := must(s.backend.get(ctx, "s"))
				if allowed {
					ok(t, c.do(a, AllowReuse()))
					continue
				}
				err := c.do(a)
				if !c.reuse {
					ok(t, err)
					continue
				}
				wantErr(t, err, ErrReuse, `"s"`, "AllowReuse")
				if after := must(s.backend.get(ctx, "s")); after.tok != before.tok || after.epoch != 0 || after.ver != before.ver {
					t.Error("it was refused and changed the item")
				}
				want(t, a, "s", 500+c.inc) // and what is held is not dropped
			}
		})
	}
}

func TestASequenceThatWasNeverUsedRestartsAnywhere(t *testing.T) {
	ctx := t.Context()
	for _, do := range []func(*Allocator) error{
		func(a *Allocator) error { return a.Restart(ctx, "s", 1) },
		func(a *Allocator) error { return a.RestartAfter(ctx, "s", 1) },
		func(a *Allocator) error { return a.Alter(ctx, "s", RestartWith(1)) },
		func(a *Allocator) error { return a.Alter(ctx, "s", IncrementBy(-1)) },
		func(a *Allocator) error { return a.Alter(ctx, "s", IncrementBy(-1), RestartWith(100)) },
	} {
		a := newTest(t, Memory(), strict(10))
		ok(t, a.Create(ctx, "s", StartWith(50), MaxValue(100)))
		ok(t, do(a))
	}
}

func TestAdvanceOnlyMovesForward(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(5))
			advance := func(name string, to, now int64) {
				t.Helper()
				if got, err := a.Advance(ctx, name, to); err != nil || got != now {
					t.Fatalf("Advance to %d: %d, %v, want %d", to, got, err, now)
				}
			}
			ok(t, a.Create(ctx, "up", MaxValue(1000)))
			advance("up", 0, 0) // out of bounds, and already behind
			want(t, a, "up", 1)
			advance("up", 3, 5)
			advance("up", 5, 5)
			advance("up", 100, 100)
			advance("up", 7, 100)
			want(t, a, "up", 2, 3, 4, 5, 101) // what is held is handed out
			_, err := a.Advance(ctx, "up", 1001)
			wantErr(t, err, ErrOutOfBounds, "1001", "1..1000")
			advance("up", 1000, 1000)
			want(t, a, "up", 102, 103, 104, 105)
			_, err = a.Next(ctx, "up")
			wantErr(t, err, ErrExhausted, "maximum 1000")

			ok(t, a.Create(ctx, "down", IncrementBy(-1)))
			advance("down", -10, -10)
			advance("down", -9, -10)
			want(t, a, "down", -11)
			advance("down", 5, -15) // out of bounds, and already behind
			advance("down", minInt, minInt)
			want(t, a, "down", -12, -13, -14, -15)
			_, err = a.Next(ctx, "down")
			wantErr(t, err, ErrExhausted, "minimum -9223372036854775808")

			ok(t, a.Create(ctx, "start", StartWith(40)))
			advance("start", 40, 40)
			want(t, a, "start", 41)
			_, err = a.Advance(ctx, "missing", 1)
			wantErr(t, err, ErrNotFound)
		})
	}
}

func TestACounterLoweredByHandIsNotLeasedFromUntilItIsAdvanced(t *testing.T) {
	for _, removed := range []bool{false, true} {
		for _, st := range stores() {
			t.Run(st.name, func(t *testing.T) {
				ctx, s := t.Context(), st.open(t)
				a, b := newTest(t, s, strict(1000)), newTest(t, s, strict(1))
				ok(t, a.Create(ctx, "s"))
				want(t, a, "s", 1)
				lowered := new(int64(10))
				if removed {
					lowered = nil
				}
				byHand(t, s, "s", map[string]*int64{attrLast: lowered})
				_, err := b.Next(ctx, "s") // a process that never saw the higher number
				wantErr(t, err, ErrCounterMovedBack, "lowered", "1000")
				_, err = b.Advance(ctx, "s", 999)
				wantErr(t, err, ErrCounterMovedBack)
				wantErr(t, b.Alter(ctx, "s", IncrementBy(2)), ErrCounterMovedBack)
				wantErr(t, b.Restart(ctx, "s", 500), ErrReuse) // 500 to 1000 were leased
				wantErr(t, b.RestartAfter(ctx, "s", 998), ErrReuse)
				wantErr(t, b.Alter(ctx, "s", RestartWith(1000)), ErrReuse)
				if got, err := b.Advance(ctx, "s", 1000); err != nil || got != 1000 {
					t.Fatal(got, err)
				}
				want(t, b, "s", 1001)
			})
		}
	}
}

// position returns what d says of the definition and of the next ID.
func position(d Description) Description {
	return Description{
		Name: d.Name, Definition: d.Definition, LastID: d.LastID, Called: d.Called,
		Next: d.Next, Exhausted: d.Exhausted, Epoch: d.Epoch, Paused: d.Paused,
	}
}

func TestDescribeTellsAllAndTakesNothing(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx, s := t.Context(), st.open(t)
			a := newTest(t, s, strict(4), func(o *Options) { o.KeyPrefix = "app." })
			ok(t, a.Create(ctx, "s", MaxValue(6)))
			d := Definition{1, 1, 1, 6, false}
			describe := func(want Description) {
				t.Helper()
				want.Name = "s"
				for range 2 {
					if got, err := a.Describe(ctx, "s"); err != nil || position(got) != want {
						t.Fatalf("%+v, %v, want %+v", got, err, want)
					}
				}
			}
			describe(Description{Definition: d, Next: 1})
			want(t, a, "s", 1)
			describe(Description{Definition: d, LastID: 4, Called: true, Next: 5})
			want(t, a, "s", 2, 3, 4, 5)
			describe(Description{Definition: d, LastID: 6, Called: true, Exhausted: true})
			ok(t, a.Alter(ctx, "s", Cycle()))
			d.Cycle = true
			describe(Description{Definition: d, LastID: 6, Called: true, Next: 1})
			ok(t, a.Restart(ctx, "s", 3, AllowReuse()))
			epoch := must(s.backend.get(ctx, "app.s")).epoch
			describe(Description{Definition: d, Next: 3, Epoch: epoch})
			if epoch < 1 {
				t.Error("a Restart raises the epoch")
			}
		})
	}
}

// smallPages makes every Scan return a few items only.
type smallPages struct {
	*dynamodb.Client
	calls int
}

func (c *smallPages) Scan(ctx context.Context, in *dynamodb.ScanInput, o ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error) {
	c.calls++
	page := *in
	page.Limit = aws.Int32(7)
	return c.Client.Scan(ctx, &page, o...)
}

func TestListReadsEveryPage(t *testing.T) {
	for _, kind := range []emulator.Kind{"", emulator.Dynoxide, emulator.Dynalite} {
		t.Run(string("on "+kind), func(t *testing.T) {
			ctx, s, pages := t.Context(), Memory(), &smallPages{calls: 7}
			if kind != "" {
				pages = &smallPages{Client: testClient(emulator.Endpoint(t, kind))}
				s = tableOn(t, pages)
			}
			a := newTest(t, s, strict(1), func(o *Options) { o.KeyPrefix = "app." })
			other := newTest(t, s, strict(1))
			var all []string
			for i := range 30 {
				name := fmt.Sprintf("s%02d", i)
				all = append(all, name)
				ok(t, a.Create(ctx, name, StartWith(int64(i+1))))
				ok(t, other.Create(ctx, fmt.Sprint("other", i)))
			}
			byHand(t, s, "app.future", map[string]*int64{attrLast: new(int64(5))})
			var got []string
			for d, err := range a.List(ctx) {
				ok(t, err)
				if d.Name != "future" && fmt.Sprintf("s%02d", d.Next-1) != d.Name {
					t.Errorf("%+v", d)
				}
				got = append(got, d.Name)
			}
			slices.Sort(got)
			if want := append([]string{"future"}, all...); !slices.Equal(got, want) {
				t.Errorf("%d names, want %d: %v", len(got), len(want), got)
			}
			if pages.calls < 7 {
				t.Errorf("%d pages", pages.calls)
			}
			for range a.List(ctx) {
				break // and nothing is left behind
			}
		})
	}
}

func TestListGoesOnAfterAnItemThatCannotBeRead(t *testing.T) {
	s := tableOn(t, testClient(emulator.Endpoint(t, emulator.Dynoxide)))
	ctx, a := t.Context(), newTest(t, s, strict(1), func(o *Options) { o.KeyPrefix = "app." })
	d := s.backend.(*dynamo)
	put := func(key, n string) {
		e := &expression{d: d, names: map[string]string{}, values: map[string]types.AttributeValue{}}
		e.set(attrLast, "%s", e.value("n", &types.AttributeValueMemberN{Value: n}))
		_, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &d.name, Key: d.keyOf(key),
			UpdateExpression: aws.String(e.update()), ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values})
		ok(t, err)
	}
	ok(t, a.Create(ctx, "a"))
	ok(t, a.Create(ctx, "b"))
	put("app.bad", "1.5")
	put("not.ours", "1.5")
	names, bad := 0, 0
	for d, err := range a.List(ctx) {
		if err != nil {
			bad++
			wantErr(t, err, ErrCorrupt, "app.bad", "1.5")
			continue
		}
		if d.Name == "a" || d.Name == "b" {
			names++
		}
	}
	if names != 2 || bad != 1 {
		t.Errorf("%d sequences and %d errors, want 2 and 1", names, bad)
	}
}
