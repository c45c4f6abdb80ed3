package ddbseq_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const thisModule = "github.com/ddbseq/ddbseq"

// What a user's build may get from this module beside the standard library:
// these and what is nested in them. Not what is nested in ours: that is where
// the bridges to everything else are.
var allowedModules = []string{
	"github.com/aws/aws-sdk-go-v2",
	"github.com/aws/smithy-go",
	"golang.org/x/sync",
}

// What go.mod may require for itself (not by way of another module).
var allowedRequirements = []string{
	"github.com/aws/aws-sdk-go-v2",
	"github.com/aws/aws-sdk-go-v2/config",
	"github.com/aws/aws-sdk-go-v2/service/dynamodb",
	"github.com/aws/smithy-go",
	"golang.org/x/sync",
}

// Packages of the standard library that do something to a program by being
// linked into it: flags on its command line, pages on its default HTTP mux.
var forbiddenStd = []string{
	"expvar",
	"flag",
	"net/http/httptest",
	"net/http/pprof",
	"testing",
}

func TestImportGraphIsStdAWSSyncAndUs(t *testing.T) {
	out := goCommand(t, "list", "-deps", "-json=ImportPath,Standard,Module", ".")
	seen := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); ; seen++ {
		var p struct {
			ImportPath string
			Standard   bool
			Module     *struct{ Path string }
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.Standard:
			if slices.ContainsFunc(forbiddenStd, func(f string) bool { return within(p.ImportPath, f) }) {
				t.Errorf("a user's build would contain %s", p.ImportPath)
			}
		case p.Module == nil:
			t.Errorf("%s belongs to no module", p.ImportPath)
		case p.Module.Path == thisModule:
		case !slices.ContainsFunc(allowedModules, func(m string) bool { return within(p.Module.Path, m) }):
			t.Errorf("a user's build would contain %s of module %s", p.ImportPath, p.Module.Path)
		}
	}
	if seen == 0 {
		t.Fatal("go list named no package")
	}
}

func TestGoModRequiresOnlyWhatItMay(t *testing.T) {
	var mod struct {
		Module    struct{ Path string }
		Go        string
		Toolchain string
		Require   []struct {
			Path     string
			Indirect bool
		}
		Replace, Exclude, Tool []json.RawMessage
	}
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != thisModule {
		t.Errorf("module %s, want %s", mod.Module.Path, thisModule)
	}
	if mod.Go != "1.26.0" {
		t.Errorf("go %s, want 1.26.0: a higher line makes every user upgrade, a shorter one is a release candidate's", mod.Go)
	}
	if mod.Toolchain != "" {
		t.Errorf("toolchain %s: which one to use is up to the main module", mod.Toolchain)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(allowedRequirements, r.Path) {
			t.Errorf("go.mod requires %s: dependencies beyond the AWS SDK and x/sync go to a nested module", r.Path)
		}
	}
	// These three work for the main module only, so what we test would not be
	// what a user builds.
	if n := len(mod.Replace) + len(mod.Exclude) + len(mod.Tool); n != 0 {
		t.Errorf("go.mod has %d replace, exclude or tool directives, want none", n)
	}
}

// within reports whether path is root or lies below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// goCommand returns what the go command prints when run in this directory.
func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command: ", err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", args...)
	// A workspace of the user's would answer for its own modules.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out
}
