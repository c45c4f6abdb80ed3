package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestHistoryIsReadAsItWasWritten(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "history"), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rec := recorder{file}
	rec.ids('n', 2, 1, 17, []int64{-5, 7})
	rec.ids('t', 2, 1, 17, nil)
	rec.line("r %d %d -1 %d %d %d", 3, 0, 10, -2, 3)
	rec.line("h %d %s %d %t", 4, "TOKEN", -9, true)
	rec.line("u -1 true")
	rec.line("u 2 true")
	rec.line("u -1 false")
	rec.line("s 1 %s", `{"Issued":"3","Abandoned":{"Close":"4"}}`)
	rec.line("x something %q", "odd\nhere")
	rec.line("e")
	if _, err := file.WriteString("n 1 0 3 123"); err != nil { // the rest was cut off by a kill
		t.Fatal(err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	got, err := readHistory(file)
	want := history{
		handed: []handed{
			{op: 'n', goroutine: 2, seq: 1, floor: 17, ids: []int64{-5, 7}},
			{op: 'r', goroutine: 3, seq: 0, floor: -1, ids: []int64{10, 8, 6}},
		},
		answers:   []answer{{seq: 4, tok: "TOKEN", at: -9, recovered: true, line: 3}},
		refreshes: []refresh{{seq: -1, from: 4, to: 6}, {seq: 2, from: 5}},
		stats:     map[int]ddbseq.Stats{1: {Issued: 3, Abandoned: ddbseq.Abandoned{Close: 4}}},
		problems:  []string{`something "odd\nhere"`},
		ended:     true,
		lines:     9,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, want)
	}
}

func TestHistoryRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, line := range []string{"q 1", "n 1 0", "n 1 0 -1 x", "r 1 0 -1 5", "h 1 tok x true", "s 1 {", "s x {}"} {
		if _, err := readHistory(strings.NewReader(line + "\n")); err == nil {
			t.Errorf("%q: no error", line)
		}
	}
}

func TestPositionsAndIDsAreInverse(t *testing.T) {
	for _, s := range specs(10 * time.Second) {
		for _, p := range []int64{0, 1, 2, 300} {
			if got, err := s.position(s.id(p)); err != nil || got != p {
				t.Errorf("sequence %s: position %d is ID %d is position %d, %v", s.name, p, s.id(p), got, err)
			}
		}
		if s.size > 0 {
			if _, err := s.position(s.id(s.size)); err == nil {
				t.Errorf("sequence %s has no end", s.name)
			}
		}
		if id := s.id(5); id == s.start {
			t.Errorf("sequence %s stands still", s.name)
		}
		last, from := s.id(4), s.id(3)
		for want, st := range map[int64]state{0: {}, 3: {From: &from}, 5: {Last: &last, From: &from}} {
			if got, err := s.reached(st); err != nil || got != want {
				t.Errorf("sequence %s: %v has %d leased, %v; want %d", s.name, st, got, err, want)
			}
		}
	}
}
