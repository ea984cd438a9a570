# `make demo` and `make test` need only Python, make and git; everything else is set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check fix bench

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort

setup: $(READY) ## Build .venv with the pinned, tested versions

$(READY): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: setup ## Train a small GPT for about a minute with its costs metered, then print the receipt
	rm -rf runs/demo
	$(BIN)/python examples/train_gpt.py --out runs/demo

test: setup ## Run every test that is quick
	$(BIN)/python -m pytest -m "not slow"

test-all: setup ## Run every test
	$(BIN)/python -m pytest

check: setup ## Lint, types and the rooms' import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: setup ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure the overhead per step against Lightning's own ThroughputMonitor, score forecasts, and time demotions
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/forecasts.py
	$(BIN)/python benchmarks/demotion.py
