package ddbseq

import (
	"context"
	"fmt"
	"strings"
)

const shadowPrefix = "shadow."

// Shadow returns the name of the shadow of a sequence, which
// [Allocator.CreateShadow] makes.
func Shadow(name string) string { return shadowPrefix + name }

func isShadow(name string) bool { return strings.HasPrefix(name, shadowPrefix) }

// CreateShadow makes the shadow of a sequence: another one, named [Shadow](name),
// with the definition, the daily limit and the tuning that the real one has now,
// but for a pause, and a counter of its own. It is for load tests in production:
// draw from it, with TryNext where the caller must never be delayed, and the real
// one does not notice. [Allocator.Stats] leaves it out and
// [Allocator.ShadowStats] counts it. A shadow that exists already must have that
// definition still, otherwise it is ErrDefinitionMismatch; its tuning is replaced
// if the real one has any, and kept otherwise.
func (a *Allocator) CreateShadow(ctx context.Context, name string) error {
	shadow := Shadow(name)
	if err := a.checkName(shadow); err != nil {
		return err
	}
	if isShadow(name) {
		return fmt.Errorf("%w: %q is itself a shadow", ErrInvalidName, name)
	}
	d, err := a.Describe(ctx, name)
	if err != nil {
		return err
	}
	def := d.Definition
	cs := []Clause{StartWith(def.Start), IncrementBy(def.Increment), MinValue(def.Min), MaxValue(def.Max), setCycle(def.Cycle)}
	if d.DailyLimit > 0 {
		cs = append(cs, DailyLimit(d.DailyLimit), DailyLimitZone(d.DailyLimitZone))
	}
	if err := a.Create(ctx, shadow, cs...); err != nil {
		return err
	}
	if d.Tuning.Paused = nil; d.Tuning == (Tuning{}) {
		return nil
	}
	return a.Alter(ctx, shadow, Tune(func(t *Tuning) { *t = d.Tuning.clone() }))
}

// ShadowStats returns the figures of all shadow sequences together.
func (a *Allocator) ShadowStats() Stats { return a.sum(true) }
