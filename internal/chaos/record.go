package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/ddbseq/ddbseq"
)

// A process keeps its history in one file, a line for each event, written with
// one append before the event counts: what a kill can cut off was never used.
//
//	n GOROUTINE SEQUENCE FLOOR ID ID ...   handed out by Next, t: by TryNext
//	f GOROUTINE SEQUENCE -1 ID ID ...      by Fill
//	r GOROUTINE SEQUENCE -1 FIRST STEP N   by Reserve
//	h SEQUENCE TOKEN AT RECOVERED          an answer that says what was leased
//	u SEQUENCE BEGINS                      a Refresh, -1 for one of all
//	s SEQUENCE JSON                        the library's own totals, after Close
//	x TEXT                                 something that must not happen
//	e                                      the end, by Close
//
// FLOOR is the furthest position that any Next of the process had returned when
// the first of these IDs was asked for, -1 for none: the IDs must lie beyond it.

// recorder writes a history. Its method may be called from several goroutines.
type recorder struct{ file *os.File }

func (r recorder) line(format string, args ...any) {
	r.write(fmt.Appendf(nil, format, args...))
}

// write appends a line at once. A process that cannot write must not go on.
func (r recorder) write(line []byte) {
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(r.file, "x", err)
		os.Exit(exitRecord)
	}
}

func (r recorder) ids(op byte, goroutine, seq int, floor int64, ids []int64) {
	if len(ids) == 0 {
		return
	}
	line := fmt.Appendf(nil, "%c %d %d %d", op, goroutine, seq, floor)
	for _, id := range ids {
		line = strconv.AppendInt(append(line, ' '), id, 10)
	}
	r.write(line)
}

// handed is a run of IDs that one call, or several in a row, handed out.
type handed struct {
	op        byte
	goroutine int
	seq       int
	floor     int64
	ids       []int64
}

// answer is a reply that was read to its end and says what a lease leased.
type answer struct {
	seq       int
	tok       string
	at        int64
	recovered bool // by a refused attempt
	line      int
}

// refresh is a Refresh, from its call to its return.
type refresh struct {
	seq      int // -1: all
	from, to int // lines; to is 0 if it was still going on at the end
}

// history is what a process wrote down.
type history struct {
	handed    []handed
	answers   []answer
	refreshes []refresh
	stats     map[int]ddbseq.Stats
	problems  []string
	ended     bool

	lines int
}

// readHistory reads a history; a last line that was cut off is none.
func readHistory(r io.Reader) (history, error) {
	h := history{stats: map[int]ddbseq.Stats{}}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		h.lines++
		if err == nil {
			err = h.parse(string(bytes.TrimSuffix(line, []byte{'\n'})))
		}
		if err != nil {
			return h, fmt.Errorf("line %d %.100q: %w", h.lines, line, err)
		}
	}
}

func (h *history) parse(line string) error {
	op, rest, _ := strings.Cut(line, " ")
	switch op {
	case "n", "t", "f", "r":
		return h.parseHanded(op[0], strings.Fields(rest))
	case "h":
		a := answer{line: h.lines}
		_, err := fmt.Sscanf(rest, "%d %s %d %t", &a.seq, &a.tok, &a.at, &a.recovered)
		h.answers = append(h.answers, a)
		return err
	case "u":
		var seq int
		var begins bool
		_, err := fmt.Sscanf(rest, "%d %t", &seq, &begins)
		h.refreshed(seq, begins)
		return err
	case "s":
		var st ddbseq.Stats
		number, text, _ := strings.Cut(rest, " ")
		seq, err := strconv.Atoi(number)
		h.stats[seq] = st
		if err == nil {
			err = json.Unmarshal([]byte(text), &st)
			h.stats[seq] = st
		}
		return err
	case "x":
		h.problems = append(h.problems, rest)
		return nil
	case "e":
		h.ended = true
		return nil
	}
	return errors.New("unknown event")
}

// refreshed enters the begin or the end of a Refresh. Of several of one sequence
// at once it does not matter which of them ends.
func (h *history) refreshed(seq int, begins bool) {
	if begins {
		h.refreshes = append(h.refreshes, refresh{seq: seq, from: h.lines})
		return
	}
	for i := range h.refreshes {
		if r := &h.refreshes[i]; r.seq == seq && r.to == 0 {
			r.to = h.lines
			return
		}
	}
}

func (h *history) parseHanded(op byte, fields []string) error {
	if len(fields) < 4 {
		return errors.New("too short")
	}
	numbers := make([]int64, len(fields))
	for i, f := range fields {
		var err error
		if numbers[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return err
		}
	}
	out := handed{op: op, goroutine: int(numbers[0]), seq: int(numbers[1]), floor: numbers[2], ids: numbers[3:]}
	if op == 'r' {
		if len(out.ids) != 3 {
			return errors.New("a block is FIRST STEP N")
		}
		blk := ddbseq.Block{First: out.ids[0], Step: out.ids[1], N: out.ids[2]}
		out.ids = nil
		for id := range blk.All() {
			out.ids = append(out.ids, id)
		}
	}
	h.handed = append(h.handed, out)
	return nil
}
