package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Running them takes minutes; that they still fit takes none.
func TestEveryMutantFitsTheCodeAndNamesItsTests(t *testing.T) {
	root := filepath.Join("..", "..")
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("there are two %q", m.name)
		}
		names[m.name] = true
		source, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), m.old); n != 1 {
			t.Errorf("%q: %d matches in %s", m.name, n, m.file)
		}
		if m.old == m.new {
			t.Errorf("%q changes nothing", m.name)
		}
		for pattern := range strings.SplitSeq(m.tests, "|") {
			if !hasTest(t, filepath.Join(root, m.pkg), pattern) {
				t.Errorf("%q: no test matches %s", m.name, pattern)
			}
		}
	}
}

var declared = regexp.MustCompile(`(?m)^func ((Test|Fuzz)\w+)\(`)

func hasTest(t *testing.T, dir, pattern string) bool {
	t.Helper()
	re := regexp.MustCompile(pattern)
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(source), -1) {
			if re.MatchString(m[1]) {
				return true
			}
		}
	}
	return false
}
