package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// What is compared with must at least work: nothing hands out an ID twice, also
// not where a block ends.
func TestTranscriptionsMakeEachIDOnce(t *testing.T) {
	prefetch := newPrefetcher()
	defer prefetch.close()
	for name, next := range map[string]func() (int64, error){
		"mutex":   noError(new(mutexBlock).next),
		"channel": func() (int64, error) { return prefetch.next(context.Background()) },
		"Leaf":    newLeaf().next,
		"Coupang": noError(newCoupang().next),
		"packed":  noError(newPacked().next),
	} {
		t.Run(name, func(t *testing.T) {
			const workers, calls = 4, lease/4 + 50_000
			ids := make([][]int64, workers)
			errs := make([]error, workers)
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					mine := make([]int64, 0, calls)
					for range calls {
						id, err := next()
						if err != nil {
							errs[w] = err
							return
						}
						mine = append(mine, id)
					}
					ids[w] = mine
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			seen := map[int64][]bool{} // by million
			for _, mine := range ids {
				for _, id := range mine {
					if seen[id/lease] == nil {
						seen[id/lease] = make([]bool, lease)
					}
					if seen[id/lease][id%lease] {
						t.Fatalf("%d was handed out twice", id)
					}
					seen[id/lease][id%lease] = true
				}
			}
		})
	}
}

func noError(f func() int64) func() (int64, error) {
	return func() (int64, error) { return f(), nil }
}

func TestTheTableHasAVerdictAndADrawing(t *testing.T) {
	if testing.Short() {
		t.Skip("runs everything")
	}
	rep, err := compare(io.Discard, 1, 100*time.Microsecond, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	rep.print(&table)
	for _, c := range contenders() {
		if !strings.Contains(table.String(), c.name) {
			t.Errorf("%q is neither in the table nor skipped", c.name)
		}
	}
	want := regexp.MustCompile(`^next=[\d.]+ next_2cores=[\d.]+ next_64=[\d.]+ by_name=[\d.]+ best_peer=\S+:[\d.]+$`)
	if got := rep.verdict(); !want.MatchString(got) {
		t.Errorf("the last line is %q", got)
	}
	dec := xml.NewDecoder(strings.NewReader(rep.svg()))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal("the drawing: ", err)
		}
	}
}

func TestHistogramQuantilesAreWithinA32nd(t *testing.T) {
	h := new(histogram)
	const n = 100_000
	for i := range n {
		h.add(time.Duration(i))
	}
	for _, q := range []float64{0, 0.0001, 0.5, 0.99, 0.9999, 1} {
		exact := time.Duration(q * n)
		if got := h.quantile(q); got < min(exact, n-1) || got > exact+exact/32+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, exact)
		}
	}
	if h.add(time.Hour); h.quantile(1) != time.Hour {
		t.Errorf("the longest is %v, want an hour", h.quantile(1))
	}
}
