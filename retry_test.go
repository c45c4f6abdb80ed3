package ddbseq

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// throttled is the answer of a store that certainly did nothing.
func throttled() error {
	return &LeaseError{Op: "UpdateItem", Table: "t", Throttled: true, kind: ErrThrottled, Err: errBoom}
}

// A throttle says nothing of the attempt before it, whose reply was lost: the
// token stays until an answer settles that one.
func TestAThrottleAfterALostReplySettlesNothing(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tapped := &tap{backend: Memory().backend}
				create(t, tapped, "s")
				a := another(t, tapped, 10)
				tokens, attempts := map[string]int64{}, 0
				tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
					if ch.n == 0 {
						return do()
					}
					attempts++
					tokens[ch.token] = ch.n
					switch {
					case attempts == 1 && applied:
						if _, err := do(); err != nil {
							t.Error(err)
						}
						return nil, lost()
					case attempts == 1:
						return nil, lost()
					case attempts < 5:
						return nil, throttled()
					}
					return do()
				})
				wantIDs(t, takeN(t, a, "s", 10), 1, 10)
				if len(tokens) != 1 || attempts != 5 {
					t.Errorf("%d tokens in %d attempts", len(tokens), attempts)
				}
				if st := a.Stats(); st.Recovered != map[bool]int64{true: 1}[applied] || st.Leases != 1 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// Between attempts with one token more callers may come; they have to wait for
// the next lease.
func TestTheCountStaysWithTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := &tap{backend: Memory().backend}
		create(t, tapped, "s")
		a := another(t, tapped, 10)
		s := sequenceOf(t, a, "s")
		counts := map[string]int64{}
		var wg sync.WaitGroup
		tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
			if ch.n == 0 {
				return do()
			}
			if n, ok := counts[ch.token]; ok && n != ch.n {
				t.Errorf("the count went from %d to %d with one token", n, ch.n)
			}
			if len(counts) > 0 {
				return do()
			}
			counts[ch.token] = ch.n
			if _, err := do(); err != nil {
				t.Error(err)
			}
			wg.Go(func() {
				if b, err := s.Reserve(t.Context(), 50); err != nil || b.First != 11 {
					t.Errorf("%+v, %v", b, err)
				}
			})
			time.Sleep(time.Second) // until it waits
			return nil, lost()
		})
		wantIDs(t, takeN(t, a, "s", 1), 1, 1)
		wg.Wait()
	})
}

// A new token is taken when the fate of the old one is known, and only then.
func TestARefusedAttemptIsFollowedByANewToken(t *testing.T) {
	b := Memory().backend
	tapped := &tap{backend: b}
	create(t, b, "s")
	a, other := another(t, tapped, 10), another(t, b, 10)
	tokens := map[string]bool{}
	attempts := 0
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		if attempts++; attempts == 1 {
			// Altered between our reading and our writing.
			if err := other.Alter(t.Context(), "s", MaxValue(1000)); err != nil {
				t.Error(err)
			}
		}
		tokens[ch.token] = true
		return do()
	})
	wantIDs(t, takeN(t, a, "s", 10), 1, 10)
	if attempts != 2 || len(tokens) != 2 {
		t.Errorf("%d attempts, %d tokens", attempts, len(tokens))
	}
}

// A Restart whose reply was lost, and which another Restart has followed, must
// not be made again: that would undo the other one.
func TestALostRestartIsNotRepeatedOverAnother(t *testing.T) {
	b := Memory().backend
	tapped := &tap{backend: b}
	create(t, b, "s")
	a, other := another(t, tapped, 10), another(t, b, 10)
	attempts := 0
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		if attempts++; attempts == 1 {
			if _, err := do(); err != nil {
				t.Error(err)
			}
			if err := other.Restart(t.Context(), "s", 900); err != nil {
				t.Error(err)
			}
			return nil, lost()
		}
		return do()
	})
	if err := a.Restart(t.Context(), "s", 500); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	wantIDs(t, takeN(t, other, "s", 1), 900, 900)
}

// DESIGN, invariant 1, where 0 would be a value like any other.
func TestAMissingNumberIsNotZero(t *testing.T) {
	tapped := &tap{backend: Memory().backend}
	create(t, tapped, "s", MinValue(-1000), StartWith(-500))
	a := another(t, tapped, 10)
	tapped.set(func(ch *change, do func() (*item, error)) (*item, error) {
		it, err := do()
		if ch.n > 0 && err == nil {
			it.at, it.lastID = nil, nil
		}
		return it, err
	})
	if id, err := a.Next(t.Context(), "s"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %d, %v", id, err)
	}
}

// A block that arrives early waits until the one before it is used up.
func TestANewBlockWaitsForItsTurn(t *testing.T) {
	a := another(t, Memory().backend, 10, createMissing)
	s := sequenceOf(t, a, "s")
	wantIDs(t, takeN(t, a, "s", 4), 1, 4)
	if b, err := s.Reserve(t.Context(), 8); err != nil || b.First != 11 {
		t.Fatal(b, err)
	}
	wantIDs(t, takeN(t, a, "s", 6), 5, 10)
	wantIDs(t, takeN(t, a, "s", 2), 19, 20)
}
