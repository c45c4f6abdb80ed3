package ddbseq_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeSnippetsAreRunElsewhere holds every snippet of the README against
// what CI builds and runs: Go against the examples, commands against .ci/run
// and the Makefile.
func TestReadmeSnippetsAreRunElsewhere(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var code, commands strings.Builder
	read := func(into *strings.Builder, patterns ...string) {
		for _, pattern := range patterns {
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %d files, %v", pattern, len(files), err)
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				into.Write(b)
			}
		}
	}
	read(&code, "examples/*/main.go", "example_test.go")
	read(&commands, ".ci/run", "Makefile")
	// A line that an Example prints in between does not make the snippet another.
	printed := regexp.MustCompile(`(?m)^\s*fmt\.Println\(err\)\n`)
	examples := printed.ReplaceAllString(code.String(), "")
	flat := func(s string) string { return strings.Join(strings.Fields(s), " ") }

	blocks := regexp.MustCompile("(?s)```(go|sh)\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no snippets")
	}
	for _, b := range blocks {
		in := examples
		if b[1] == "sh" {
			in = commands.String()
		}
		if !strings.Contains(flat(in), flat(b[2])) {
			t.Errorf("this %s snippet of the README is not run by CI:\n%s", b[1], b[2])
		}
	}
}

// TestTestsThatDocumentsNameExist keeps the guarantees tied to what proves them.
func TestTestsThatDocumentsNameExist(t *testing.T) {
	var tests strings.Builder
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(b)
	}
	named := regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w+`)
	for _, doc := range []string{"README.md", "doc.go", "CONTRIBUTING.md"} {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(b), -1) {
			if !strings.Contains(tests.String(), "func "+name+"(") {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
}
