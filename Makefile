# Every target sets up what it needs in .venv with a plain python3, and is quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-servers check mutants test-lowest matrix browser interop crash chaos full bench bench-turns bench-peers docs docs-check lock clean

help: ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Veredus needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 setup")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP) ## install what everything below needs into .venv

demo: $(STAMP) ## see it work: thousands of tasks, delays, retries, clients, a gateway and a worker killed with -9 (under a minute)
	@$(BIN)/python -m veredus.demo

# These start whole clusters and an older version: a target of their own.
SERVERS := tests/cluster tests/upgrade
test: $(STAMP) ## all tests but those of test-servers, with short leases and small sizes
	@$(BIN)/python -m pytest -n $(JOBS) -q $(SERVERS:%=--ignore %)

test-servers: $(STAMP) ## the tests on clusters and Sentinel, with failovers, and beside the previous version
	@$(BIN)/python -m pytest -n $(JOBS) -q $(SERVERS)

check: $(STAMP) ## ruff, mypy --strict; do the lists of mutants fit the source?
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tools.mutants --check
	@$(BIN)/mypy

mutants: $(STAMP) ## break the source in every way that tests/mutants/ lists and see that the tests notice; LIST=file for one list
	@$(BIN)/python -m tools.mutants --jobs 2 $(LIST)

# The oldest versions are of the oldest Python's time: they have no wheels for newer ones.
LOWEST_PYTHON ?= python3.11
LOWEST := .venv-lowest

$(LOWEST)/.installed: requirements/lowest.txt pyproject.toml
	@$(LOWEST_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "test-lowest needs Python 3.11: make LOWEST_PYTHON=/path/to/python3.11 test-lowest")'
	@rm -rf $(LOWEST) && $(LOWEST_PYTHON) -m venv $(LOWEST)
	@echo "installing into $(LOWEST) (once) ..."
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/lowest.txt
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test-lowest: $(LOWEST)/.installed ## all tests with the lowest versions that pyproject.toml allows, in .venv-lowest
	@$(LOWEST)/bin/python -m pytest -n $(JOBS) -q -o cache_dir=$(LOWEST)/.pytest_cache

matrix: $(STAMP) ## the tests on each Python and server found here, as a table; ARGS="--only 3.12 --json" (long)
	@$(BIN)/python -m tools.matrix --jobs $(JOBS) $(ARGS)

browser: $(STAMP) ## the dashboard and the example's page in a headless Chromium; pictures in artifacts/ (needs a Chromium)
	@VEREDUS_TEST_BROWSER=1 $(BIN)/python -m pytest tests/browser -q

# These print what they saw, and have the machine for themselves.
MEASURED := $(foreach name,bench fair_share mixed_fleet shared_queue,tests/interop/live/test_$(name).py)
interop: SIZE = small
interop: $(STAMP) ## the tests beside live Go Asynq (needs Go; says so and skips without it); SIZE=full: 20,000 tasks and 20 kills in its storm
	@if command -v go >/dev/null; then echo "compiling with Go (a minute the first time) ..."; $(BIN)/python -m tests.interop.live.compile; fi
	@VEREDUS_TEST_GO=1 $(FULL) $(BIN)/python -m pytest tests/interop/live -q -n $(JOBS) $(MEASURED:%=--deselect %)
	@VEREDUS_TEST_GO=1 $(FULL) $(BIN)/python -m pytest $(MEASURED) -q -s

# Three long runs at full size; SIZE=small takes the part of each that fits into a minute.
SIZE ?= full
FULL = $(if $(filter full,$(SIZE)),VEREDUS_TEST_FULL=1,)
crash: $(STAMP) ## every fault at every call; storms of kill -9, failovers, partitions, upgrades (SIZE=small: a storm of a minute)
	@$(if $(FULL),$(FULL) $(BIN)/python -m pytest -q -n $(JOBS) tests/faults)
	@$(FULL) $(BIN)/python -m pytest -q -s $(if $(FULL),tests/crash tests/cluster tests/upgrade tests/groups/test_crash.py tests/durable/test_storm.py,tests/crash/test_storm.py tests/crash/test_order.py)

chaos: $(STAMP) ## the gateway's storm: 100,000 pushes, 5,000 requests, everything killed; five minutes of outages; a stuck reader; hostile clients (SIZE=small: a minute)
	@$(FULL) $(BIN)/python -m pytest -q -s tests/gateway/test_chaos.py tests/gateway/test_outage_storm.py tests/gateway/test_stuck.py tests/gateway/test_storm_of_returns.py tests/peer/test_lost_sessions.py tests/hostile/test_measured.py

full: $(STAMP) ## all other folders that have full sizes: a million tasks, long runs of the models, leaders killed
	@VEREDUS_TEST_FULL=1 $(BIN)/python -m pytest -q -s tests/scheduler tests/inspector tests/link tests/outbox tests/dashboard tests/handlers tests/foreign tests/integration/test_full_server.py tests/integration/test_slow_link.py

bench: $(STAMP) ## measure enqueue, drain, pick-up, lateness and idle cost beside the limits of this machine
	@$(BIN)/python -m benchmarks

bench-turns: $(STAMP) ## this tree beside an earlier commit, in turns: BASE=commit ARGS="--only drain --turns 5"
	@$(BIN)/python -m benchmarks.turns $(BASE) $(ARGS)

bench-peers: $(STAMP) ## the same job through Go Asynq (needs Go), rq, celery, arq, ... and the ratios; ARGS="--only go --json"
	@$(BIN)/python -m benchmarks.peers $(ARGS)

$(VENV)/.docs: requirements/docs.txt $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

docs: $(VENV)/.docs ## the documentation as a static site in site/; fails on a broken link
	@$(BIN)/python -m tools.docs

docs-check: $(VENV)/.docs ## install the wheel with pip in empty environments, do what the first pages say, and run the steps of the Dockerfile
	@VEREDUS_TEST_WHEEL=1 $(BIN)/python -m pytest tests/docs/test_wheel.py tests/deploy/test_image.py -q -s

lock: $(STAMP) ## write requirements/*.txt anew from pyproject.toml
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --universal --no-emit-index-url --no-header --python-version 3.11 --group dev -o requirements/dev.txt
	@$(BIN)/uv pip compile --universal --no-emit-index-url --no-header --python-version 3.11 --group docs -c requirements/dev.txt -o requirements/docs.txt
	@$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --python-version 3.11 --group test -c requirements/dev.txt -o $(VENV)/test.txt >/dev/null
	@$(BIN)/uv pip compile --no-emit-index-url --no-header --no-annotate --python-version 3.11 --resolution lowest-direct pyproject.toml --all-extras --group lowest -c $(VENV)/test.txt -o requirements/lowest.txt

clean: ## remove .venv and what the tools cached
	@rm -rf $(VENV) $(LOWEST) .matrix .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build site
