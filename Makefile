# Everything is set up under this folder: .venv for Python, .cache for the agents.
PYTHON ?= python3
BIN := .venv/bin
export CORRAL_HOME ?= $(CURDIR)/.cache/corral
# Programs of tests and benchmarks are no agents, or the tested versions: they need no probe.
export CORRAL_PROBE ?= never
# The tests start hundreds of Python processes: without bytecode files each would compile all its imports.
unexport PYTHONDONTWRITEBYTECODE
# The event loop of the tests: asyncio or uvloop.
LOOP ?= asyncio
# The real agents that the tests use; `make test-all` adds those that are less common.
AGENTS ?=
AGENTS_HERE = gemini opencode codex-cli codex-acp claude $(if $(filter all,$(AGENTS)),copilot claude-acp qwen pi cline goose antigravity)
# Agents of which corral knows no build for this machine.
NO_BUILD_HERE := $(if $(filter x86_64,$(shell uname -m)),,cline goose)

.PHONY: help demo test test-all test-deep-part test-fast test-lowest check check-style check-mypy check-pyright bench fuzz chaos mutants table programs pictures docs dist lock format clean

help:
	@echo "make demo       run the real Gemini CLI against a scripted model: no key, no cost"
	@echo "make test       run the tests, with the real agents: about 8 minutes on 2 cores"
	@echo "make test-all   run all tests, also the deep ones and those of less common agents"
	@echo "make test-fast  run those without agents, Postgres and complete programs: about 2 minutes"
	@echo "make test-lowest  test the lowest versions of the dependencies"
	@echo "make check      run formatter, linter, both type checkers, and build the site"
	@echo "make bench      measure speed against other programs, as ratios"
	@echo "make fuzz       test the shell rules with 1,000,000 generated commands in real shells"
	@echo "make chaos      run 1,000 faulted runs and check their ends (COUNT=, SEED=)"
	@echo "make mutants    mutate the source 100 times, and report what no test notices (COUNT=, SEED=)"
	@echo "make table      run the conformance and attack kits and update the tables in docs/"
	@echo "make programs   try other programs that speak ACP, and update their table in docs/agents.md"
	@echo "make pictures   make the pictures of the docs again: the demo and the page (needs Chromium)"
	@echo "make docs       build the documentation site, and check its links"
	@echo "make dist       build the files of a release, and try them"
	@echo "make lock       compile the lock files again"

# Needs only corral's own dependencies. Uses the pinned CLI, even if another one is on PATH.
RUNTIME := .cache/runtime/bin/python
demo: .cache/runtime/ready
	@gemini="$$(PYTHONPATH=src $(RUNTIME) -m corral agents install --quiet gemini)" && \
		PYTHONPATH=src $(RUNTIME) -m corral demo --program "$$gemini"

test: .venv/ready agents
	$(BIN)/python tools/run_suite.py --loop $(LOOP) -m "not deep" $(ARGS)

test-all: AGENTS = all
test-all: .venv/ready agents
	$(BIN)/python tools/run_suite.py --loop $(LOOP) $(ARGS)

# One of ten parts of the deep tests, another one each time (PART=3: this one).
test-deep-part: .venv/ready agents
	$(BIN)/python tools/run_suite.py --deep-part $(PART) --loop $(LOOP) $(ARGS)

# Selected by marks that tests/support/fast_selection.py sets. Needs only .venv.
test-fast: .venv/ready
	$(BIN)/python tools/run_suite.py \
		-m "not deep and not real_agent and not postgres and not worker_process and not whole_program" \
		--loop $(LOOP) $(ARGS)

# The lowest versions that pyproject.toml permits. The tests are those of the code that uses each.
LOWEST := .cache/lowest/bin/python
LOWEST_TOOLS := aiohttp hypothesis playwright pydot pyte pytest pytest-timeout pytest-xdist trio uvloop
LOWEST_TESTS := tests/cli/test_command_types.py tests/cli/test_run_command.py tests/engine/dbos \
	tests/engine/workspace tests/metering/proxy tests/models/gemini/test_vertex.py tests/protocol \
	tests/sessions/tools/test_mcp_server.py tests/system/http tests/telemetry/test_sender.py \
	tests/test_events.py tests/view/test_safe_text.py tests/view/test_view_server.py
test-lowest: .venv/ready
	$(BIN)/uv venv -q --clear --python $(PYTHON) .cache/lowest
	$(BIN)/uv pip compile -q pyproject.toml --extra all --resolution lowest-direct \
		--python $(LOWEST) --no-header -o .cache/lowest.txt
	$(BIN)/uv pip install -q --python $(LOWEST) -r .cache/lowest.txt $(LOWEST_TOOLS)
	$(BIN)/uv pip install -q --python $(LOWEST) --no-deps -e .
	$(LOWEST) -m pytest -q -n 2 -m "not deep and not browser and not real_agent and not postgres" \
		$(LOWEST_TESTS)

check: check-style check-mypy check-pyright docs

check-style: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Also of the samples of the documentation.
check-mypy: .venv/ready
	PYTHONPATH=tests $(BIN)/python -m support.samples .cache/samples
	$(BIN)/mypy src tests benchmarks tools .cache/samples

check-pyright: .venv/ready tools/pyright/node_modules/.ready
	node tools/pyright/node_modules/pyright/index.js

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready agents
	$(BIN)/python benchmarks/run.py $(ARGS)

