package ddbseq

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAShadowIsTheSameSequenceWithACounterOfItsOwn(t *testing.T) {
	for _, st := range stores() {
		t.Run(st.name, func(t *testing.T) {
			ctx := t.Context()
			a := newTest(t, st.open(t), fixed(10))
			if err := a.CreateShadow(ctx, "s"); !errors.Is(err, ErrNotFound) {
				t.Errorf("of nothing: %v", err)
			}
			if err := errors.Join(a.Create(ctx, "s", StartWith(1000), IncrementBy(5), MaxValue(9000), Cycle(), DailyLimit(500), DailyLimitZone("Europe/Berlin")),
				a.Alter(ctx, "s", Tune(func(t *Tuning) { t.Runway, t.Paused = new(time.Hour), new(true) })),
				a.CreateShadow(ctx, "s"), a.CreateShadow(ctx, "s"), a.Alter(ctx, "s", Resume())); err != nil {
				t.Fatal(err)
			}
			plain, shadow := must(a.Describe(ctx, "s")), must(a.Describe(ctx, Shadow("s")))
			if shadow.Name != "shadow.s" || shadow.Definition != plain.Definition || shadow.DailyLimit != 500 || shadow.DailyLimitZone != "Europe/Berlin" ||
				shadow.Paused || *shadow.Tuning.Runway != time.Hour {
				t.Errorf("%+v, want %+v", shadow, plain)
			}
			for i := range int64(30) {
				if id, err := a.Next(ctx, Shadow("s")); err != nil || id != 1000+5*i {
					t.Fatal(id, err)
				}
			}
			if id, err := a.Next(ctx, "s"); err != nil || id != 1000 {
				t.Errorf("the real one: %d, %v", id, err)
			}
			if plain, shadow := a.Stats(), a.ShadowStats(); plain.Issued != 1 || shadow.Issued != 30 {
				t.Errorf("issued %d and %d", plain.Issued, shadow.Issued)
			}
			if err := a.Alter(ctx, "s", MaxValue(9500)); err != nil {
				t.Fatal(err)
			}
			if err := a.CreateShadow(ctx, "s"); !errors.Is(err, ErrDefinitionMismatch) {
				t.Errorf("after the real one was altered: %v", err)
			}
		})
	}
}

func TestAShadowNeedsANameOfItsOwn(t *testing.T) {
	a := newTest(t, Memory())
	for _, name := range []string{"", Shadow("s"), strings.Repeat("n", maxName-len(shadowPrefix)+1)} {
		if err := a.CreateShadow(t.Context(), name); !errors.Is(err, ErrInvalidName) && name != "" {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	name := strings.Repeat("n", maxName-len(shadowPrefix))
	if err := errors.Join(a.Create(t.Context(), name), a.CreateShadow(t.Context(), name)); err != nil {
		t.Error(err)
	}
}

func TestAShadowNeverDelaysItsCaller(t *testing.T) {
	store, faults := withFaults(Memory(), func(string, string, int) fault { return fault{hang: true} })
	a := newTest(t, store)
	s := sequenceOf(t, a, Shadow("s"))
	for range 100 { // the store never answers
		if _, ok := s.TryNext(); ok {
			t.Fatal("an ID from nowhere")
		}
	}
	faults.set(nil)
}
