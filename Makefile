# One virtual environment, made once; `make` alone says what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench audit clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: $(VENV)/.serve  ## two variants of a small model on this machine, rising rates, a report
	$(BIN)/headroom demo

test: $(VENV)/.dev lint  ## linters, types, and every test (live endpoints and browser included)
	$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench  ## the benchmarks: a table, then one JSON line each
	@for file in tests/bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

audit: $(VENV)/.dev  ## known vulnerabilities of what is installed: asks PyPI, so it is no part of `make test`
	$(BIN)/python .ci/audit.py

clean:  ## removes the virtual environment and caches, not your runs
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo 'headroom needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3'; exit 1; }
	@command -v g++ >/dev/null || { echo 'torch.compile on a CPU needs g++: install it (Debian: apt-get install g++)'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'headroom needs the venv module of Python (Debian: apt-get install python3-venv)'; exit 1; }

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	@echo 'installing headroom with torch and Ray into $(VENV); this takes some minutes once'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.serve
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve,dev]'
	touch $@ $(VENV)/.serve

$(VENV)/.bench: pyproject.toml | $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve,dev,bench]'
	touch $@ $(VENV)/.dev $(VENV)/.serve
