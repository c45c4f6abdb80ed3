package main

import (
	"fmt"
	"time"

	"github.com/ddbseq/ddbseq"
)

const (
	table     = "chaos"
	keyPrefix = "chaos."
)

// A spec is one of the sequences. The checks count in positions: how many IDs
// lie before one, whatever the direction and the increment. None of the
// sequences has CYCLE, so that a position is one ID for ever.
type spec struct {
	name             string
	start, increment int64
	size             int64 // how many IDs there are; 0 = never mind
	quiet            bool  // asked for seldom, so that often nobody leases behind
	clauses          []ddbseq.Clause
}

// specs returns the sequences of a run. Those with an end reach it in mid-run.
func specs(length time.Duration) []spec {
	seconds := int64(length/time.Second) + 1
	few, some := 500*seconds, 60*seconds
	return []spec{
		{name: "default", start: 1, increment: 1},
		{
			name: "descending", start: -1, increment: -1, quiet: true,
			clauses: []ddbseq.Clause{ddbseq.IncrementBy(-1)},
		},
		{
			name: "stride", start: 1000, increment: 7,
			clauses: []ddbseq.Clause{ddbseq.StartWith(1000), ddbseq.IncrementBy(7)},
		},
		{
			// The end is not on the stride.
			name: "nocycle", start: 500, increment: -3, size: some, quiet: true,
			clauses: []ddbseq.Clause{
				ddbseq.StartWith(500), ddbseq.IncrementBy(-3), ddbseq.MaxValue(500),
				ddbseq.MinValue(500 - 3*(some-1) - 2), ddbseq.NoCycle(),
			},
		},
		{
			name: "smallmax", start: 1, increment: 1, size: few,
			clauses: []ddbseq.Clause{ddbseq.MaxValue(few)},
		},
	}
}

func (s spec) key() string { return keyPrefix + s.name }

// position returns how many IDs come before id.
func (s spec) position(id int64) (int64, error) {
	d := id - s.start
	if d%s.increment != 0 {
		return 0, fmt.Errorf("%d is not on the stride", id)
	}
	p := d / s.increment
	if s.size > 0 && p >= s.size {
		return 0, fmt.Errorf("%d is beyond the end", id)
	}
	return p, nil
}

// id is the inverse of position.
func (s spec) id(position int64) int64 { return s.start + position*s.increment }

// reached returns how many IDs are leased when the item is st.
func (s spec) reached(st state) (int64, error) {
	switch {
	case st.Last != nil:
		p, err := s.position(*st.Last)
		return p + 1, err
	case st.From != nil:
		return s.position(*st.From)
	}
	return 0, nil
}
