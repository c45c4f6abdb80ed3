package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// story is a run made by hand: sequence 0 ascends from 1, sequence 1 descends
// from -10 by 10.
type story struct {
	specs     []spec
	writes    []write
	processes []*process
}

func lastIs(id, n int64, tok string) state { return state{Last: &id, At: &id, N: n, Tok: tok} }

func newStory() *story {
	s := &story{specs: []spec{
		{name: "up", start: 1, increment: 1, size: 1000},
		{name: "down", start: -10, increment: -10},
	}}
	// 1 leases 1..10 and hears of it; 2 leases 11..20, which it learns of late;
	// 1 leases 21..30, hands out 21, and gives 22..30 back; 2 leases 22..26 and
	// never hears of it; 3 leases 27..31 and is killed.
	s.writes = []write{
		{process: 1, seq: 0, after: lastIs(10, 10, "a")},
		{process: 2, seq: 0, after: lastIs(20, 10, "b"), unanswered: true},
		{process: 1, seq: 0, after: lastIs(30, 10, "c")},
		{process: 1, seq: 0, after: lastIs(21, 0, "d")},
		{process: 2, seq: 0, after: lastIs(26, 5, "e")},
		{process: 3, seq: 0, after: lastIs(31, 5, "f")},
		{process: 2, seq: 1, after: lastIs(-30, 3, "g")},
	}
	one := &process{number: 1}
	one.history = history{
		handed: []handed{
			{op: 'n', goroutine: 1, floor: -1, ids: []int64{1, 2, 4}},
			{op: 't', goroutine: 2, floor: 1, ids: []int64{3, 5, 6, 7}},
			{op: 'f', goroutine: 1, floor: -1, ids: []int64{8, 9, 10}},
			{op: 'r', goroutine: 1, floor: -1, ids: []int64{21}},
		},
		answers: []answer{{tok: "a", at: 10}, {tok: "c", at: 30}, {tok: "d", at: 21}},
		stats: map[int]ddbseq.Stats{
			0: {Issued: 11, Leases: 2, Leased: 20, Returned: 9},
			1: {},
		},
		ended: true,
	}
	two := &process{number: 2}
	two.history = history{
		handed: []handed{
			{op: 'n', goroutine: 1, floor: -1, ids: []int64{11, 12, 13}},
			{op: 'n', goroutine: 1, seq: 1, floor: -1, ids: []int64{-10, -20}},
		},
		answers: []answer{{tok: "b", at: 20, recovered: true}, {seq: 1, tok: "g", at: -30}},
		stats: map[int]ddbseq.Stats{
			0: {Issued: 3, Leases: 1, Leased: 10, Recovered: 1, Abandoned: ddbseq.Abandoned{Close: 3, Refresh: 4}},
			1: {Issued: 2, Leases: 1, Leased: 3, Abandoned: ddbseq.Abandoned{Caller: 1}},
		},
		ended: true,
	}
	three := &process{number: 3, killed: true}
	three.handed = []handed{{op: 'n', goroutine: 1, floor: -1, ids: []int64{27, 28}}}
	s.processes = []*process{one, two, three}
	return s
}

func (s *story) check() *checker {
	return check(s.specs, s.writes, s.processes, []state{lastIs(31, 5, "f"), lastIs(-30, 3, "g")})
}

func TestCheckerFindsNothingWrongWithAGoodHistory(t *testing.T) {
	c := newStory().check()
	if len(c.violations) > 0 {
		t.Errorf("violations: %q", c.violations)
	}
	want := totals{
		ids: 18, leases: 6, giveBacks: 1, leased: 43, returned: 9, gaps: 16, recovered: 1,
		killed: 3, unheard: 5, abandoned: ddbseq.Abandoned{Close: 3, Refresh: 4, Caller: 1},
	}
	if c.totals != want {
		t.Errorf("totals %+v\nwant   %+v", c.totals, want)
	}
}

func TestCheckerAccountsForAGiveBackWithoutAnswer(t *testing.T) {
	s := newStory()
	st := s.processes[0].stats[0]
	st.Returned, st.Abandoned.Refresh = 0, 9
	s.processes[0].stats[0] = st
	if c := s.check(); len(c.violations) > 0 || c.totals.silently != 9 {
		t.Errorf("violations %q, totals %+v", c.violations, c.totals)
	}
}

func TestCheckerTakesALateAttemptBehindAGiveBackForUnheard(t *testing.T) {
	s := newStory()
	// All of b goes back, then a late attempt of b leases the same once more.
	s.writes = append(s.writes[:2],
		write{process: 2, seq: 0, after: lastIs(10, 0, "x")},
		write{process: 2, seq: 0, after: lastIs(20, 10, "b"), fault: "late"})
	s.processes = s.processes[:2]
	s.processes[0].handed = s.processes[0].handed[:3]
	s.processes[0].stats[0] = ddbseq.Stats{Issued: 10, Leases: 1, Leased: 10}
	s.processes[1].handed = nil
	s.processes[1].stats[0] = ddbseq.Stats{Leases: 1, Leased: 10, Recovered: 1, Returned: 10}
	s.processes[1].stats[1] = ddbseq.Stats{}
	c := check(s.specs, s.writes, s.processes, []state{lastIs(20, 10, "b"), {}})
	if len(c.violations) > 0 || c.totals.unheard != 10 || c.totals.returned != 10 {
		t.Errorf("violations %q, totals %+v", c.violations, c.totals)
	}
}

