# `make` lists the targets. Every target does its own set-up first.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
# Many tests wait for Kafka, so three processes suit two cores. tests/conftest.py orders the files.
# A process that dies is not replaced: pytest-xdist 3.8 may then wait forever (its issues 1323 and 1327).
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
COVERAGE := --cov=schemas --cov=operators --cov=services --cov-report=term:skip-covered

.PHONY: help setup browser screenshots kernels ahead demo demo-drift test test-deep test-one coverage test-slow mutation torture lint bench-engine bench-files bench-decode bench-kafka bench-migrations bench-failover bench-jisc bench-hybmig bench-jit bench-juggler bench-spill bench-drift pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the virtual environment; fetch Java, Maven and Kafka if missing
	@ops/setup.sh $(VENV)

demo: setup ## start Kafka, stream a real data set through a query, show the results
	@$(BIN)/weir demo

demo-drift: setup ## selectivities swap in mid-run: a worker that adapts its plan beside one whose plan is pinned
	@$(BIN)/weir demo drift

kernels: setup ## compile the kernels ahead
	@$(BIN)/weir warmup

# Several test processes would each compile the same: kernels, and beside them the assertions of the tests.
ahead: setup
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null & $(BIN)/weir warmup && wait

browser: ## install Chromium, for the tests of the page of `weir ui`
	@BROWSER=1 ops/setup.sh $(VENV)

screenshots: setup browser ## take the pictures of the manual, from the drift demonstration
	@$(BIN)/python -m ops.demo.screenshots

test: ahead ## run the tests: all but the deep and the slow ones
	@$(BIN)/python -m pytest -m "not slow and not deep" $(PARALLEL)

test-deep: ahead browser ## run the deep tests: faults, benchmarks, more random examples
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -m "(deep or random) and not slow" $(PARALLEL)

test-one: setup ## run a piece: make test-one T=tests/operators/join, or T='-k spill'
	@$(BIN)/python -m pytest $(T)

coverage: ahead ## run all tests but the slow ones, and list the lines that they do not reach
	@$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(COVERAGE)

test-slow: setup ## run the long suites
	@$(BIN)/python -m pytest -m slow

mutation: setup ## break the engine in small ways and check that tests notice; hours: MUTATION_ARGS='--resume FILE'
	@$(BIN)/python -m tests.mutation --jobs 2 $(MUTATION_ARGS)

torture: kernels ## run random trials with random faults, TORTURE_ARGS='--minutes 30 --seed 1'
	@$(BIN)/python -m tests.torture $(TORTURE_ARGS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench-engine bench-files bench-decode bench-kafka bench-migrations bench-failover bench-jisc bench-hybmig bench-jit bench-juggler bench-spill bench-drift: bench-%: setup
	@$(BIN)/weir bench $*
bench-engine: ## measure the engine alone
bench-files: ## measure files to files
bench-decode: ## measure decoders of JSON, Avro and Protobuf
bench-kafka: ## measure topic to topic
bench-migrations: ## measure plan changes of a running worker, by strategy
bench-failover: ## kill workers, and see how long results stay away
bench-jisc: ## draw the figures of the JISC paper
bench-hybmig: ## draw the figures of the HybMig paper
bench-jit: ## draw the figures of the just-in-time feedback paper
bench-juggler: ## draw the figures of the Juggler thesis
bench-spill: ## draw the figures of the state-spill paper
bench-drift: ## see how well plans follow data that change

pins: ## write ops/constraints.txt anew from the newest packages that pyproject.toml allows
	@ops/pin.sh

clean: ## stop the broker; remove the virtual environment, caches and local data
	@if [ -x $(BIN)/weir ]; then $(BIN)/weir broker stop; fi
	@rm -rf $(VENV) .weir build dist *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
