package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ddbseq/ddbseq"
)

// maxViolations is how many violations are told; more say nothing new.
const maxViolations = 20

// process is what is known of a child process when it is gone.
type process struct {
	number int
	killed bool
	history
}

// checker replays the applied writes and holds the histories against them.
type checker struct {
	specs      []spec
	tables     []*ledger
	violations []string
	more       int // violations that are not told
	totals     totals
}

// totals are what a run amounts to, from the writes and the histories alone.
type totals struct {
	ids, leases, giveBacks, leased, returned, gaps int64
	duplicates, recovered                          int64
	// Why IDs were leased and neither handed out nor given back.
	killed    int64 // in the memory of a process that was killed, or on the way there
	unheard   int64 // the answer never arrived and somebody leased behind
	abandoned ddbseq.Abandoned
	// Given back by a write whose answer was lost: the library counts them as
	// abandoned.
	silently int64
}

// block is a lease.
type block struct {
	process  int
	write    int // which one
	from, to int64
	tok      string
	at       int64
	fault    string
	returned int64 // by later writes
	issued   int64

	heard     bool // the answer has reached the process
	recovered bool // and it was that of a refused attempt
	line      int  // and this is where the process wrote it down
	next      int  // process of the next write to the item; 0 = there is none
}

// ledger is one sequence.
type ledger struct {
	blocks []*block
	// owner is the block of each position that is leased and not given back.
	owner []*block
	// holder is who handed out each position; nil = nobody.
	holder []*holder
	last   state
	newest *block // nil if it is not the last write
}

type holder struct {
	process int
	op      byte
	routine int
}

// check replays writes, in the order of each item, and checks the processes'
// histories against them. final is how the table has the items in the end.
func check(specs []spec, writes []write, processes []*process, final []state) *checker {
	c := &checker{specs: specs}
	for range specs {
		c.tables = append(c.tables, &ledger{})
	}
	known := map[int]bool{}
	for _, p := range processes {
		known[p.number] = true
	}
	for i, w := range writes {
		if !known[w.process] {
			c.violate("sequence %s: write %d is of process %d, which there never was: %v", specs[w.seq].name, i, w.process, w.after)
		}
		c.replay(i, w)
	}
	for seq, t := range c.tables {
		if seq < len(final) && len(t.blocks) > 0 && !t.last.equal(final[seq]) {
			c.violate("sequence %s: the table has %v, the last write left %v", specs[seq].name, final[seq], t.last)
		}
		t.holder = make([]*holder, len(t.owner))
	}
	for _, p := range processes {
		c.issue(p)
	}
	for _, p := range processes {
		for seq := range specs {
			c.account(p, seq)
		}
	}
	c.sum()
	return c
}

func (c *checker) violate(format string, args ...any) {
	if len(c.violations) >= maxViolations {
		c.more++
		return
	}
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
}

// replay takes a write for what it does to the counter: forward is a lease,
// back is a give-back. Which of the two it was meant to be does not matter.
func (c *checker) replay(i int, w write) {
	t, sp := c.tables[w.seq], c.specs[w.seq]
	before := int64(len(t.owner))
	if t.newest != nil {
		t.newest.next = w.process
	}
	t.newest = nil
	t.last = w.after
	after, err := sp.reached(w.after)
	if err != nil {
		c.violate("sequence %s: write %d of process %d left %v: %v", sp.name, i, w.process, w.after, err)
		return
	}
	switch {
	case after > before:
		st := w.after
		if st.At == nil || *st.At != *st.Last || st.N != after-before {
			c.violate("sequence %s: write %d of process %d leased %d IDs and left %v", sp.name, i, w.process, after-before, st)
			return
		}
		b := &block{process: w.process, write: i, from: before, to: after, tok: st.Tok, at: *st.At, fault: w.fault}
		t.blocks = append(t.blocks, b)
		t.newest = b
		t.owner = append(t.owner, slices.Repeat([]*block{b}, int(after-before))...)
		c.totals.leases++
		c.totals.leased += after - before
	case after < before:
		for p := after; p < before; p++ {
			b := t.owner[p]
			if b.process != w.process {
				c.violate("sequence %s: write %d of process %d gave back %d, which process %d had leased (write %d)",
					sp.name, i, w.process, sp.id(p), b.process, b.write)
			}
			b.returned++
		}
		t.owner = t.owner[:after]
		c.totals.giveBacks++
		c.totals.returned += before - after
	}
}

// issue enters what p has handed out.
func (c *checker) issue(p *process) {
	for _, problem := range p.problems {
		c.violate("process %d: %s", p.number, problem)
	}
	type stream struct{ goroutine, seq int }
	latest := map[stream]int64{}
	for _, h := range p.handed {
		sp := c.specs[h.seq]
		// Next and TryNext go on from where the goroutine, and all others that
		// had returned by then, were; a Fill only rises in itself.
		prior := int64(-1)
		ordered := h.op == 'n' || h.op == 't'
		if ordered {
			prior = h.floor
			if l, ok := latest[stream{h.goroutine, h.seq}]; ok {
				prior = max(prior, l)
			}
		}
		who := &holder{p.number, h.op, h.goroutine}
		for _, id := range h.ids {
			at, err := sp.position(id)
			if err != nil {
				c.violate("sequence %s: process %d handed out %d: %v", sp.name, p.number, id, err)
				continue
			}
			if at <= prior {
				c.violate("sequence %s: process %d, goroutine %d, call %c: %d came after %d, the wrong way",
					sp.name, p.number, h.goroutine, h.op, id, sp.id(prior))
			}
			prior = at
			c.hand(p, h, who, at)
		}
		if ordered {
			latest[stream{h.goroutine, h.seq}] = prior
		}
	}
	c.listen(p)
}