func TestCheckerFindsViolations(t *testing.T) {
	stats := func(p *process, change func(*ddbseq.Stats)) {
		st := p.stats[0]
		change(&st)
		p.stats[0] = st
	}
	for _, tt := range []struct {
		name   string
		breaks func(s *story)
		want   string
	}{
		{"a duplicate between processes", func(s *story) {
			s.processes[1].handed[0].ids = []int64{11, 12, 10}
		}, "DUPLICATE 10: process 1"},
		{"a duplicate in a process", func(s *story) {
			s.processes[0].handed[2].ids = []int64{7, 9, 10}
		}, "DUPLICATE 7: process 1"},
		{"a duplicate with a killed process", func(s *story) {
			s.processes[2].handed[0].ids = []int64{21}
		}, "DUPLICATE 21: process 1"},
		{"an ID beyond all blocks", func(s *story) {
			s.processes[1].handed[0].ids = []int64{11, 12, 32}
		}, "handed out 32 (call n), which nobody holds: it was never leased"},
		{"an ID before the first", func(s *story) {
			s.processes[1].handed[1].ids = []int64{0, -10}
		}, "handed out 0 (call n), which nobody holds"},
		{"an ID off the stride", func(s *story) {
			s.processes[1].handed[1].ids = []int64{-10, -15}
		}, "-15 is not on the stride"},
		{"an ID beyond the end", func(s *story) {
			s.processes[1].handed[0].ids = []int64{11, 12, 1001}
		}, "1001 is beyond the end"},
		{"an ID from another process's block", func(s *story) {
			s.processes[1].handed[0].ids = []int64{11, 12, 29}
		}, "process 2 handed out 29 (call n) from a block of process 3"},
		{"an ID that was given back and leased by another", func(s *story) {
			s.processes[0].handed[3].ids = []int64{21, 22}
		}, "process 1 handed out 22 (call r) from a block of process 2"},
		{"an ID that was given back", func(s *story) {
			s.writes = s.writes[:4]
			s.processes[0].handed[3].ids = []int64{21, 22}
		}, "handed out 22 (call r), which nobody holds"},
		{"a Next that goes back in its goroutine", func(s *story) {
			s.processes[0].handed[0].ids = []int64{1, 4, 2}
		}, "2 came after 4, the wrong way"},
		{"a Next that goes back between two records", func(s *story) {
			s.processes[1].handed = append(s.processes[1].handed, handed{op: 'n', goroutine: 1, seq: 1, floor: -1, ids: []int64{-30}})
			s.processes[1].handed[1].ids = []int64{-10}
			s.processes[1].handed = append(s.processes[1].handed, handed{op: 't', goroutine: 1, seq: 1, floor: -1, ids: []int64{-20}})
		}, "-20 came after -30, the wrong way"},
		{"a Next behind what another goroutine had", func(s *story) {
			s.processes[0].handed[1].floor = 3
		}, "process 1, goroutine 2, call t: 3 came after 4, the wrong way"},
		{"a Fill that does not rise", func(s *story) {
			s.processes[0].handed[2].ids = []int64{8, 10, 9}
		}, "9 came after 10, the wrong way"},
		{"an ID that vanished", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Abandoned.Close-- })
		}, "IDs unaccounted for: the library says 6, the writes and the history say 7"},
		{"an ID counted and not handed out", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Issued++ })
		}, "IDs handed out: the library says 4"},
		{"a lease that the library did not count", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Leases-- })
		}, "leases that it heard of: the library says 0"},
		{"a wrong size of a lease", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Leased++ })
		}, "IDs in leases that it heard of: the library says 11"},
		{"a recovery that was none", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Recovered++ })
		}, "leases recovered: the library says 2"},
		{"IDs kept after Close", func(s *story) {
			stats(s.processes[1], func(st *ddbseq.Stats) { st.Remaining = 4 })
		}, "IDs in memory after Close: the library says 4"},
		{"a give-back that never was", func(s *story) {
			stats(s.processes[0], func(st *ddbseq.Stats) { st.Returned++ })
		}, "it says that it gave back 10 IDs, the writes say 9"},
		{"a give-back of another's IDs", func(s *story) {
			s.writes[3].process = 2
		}, "write 3 of process 2 gave back 22, which process 1 had leased"},
		{"a block used without an answer", func(s *story) {
			s.processes[1].answers = s.processes[1].answers[1:]
		}, "used a block whose answer it cannot have had"},
		{"a lease whose size is not in the item", func(s *story) {
			s.writes[1].after.N = 9
		}, "leased 10 IDs and left"},
		{"a write of nobody", func(s *story) {
			s.writes[1].process = 9
		}, "process 9, which there never was"},
		{"a table that ends elsewhere", func(s *story) {
			s.writes = s.writes[:5]
			s.processes = s.processes[:2]
		}, "the table has lastID=31"},
		{"no totals", func(s *story) {
			s.processes[0].ended = false
		}, "process 1 ended without its totals"},
		{"a false alarm", func(s *story) {
			s.processes[0].problems = []string{"moved back"}
		}, "process 1: moved back"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			tt.breaks(s)
			c := s.check()
			if !strings.Contains(strings.Join(c.violations, "\n"), tt.want) {
				t.Errorf("violations %q\nwant one with %q", c.violations, tt.want)
			}
			if strings.Contains(tt.want, "DUPLICATE") != (c.totals.duplicates > 0) {
				t.Errorf("%d duplicates", c.totals.duplicates)
			}
		})
	}
}

