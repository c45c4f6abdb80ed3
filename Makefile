# Every check a change has to pass, for people and for CI (.ci/run calls these
# targets). Needs Go and npm, and a C compiler for the race detector; the
# emulators and golangci-lint are installed on first use.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

NPM_DIR   := internal/emulator/npm
EMULATORS := $(NPM_DIR)/node_modules/.package-lock.json
LINTER    := bin/golangci-lint

# Extra arguments for go test, as in: make test TESTFLAGS='-run Close -v'
TESTFLAGS ?=
# How long, or how often (1x), make bench runs each benchmark.
BENCHTIME ?= 1s
# Extra arguments for the comparison, as in: make bench BENCHFLAGS=-quick
BENCHFLAGS ?=

# The root module and every nested one (an npm package may bring a go.mod of its
# own, and so may test data).
MODULES := $(shell find . -name go.mod -not -path '*/node_modules/*' -not -path '*/testdata/*' -exec dirname {} \; | sort)

# $(call each,COMMANDS) runs COMMANDS in the directory of each module that has
# packages. (tools has none, and go vet calls that an error.) The list is taken
# into a variable first so that a broken module stops make instead of being
# taken for an empty one.
each = @set -e; for m in $(MODULES); do (set -e; cd "$$m"; pkgs=$$(go list ./... 2>&1) || { echo "$$pkgs" >&2; exit 1; }; \
	case "$$pkgs" in *'matched no packages'*) exit 0;; esac; echo "--> $$m: $(strip $(1))"; $(1)); done

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: $(EMULATORS) ## Run all tests of all modules under the race detector, emulators included.
	$(call each,DDBSEQ_REQUIRE_EMULATORS=1 go test -race -shuffle=on $(TESTFLAGS) ./...)

.PHONY: lint
lint: $(LINTER) ## Run gofmt, go vet (also for 32 bits), go fix and golangci-lint.
	@echo "--> gofmt"
	@bad=$$(find . -name '*.go' -not -path '*/node_modules/*' -exec gofmt -l {} +) || exit 1; \
	if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	$(call each,go vet ./...)
	$(call each,GOARCH=386 go vet ./...)
	$(call each,go fix -diff ./...)
	$(call each,$(CURDIR)/$(LINTER) run --config $(CURDIR)/.golangci.yml ./...)

.PHONY: bench
bench: ## Run the benchmarks, then the comparison, whose last line says it all.
	$(call each,go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...)
	go -C bench run . $(BENCHFLAGS)

.PHONY: chaos
chaos: $(EMULATORS) ## Kill processes and the server for 20 s, and look for an ID handed out twice.
	go run ./internal/chaos -procs 8 -for 20s -kill -server-restart

.PHONY: figures
figures: ## Draw the figures of the README anew.
	go run ./internal/replay -svg docs/runway.svg
	go -C bench run . -svg ../docs/speed.svg

.PHONY: mutants
mutants: $(EMULATORS) ## Break the code on purpose, one break at a time, and see a test fail for each.
	DDBSEQ_REQUIRE_EMULATORS=1 go run ./internal/mutants

.PHONY: examples
examples: ## Run the README's first command and check what it prints.
	@echo "--> go run ./examples/quickstart"
	@set -e; out=$$(go run ./examples/quickstart); printf '%s\n' "$$out"; \
	ids=$$(printf '%s\n' "$$out" | grep -c -x -E -e '-?[0-9]+'); lines=$$(printf '%s\n' "$$out" | wc -l); \
	if [ "$$ids" -ne 10 ] || [ "$$lines" -ne 10 ]; then echo "quickstart: want 10 lines, each an ID; got $$ids IDs on $$lines lines" >&2; exit 1; fi; \
	if ! printf '%s\n' "$$out" | sort -n -u -c; then echo "quickstart: the IDs are not distinct and increasing" >&2; exit 1; fi

.PHONY: clean
clean: ## Remove what make has installed into this directory.
	rm -rf bin $(NPM_DIR)/node_modules

# npm writes this file last, so it is older than the manifest or the lock file
# exactly when what is installed is not what they ask for.
$(EMULATORS): $(NPM_DIR)/package.json $(NPM_DIR)/package-lock.json
	npm ci --prefix $(NPM_DIR) --no-audit --no-fund
	@touch $@

# Built once and kept: go tool would relink it for each of the modules.
$(LINTER): tools/go.mod tools/go.sum
	@echo "--> building golangci-lint (minutes the first time, then from the build cache)"
	GOOS= GOARCH= go build -C tools -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