COUNT ?= 1000000
fuzz: .venv/ready
	$(BIN)/python tools/shell_fuzz.py $(COUNT) $(SEED)

chaos: COUNT = 1000
chaos: .venv/ready agents
	PYTHONPATH=tests:tools $(BIN)/python -m chaos --count $(COUNT) --seed "$(SEED)" $(ARGS)

# How many are killed by `make test`, and how many by all tests. ARGS=--map makes the map again;
# ARGS="--sources src/corral/_core --tests tests/core" is a part.
mutants: COUNT = 100
mutants: .venv/ready agents
	$(BIN)/python tools/mutants.py --count $(COUNT) $(if $(SEED),--seed $(SEED)) --marks "not deep" "" $(ARGS)

# Wire formats of the built-in agent, besides its default one.
WIRES := anthropic:claude-sonnet-5 openai:gpt-5.5 chat:any-model
table: AGENTS = all
table: .venv/ready agents
	$(BIN)/corral agents check --all $(WIRES) --markdown > .cache/table.md
	sed -i -e '/^<!-- table/,/^<!-- end/{/^<!-- /!d}' -e '/^<!-- table/r .cache/table.md' docs/agents.md
	$(BIN)/corral agents check --attack --all --markdown --concurrency 4 > .cache/attack.md
	sed -i -e '/^<!-- attack/,/^<!-- end/{/^<!-- /!d}' -e '/^<!-- attack/r .cache/attack.md' docs/testing.md
	$(BIN)/corral agents check --attack --sandbox --all --approve offline --approve offline-reads --markdown --concurrency 4 > .cache/sandbox.md
	sed -i -e '/^<!-- sandbox/,/^<!-- end/{/^<!-- /!d}' -e '/^<!-- sandbox/r .cache/sandbox.md' docs/testing.md

programs: .venv/ready tools/node/node_modules/.ready
	PYTHONPATH=tests $(BIN)/python tools/acp_programs.py $(ARGS)

# Of `corral demo`, and of generated runs with the scripted agent: no key. FOLDER= gets every page.
pictures: .venv/ready
	$(BIN)/corral agents install --quiet gemini
	PYTHONPATH=tests:tools $(BIN)/python -m pictures $(FOLDER)

# The site is in .cache/site/site. `corral view` serves it below /docs.
DOCS := .cache/docs/bin/python
docs: .cache/docs/ready
	PYTHONPATH=src $(DOCS) tools/site/build.py .cache/site

.cache/docs/ready: requirements/docs.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear .cache/docs
	$(DOCS) $(PIP_INSTALL) --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

# Two builds that are compared, twine, a bill of materials, and a try of the wheel on each Python here.
dist: docs .cache/release/ready
	$(BIN)/python tools/release.py

.cache/release/ready: requirements/release.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear .cache/release
	.cache/release/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/release.txt
	@touch $@

# Without Node the real agents cannot be installed; their tests are skipped with a reason.
.PHONY: agents
agents: .venv/ready
	@if command -v npm >/dev/null; then \
		for agent in $(filter-out $(NO_BUILD_HERE),$(AGENTS_HERE)); do \
			$(BIN)/corral agents install $$agent >/dev/null || exit 1; done && \
		$(MAKE) -s tools/ripgrep/node_modules/.ready; \
		$(MAKE) -s tools/node/node_modules/.ready || echo "no Node 22: its tests are skipped"; \
		$(if $(filter all,$(AGENTS)),$(MAKE) -s tools/inspector/node_modules/.ready \
			tools/acpx/node_modules/.ready || exit 1;) \
	else echo "npm not found: the real agents are left out"; fi

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
# The lock files are complete. With dependencies, pip would look for newer versions of a package with
# extras (psycopg[binary]) and refuse them, because they have no hash.
PIP_INSTALL = -m pip install -q --disable-pip-version-check

.cache/runtime/ready: requirements/runtime.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear .cache/runtime
	$(RUNTIME) $(PIP_INSTALL) --require-hashes --no-deps -r requirements/runtime.txt
	@touch $@

.venv/ready: requirements/dev.txt pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/dev.txt
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

tools/%/node_modules/.ready: tools/%/package-lock.json
	cd tools/$* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

COMPILE := $(BIN)/uv pip compile -q pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header
lock: .venv/ready
	$(COMPILE) --upgrade --group dev -o requirements/dev.txt
	$(COMPILE) --constraints requirements/dev.txt -o requirements/runtime.txt
	$(BIN)/uv pip compile -q pyproject.toml --group docs --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-header --no-annotate -o requirements/docs.txt
	$(BIN)/uv pip compile -q pyproject.toml --group release --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-header --no-annotate -o requirements/release.txt
	$(BIN)/uv pip compile -q --group receivers --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-header --no-annotate -o requirements/receivers.txt
	echo certifi | $(BIN)/uv pip compile -q pyproject.toml --group integrations --override - --universal \
		--python-version 3.12 --upgrade --generate-hashes --no-emit-index-url --no-header --no-annotate \
		-o requirements/integrations.txt
	for tool in acpx inspector node pyright ripgrep; do (cd tools/$$tool && \
		npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved); done

clean:
	rm -rf .venv .cache tools/*/node_modules
