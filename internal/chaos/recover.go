package main

import "strings"

// recover checks that a reply that was lost cost no ID while nobody else leased
// in between: the next attempt is refused then, and told what the first one did.
// A block of p that p never heard of, and behind which p itself was the next to
// write, is excused only by
//   - Close or Refresh, which drop what is under way,
//   - another answer to the same token, after which nobody asks for it any more:
//     the block is that of an attempt that arrived late,
//   - having arrived late, perhaps when the token was given up already.
func (c *checker) recover(p *process, seq int) {
	var mine []*block
	answered := map[string]bool{}
	for _, b := range c.tables[seq].blocks {
		if b.process == p.number {
			mine = append(mine, b)
			answered[b.tok] = answered[b.tok] || b.heard
		}
	}
	for i, b := range mine {
		if b.heard || b.next != p.number || answered[b.tok] || strings.HasPrefix(b.fault, "late") || b.fault == "delay" {
			continue
		}
		// There is one lease at a time: all attempts of this one were made
		// between the answers to the ones before and behind.
		before, behind := 0, 0
		for _, o := range mine[:i] {
			before = max(before, o.line)
		}
		for _, o := range mine[i+1:] {
			if o.heard && (behind == 0 || o.line < behind) {
				behind = o.line
			}
		}
		if behind == 0 || p.refreshedWithin(seq, before, behind) {
			continue
		}
		c.violate("sequence %s: process %d never recovered %d IDs although it was the next to write (write %d, fault %q): %s",
			c.specs[seq].name, p.number, b.to-b.from, b.write, b.fault, c.trace(seq, b.from))
	}
}

// refreshedWithin reports whether a Refresh of the sequence was under way at any
// time between two lines.
func (h *history) refreshedWithin(seq, from, to int) bool {
	for _, r := range h.refreshes {
		if (r.seq == seq || r.seq < 0) && r.from < to && (r.to == 0 || r.to > from) {
			return true
		}
	}
	return false
}
