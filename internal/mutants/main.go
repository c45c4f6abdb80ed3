// Command mutants breaks this module on purpose, one break at a time, and runs
// the tests that must notice. It fails if one does not, or if a break no longer
// fits the code.
//
//	go run ./internal/mutants [-run REGEXP] [-list] [-v]
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A mutant is one deliberate break.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs exactly once in file
	tests    string // the pattern of the tests that fail
	pkg      string // and their package; "." if empty
	hangs    bool   // a test that hangs has noticed as well
}

// hangTimeout is for tests of mutants that hang; otherwise a test that takes too
// long says nothing but that the machine is busy.
const (
	testTimeout = 2 * time.Minute
	hangTimeout = 10 * time.Second
)

func main() {
	run := flag.String("run", "", "only mutants whose name matches this `REGEXP`")
	list := flag.Bool("list", false, "list the mutants and the tests that catch them")
	verbose := flag.Bool("v", false, "print what the tests say")
	flag.Parse()
	if err := work(os.Stdout, *run, *list, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func work(out io.Writer, run string, list, verbose bool) error {
	re, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return !re.MatchString(m.name) })
	if list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%-55s %s\n", m.name, m.tests)
		}
		return nil
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("finding the module: %w", err)
	}
	dir, err := os.MkdirTemp("", "ddbseq-mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l := lab{root: strings.TrimSpace(string(root)), dir: dir, verbose: verbose, out: out}
	if err := l.copyModule(); err != nil {
		return fmt.Errorf("copying the module: %w", err)
	}
	if err := l.healthy(chosen); err != nil {
		return err
	}
	var bad []string
	for _, m := range chosen {
		began := time.Now()
		result := l.try(m)
		if result != "killed" {
			bad = append(bad, m.name)
		}
		fmt.Fprintf(out, "%-55s %s in %.1fs\n", m.name, result, time.Since(began).Seconds())
	}
	fmt.Fprintf(out, "mutants=%d killed=%d\n", len(chosen), len(chosen)-len(bad))
	if len(bad) > 0 {
		return fmt.Errorf("not killed: %s", strings.Join(bad, "; "))
	}
	return nil
}

// A lab is a copy of the module that may be broken.
type lab struct {
	root, dir string
	verbose   bool
	out       io.Writer
}

func (l *lab) copyModule() error {
	return filepath.WalkDir(l.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(l.root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); rel != "." && (name == ".git" || name == "node_modules" || name == "bin") {
				return filepath.SkipDir
			}
			return os.MkdirAll(filepath.Join(l.dir, rel), 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(l.dir, rel), data, 0o644)
	})
}

// healthy runs all the tests on the unbroken copy: what fails there kills
// nothing.
func (l *lab) healthy(chosen []mutant) error {
	patterns := map[string][]string{}
	for _, m := range chosen {
		patterns[m.in()] = append(patterns[m.in()], m.tests)
	}
	for pkg, tests := range patterns {
		if err := l.build(pkg); err != nil {
			return fmt.Errorf("the unbroken module: %w", err)
		}
		if output, err := l.test(pkg, strings.Join(tests, "|"), 5*testTimeout); err != nil {
			return fmt.Errorf("the tests of the unbroken module fail: %w\n%s", err, output)
		}
	}
	return nil
}

func (m mutant) in() string {
	if m.pkg == "" {
		return "."
	}
	return m.pkg
}

// try makes one break and says what became of it.
func (l *lab) try(m mutant) string {
	file := filepath.Join(l.dir, m.file)
	source, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return fmt.Sprintf("DOES NOT FIT: %d matches in %s", n, m.file)
	}
	broken := strings.Replace(string(source), m.old, m.new, 1)
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		return err.Error()
	}
	defer func() { _ = os.WriteFile(file, source, 0o600) }()
	if err := l.build(m.in()); err != nil {
		return "DOES NOT BUILD: " + err.Error()
	}
	timeout := testTimeout
	if m.hangs {
		timeout = hangTimeout
	}
	output, err := l.test(m.in(), m.tests, timeout)
	if l.verbose {
		fmt.Fprintf(l.out, "%s\n", output)
	}
	switch timedOut := bytes.Contains(output, []byte("panic: test timed out")); {
	case err == nil:
		return "SURVIVED " + m.tests
	case timedOut && !m.hangs:
		return "TIMED OUT"
	}
	return "killed"
}

func (l *lab) binary() string { return filepath.Join(l.dir, "mutant.test") }

func (l *lab) build(pkg string) error {
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-o", l.binary(), pkg)
	cmd.Dir = l.dir
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

func (l *lab) test(pkg, pattern string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.binary(), "-test.run", pattern, "-test.failfast", "-test.count=1", "-test.timeout", timeout.String())
	cmd.Dir = filepath.Join(l.dir, pkg)
	cmd.Env = os.Environ()
	if os.Getenv("DDBSEQ_EMULATORS") == "" {
		cmd.Env = append(cmd.Env, "DDBSEQ_EMULATORS="+filepath.Join(l.root, "internal", "emulator", "npm"))
	}
	return cmd.CombinedOutput()
}
