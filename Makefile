# make demo | test | bench | lint | setup. Everything runs from .venv, which the first target builds.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter that is new enough; empty when there is none.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
# More arguments for pip, e.g. PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for a torch without CUDA.
PIP_ARGS ?=

.PHONY: help setup model demo test bench lint

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) model ## Build .venv and fetch the embedded model

demo: setup ## Run the demo
	@$(BIN)/agentkv demo

test: setup ## Run the fast tests
	@echo "Running the fast tests"
	@$(BIN)/python -m pytest

bench: setup ## Measure the operations
	@echo "Running the benchmarks"
	@$(BIN)/python -m bench

lint: $(STAMP) ## Check style, types and import directions
	@echo "ruff check" && $(BIN)/ruff check .
	@echo "ruff format" && $(BIN)/ruff format --check .
	@echo "mypy" && $(BIN)/mypy
	@echo "lint-imports" && $(BIN)/lint-imports

model: $(STAMP)
	@echo "Checking the embedded model"
	@$(BIN)/python -c "from agentkv.models.embedded import ensure; ensure()"

$(STAMP): pyproject.toml constraints/cpu.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Found $$(python3 --version 2>/dev/null || echo no python3) and PYTHON='$(PYTHON)'; Python 3.11 or later is needed." >&2; \
		echo "Install it (Debian: apt-get install python3.11 python3.11-venv), or run: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@test -x $(BIN)/python || { \
		echo "Creating $(VENV) with $(PYTHON)"; \
		"$(PYTHON)" -m venv $(VENV); } || { \
		echo "'$(PYTHON) -m venv' does not work." >&2; \
		echo "Install its venv module (Debian: apt-get install python3-venv) and run make again." >&2; \
		rm -rf $(VENV); exit 1; }
	@echo "Installing agentkv and its pinned dependencies (some minutes the first time)"
	@$(BIN)/python -m pip install -qq $(PIP_ARGS) -c constraints/cpu.txt -e '.[dev]'
	@touch $@