func TestCheckerWantsLostRepliesRecovered(t *testing.T) {
	lost := func() *story {
		s := newStory()
		// 2 is the next to write behind a block of its own that it never heard of.
		s.writes = append(s.writes[:4],
			write{process: 2, seq: 0, after: lastIs(26, 5, "e"), fault: "drop RST"},
			write{process: 2, seq: 0, after: lastIs(31, 5, "f")},
			write{process: 2, seq: 1, after: lastIs(-30, 3, "g")})
		two := s.processes[1]
		two.answers = []answer{{tok: "b", at: 20, recovered: true, line: 3}, {tok: "f", at: 31, line: 9}, {seq: 1, tok: "g", at: -30}}
		st := two.stats[0]
		st.Leases, st.Leased, st.Abandoned.Close = 2, 15, 8
		two.stats[0] = st
		s.processes = s.processes[:2]
		return s
	}
	const want = "process 2 never recovered 5 IDs although it was the next to write"
	for _, tt := range []struct {
		name     string
		excuses  func(s *story)
		violated bool
	}{
		{"no excuse", func(*story) {}, true},
		{"a Refresh before", func(s *story) { s.processes[1].refreshes = []refresh{{seq: -1, from: 1, to: 2}} }, true},
		{"a Refresh of another sequence", func(s *story) { s.processes[1].refreshes = []refresh{{seq: 1, from: 4, to: 5}} }, true},
		{"a Refresh after", func(s *story) { s.processes[1].refreshes = []refresh{{seq: 0, from: 10}} }, true},
		{"a Refresh", func(s *story) { s.processes[1].refreshes = []refresh{{seq: 0, from: 4, to: 5}} }, false},
		{"a Refresh of all that ends in between", func(s *story) { s.processes[1].refreshes = []refresh{{seq: -1, from: 1, to: 4}} }, false},
		{"a Refresh that never ended", func(s *story) { s.processes[1].refreshes = []refresh{{seq: 0, from: 2}} }, false},
		{"late", func(s *story) { s.writes[4].fault = "late" }, false},
		{"answered before", func(s *story) { s.writes[4].after.Tok = "b" }, false},
		{"somebody in between", func(s *story) {
			s.writes = append(s.writes[:5], append([]write{{process: 1, seq: 0, after: lastIs(26, 0, "x")}}, s.writes[5:]...)...)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := lost()
			tt.excuses(s)
			c := s.check()
			if tt.violated != (len(c.violations) > 0) || tt.violated && !strings.Contains(c.violations[0], want) {
				t.Errorf("violations %q, want one: %t", c.violations, tt.violated)
			}
		})
	}
}

func TestCompareHoldsTheProxysLogAgainstTheWrites(t *testing.T) {
	s := newStory()
	good := func() (entries []faultproxy.Entry) {
		for _, w := range s.writes {
			e := faultproxy.Entry{Op: "UpdateItem", Key: s.specs[w.seq].key(), Applied: faultproxy.Yes, Settled: t0}
			e.UpstreamBody = fmt.Sprintf(`{"Attributes":{"lastID":{"N":"%d"},"at":{"N":"%d"},"n":{"N":"%d"},"tok":{"S":%q}}}`,
				*w.after.Last, *w.after.At, w.after.N, w.after.Tok)
			if w.unanswered {
				e.Applied, e.UpstreamBody = faultproxy.Unknown, ""
			}
			entries = append(entries, e)
		}
		return entries
	}
	if wrong, unknown := compare(good(), s.writes, s.specs); len(wrong) > 0 || unknown != 1 {
		t.Errorf("a good log: %q, %d unknown", wrong, unknown)
	}
	twice := append(good(), good()[0])
	missing := good()[1:]
	unread := good()
	unread[0].UpstreamBody = "{"
	pending := append(good(), faultproxy.Entry{Op: "UpdateItem", Applied: faultproxy.Unknown})
	for name, entries := range map[string][]faultproxy.Entry{"twice": twice, "missing": missing, "unread": unread, "pending": pending} {
		if wrong, _ := compare(entries, s.writes, s.specs); len(wrong) == 0 {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
}