// hand enters one ID.
func (c *checker) hand(p *process, h handed, who *holder, at int64) {
	t, sp := c.tables[h.seq], c.specs[h.seq]
	c.totals.ids++
	if at < 0 || at >= int64(len(t.owner)) {
		c.violate("sequence %s: process %d handed out %d (call %c), which nobody holds: %s",
			sp.name, p.number, sp.id(at), h.op, c.trace(h.seq, at))
		return
	}
	if other := t.holder[at]; other != nil {
		c.totals.duplicates++
		c.violate("sequence %s: DUPLICATE %d: process %d (goroutine %d, call %c) and process %d (goroutine %d, call %c): %s",
			sp.name, sp.id(at), other.process, other.routine, other.op, p.number, h.goroutine, h.op, c.trace(h.seq, at))
		return
	}
	t.holder[at] = who
	b := t.owner[at]
	if b.process != p.number {
		c.violate("sequence %s: process %d handed out %d (call %c) from a block of process %d: %s",
			sp.name, p.number, sp.id(at), h.op, b.process, c.trace(h.seq, at))
		return
	}
	b.issued++
}

// listen marks the blocks whose answer has reached p. Answers to give-backs are
// among those it wrote down; they match no block.
func (c *checker) listen(p *process) {
	type lease struct {
		seq int
		tok string
		at  int64
	}
	mine := map[lease]*block{}
	for seq, t := range c.tables {
		for _, b := range t.blocks {
			l := lease{seq, b.tok, b.at}
			// Of two the first: the second is that of an attempt that arrived
			// after the whole block had been given back, and was not awaited.
			if b.process == p.number && mine[l] == nil {
				mine[l] = b
			}
		}
	}
	for _, a := range p.answers {
		if b := mine[lease{a.seq, a.tok, a.at}]; b != nil && !b.heard {
			b.heard, b.recovered, b.line = true, a.recovered, a.line
		}
	}
}

// trace tells which writes a position was part of.
func (c *checker) trace(seq int, at int64) string {
	var out []string
	for _, b := range c.tables[seq].blocks {
		if b.from <= at && at < b.to {
			out = append(out, fmt.Sprintf("write %d leased %d..%d to process %d (token %s), %d given back",
				b.write, c.specs[seq].id(b.from), c.specs[seq].id(b.to-1), b.process, b.tok, b.returned))
		}
	}
	if len(out) == 0 {
		return "it was never leased"
	}
	return strings.Join(out, "; ")
}

// account finds a place for each ID that was leased to p and not handed out,
// and holds the library's own totals against it.
func (c *checker) account(p *process, seq int) {
	name := c.specs[seq].name
	var heardLeases, heard, recovered, returned, issued, rest int64
	for _, b := range c.tables[seq].blocks {
		if b.process != p.number {
			continue
		}
		n := b.to - b.from
		if b.recovered {
			recovered++
		}
		issued += b.issued
		returned += b.returned
		left := n - b.issued - b.returned
		if left < 0 {
			c.violate("sequence %s: process %d handed out %d and gave back %d of %d IDs (write %d)",
				name, p.number, b.issued, b.returned, n, b.write)
		}
		switch {
		case p.killed:
			c.totals.killed += left
		case b.heard:
			heardLeases++
			heard += n
			rest += left
		case b.issued+b.returned > 0:
			c.violate("sequence %s: process %d used a block whose answer it cannot have had (write %d)", name, p.number, b.write)
		default:
			c.totals.unheard += left
		}
	}
	if p.killed {
		return
	}
	c.recover(p, seq)
	st, ok := p.stats[seq]
	if !ok || !p.ended {
		c.violate("process %d ended without its totals of sequence %s", p.number, name)
		return
	}
	silently := returned - st.Returned
	gone := st.Abandoned.Total() - silently
	for _, x := range []struct {
		what            string
		library, ledger int64
	}{
		{"IDs handed out", st.Issued, issued},
		{"leases that it heard of", st.Leases, heardLeases},
		{"IDs in leases that it heard of", st.Leased, heard},
		{"leases recovered", st.Recovered, recovered},
		{"IDs unaccounted for", gone, rest},
		{"IDs in memory after Close", st.Remaining, 0},
	} {
		if x.library != x.ledger {
			c.violate("sequence %s: process %d: %s: the library says %d, the writes and the history say %d (its totals: %+v)",
				name, p.number, x.what, x.library, x.ledger, st)
		}
	}
	if silently < 0 || silently > st.Abandoned.Close+st.Abandoned.Refresh {
		c.violate("sequence %s: process %d: it says that it gave back %d IDs, the writes say %d", name, p.number, st.Returned, returned)
	}
	c.totals.abandoned = add(c.totals.abandoned, st.Abandoned)
	c.totals.silently += silently
}

// add returns the sum, of fields to come as well.
func add(a, b ddbseq.Abandoned) ddbseq.Abandoned {
	minus := ddbseq.Stats{}.Sub(ddbseq.Stats{Abandoned: b})
	return ddbseq.Stats{Abandoned: a}.Sub(minus).Abandoned
}

// sum checks that the gaps by cause are all the gaps there are.
func (c *checker) sum() {
	for _, t := range c.tables {
		for _, h := range t.holder {
			if h == nil {
				c.totals.gaps++
			}
		}
		for _, b := range t.blocks {
			if b.recovered {
				c.totals.recovered++
			}
		}
	}
	t := c.totals
	if causes := t.killed + t.unheard + t.abandoned.Total() - t.silently; causes != t.gaps {
		c.violate("%d IDs are missing, and %d of them accounted for: %+v", t.gaps, causes, t)
	}
}
