package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write testdata anew")

// synthetic are the built-in traces: the formula of each rate, per second.
var synthetic = []struct {
	name             string
	bucket, duration float64
	rate             func(t float64) float64
}{
	{"steady", 10, 3600, func(float64) float64 { return 2 }},
	{"step_x20", 10, 3600, func(t float64) float64 { return []float64{0.5, 10}[int(t/600)%2] }},
	{"on_off", 10, 3600, func(t float64) float64 { return []float64{0, 2, 2}[int(t/60)%3] }},
	{"diurnal", 300, 86400, func(t float64) float64 { return 1 - 0.9*math.Cos(2*math.Pi*t/86400) }},
}

// testdata must be what the formulas say; -update makes it so.
func TestTestdataFollowsItsFormulas(t *testing.T) {
	files := map[string][]byte{}
	var manifest []map[string]any
	for _, s := range synthetic {
		var b bytes.Buffer
		fmt.Fprintln(&b, "t_seconds,count")
		for at := 0.0; at < s.duration; at += s.bucket {
			if n := math.Round(s.rate(at) * s.bucket); n > 0 || at == 0 || at+s.bucket >= s.duration {
				fmt.Fprintf(&b, "%g,%g\n", at, n)
			}
		}
		files[s.name+".csv"] = b.Bytes()
		manifest = append(manifest, map[string]any{"name": s.name, "half": "synthetic", "file": s.name + ".csv",
			"bucket_s": s.bucket, "duration_s": s.duration})
	}
	m, err := json.MarshalIndent(manifest, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	files["manifest.json"] = append(m, '\n')
	for name, want := range files {
		name = filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not its formula (%v); run go test -update", name, err)
		}
	}
}
