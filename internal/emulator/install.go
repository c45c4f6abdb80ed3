package emulator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
)

// ErrNotInstalled is returned when a server program is not on this machine.
var ErrNotInstalled = errors.New("emulator: not installed: run `make test` (or `npm ci --prefix internal/emulator/npm`)")

// DirEnv names the environment variable that says which directory holds
// node_modules, in place of internal/emulator/npm of the repository.
const DirEnv = "DDBSEQ_EMULATORS"

// Default returns [Dynoxide] where it is installed and [Dynalite] elsewhere.
// It never looks further: Start says whether Dynalite is there.
func Default() Kind {
	if _, err := locate(dynoxidePath); err == nil {
		return Dynoxide
	}
	return Dynalite
}

var (
	dynoxidePath = filepath.Join("node_modules", "@dynoxide", "linux-x64", "dynoxide")
	dynalitePath = filepath.Join("node_modules", "dynalite", "cli.js")
)

// command returns the command line that serves port.
func (c *config) command(kind Kind, port int) (name string, args []string, err error) {
	var dbFlag string
	switch kind {
	case Dynoxide:
		if name, err = locate(dynoxidePath); err != nil {
			return "", nil, err
		}
		dbFlag = "--db-path"
	case Dynalite:
		script, err := locate(dynalitePath)
		if err != nil {
			return "", nil, err
		}
		if name, err = exec.LookPath("node"); err != nil {
			return "", nil, fmt.Errorf("%w: dynalite needs Node.js: %w", ErrNotInstalled, err)
		}
		dbFlag = "--path"
		// A table stays CREATING for a moment, as on AWS, but not for the
		// default of half a second.
		args = append(args, script, "--createTableMs", "20", "--deleteTableMs", "20", "--updateTableMs", "20")
	default:
		return "", nil, fmt.Errorf("emulator: unknown kind %q", kind)
	}
	args = append(args, "--host", host, "--port", strconv.Itoa(port))
	if c.dbPath != "" {
		args = append(args, dbFlag, c.dbPath)
	}
	return name, append(args, c.args...), nil
}

// locate finds a file below the directory that holds node_modules.
func locate(rel string) (string, error) {
	dirs := installDirs()
	for _, dir := range dirs {
		file := filepath.Join(dir, rel)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("%w: no %s in any of %q", ErrNotInstalled, rel, dirs)
}

// installDirs lists where node_modules may be: where the environment says and
// nowhere else; or beside this source file, which serves nested modules and
// `go run`; or, when built with -trimpath, below a parent of the working
// directory.
func installDirs() []string {
	if dir := os.Getenv(DirEnv); dir != "" {
		return []string{dir}
	}
	var dirs []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dirs = append(dirs, filepath.Join(filepath.Dir(file), "npm"))
	}
	wd, err := os.Getwd()
	if err != nil {
		return dirs
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		npm := filepath.Join(dir, "internal", "emulator", "npm")
		if _, err := os.Stat(filepath.Join(npm, "package.json")); err == nil {
			if !slices.Contains(dirs, npm) {
				dirs = append(dirs, npm)
			}
			return dirs
		}
		if dir == filepath.Dir(dir) {
			return dirs
		}
	}
}
