# One virtual environment, made once; `make` alone says what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 4
# 3.11.2, the one that nvidia-pytriton's stub is made for, no newer 3.11; others' servers take it where ours is too new for them
DEBIAN_PYTHON ?= /usr/bin/python3.11
# tested (what docker/constraints/common.txt says), newest, or lowest (that pyproject.toml allows)
VERSIONS ?= tested
CONSTRAINTS := $(if $(filter tested,$(VERSIONS)),-c docker/constraints/common.txt,$(if $(filter lowest,$(VERSIONS)),-c .ci/lowest.txt))
# the oldest libraries bring types that say less, and some none
LINT := $(if $(filter lowest,$(VERSIONS)),,lint)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS)
# of the hundreds of processes that the tests start, each would compile our modules anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long lint bench bench-quick bench-compare audit peers system constraints dist docs images clean check-tests test-tests

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

demo: $(VENV)/.serve  ## two variants of a small model on this machine, rising rates, a report
	$(BIN)/tailrate demo

# linters and tests at once: the type checker has one core, waiting tests leave the other
check: $(VENV)/.dev  ## linters, types, and every test that needs no server, no browser and no long computing: in three minutes
	@$(MAKE) --no-print-directory -j2 $(LINT) check-tests

test: $(VENV)/.dev peers  ## all of that, live endpoints and browser included: a quarter of an hour
	@$(MAKE) --no-print-directory -j2 $(LINT) test-tests

test-long: $(VENV)/.warm peers .peers/.trackers  ## what is long by nature: soaks, kills, coverage of intervals, whole campaigns, several nodes
	$(BIN)/python -m pytest -n $(WORKERS) -m 'long and not quiet'; first=$$?; \
	$(BIN)/python -m pytest -m 'long and quiet' && exit $$first

# which only compute: a worker for each core
check-tests: WORKERS = $(shell nproc 2>/dev/null || echo 2)
check-tests: $(VENV)/.warm
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not (long or served or live or browser or computes or peer)'

test-tests: $(VENV)/.warm
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not long'

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench  ## all benchmarks, one after the other: tables, a JSON line each, a summary: nearly two hours
	@$(BIN)/python tests/bench/run_all.py

bench-quick: $(VENV)/.bench  ## what they say within five minutes
	@$(BIN)/python tests/bench/run_all.py --quick

bench-compare: $(VENV)/.dev  ## what got slower since BASE (make bench-compare BASE=main~3), and how sure that is: in twelve minutes
	@$(BIN)/python tests/bench/commits.py $(or $(BASE),HEAD)

peers: .peers/.ready  ## servers of others for the tests that drive them, an environment each: two minutes once

.peers/.ready: $(wildcard tests/peers/servers/*.txt)
.peers/.trackers: $(wildcard tests/peers/trackers/*.txt)
.peers/.ready .peers/.trackers:
	for file in $^; do \
	  name=$$(basename $$file .txt); made=; \
	  case $$name in triton) pythons=$(DEBIAN_PYTHON) ;; *) pythons='$(PYTHON) $(DEBIAN_PYTHON)' ;; esac; \
	  for python in $$pythons; do \
	    $$python -c 'import ensurepip' || continue; \
	    made=no; \
	    $$python -m venv --clear .peers/$$name && .peers/$$name/bin/python -m pip install --quiet --disable-pip-version-check \
	      -r $$file && made=yes && break; \
	  done; \
	  case $$made in \
	    '') echo "$$name is left out, and its tests are skipped: $$pythons is not there" ;; \
	    no) exit 1 ;; \
	  esac; \
	done
	touch $@

# once, what each worker would do for itself: assertions rewritten in all files, loops compiled
$(VENV)/.warm: $(VENV)/.dev
	$(BIN)/python -m pytest --quiet -k 'test_the_same_seed_gives_the_same_and_another_one_another or test_counts.py' >/dev/null || true  # a failure comes again, with its reason
	touch $@

system:  ## what the tests need beside Python, on Debian and its like: a browser, Prometheus, Java
	@.ci/system

constraints: $(VENV)/.bench  ## docker/constraints/common.txt from what is installed (make constraints VERSIONS=newest: of today), .ci/lowest.txt
	$(INSTALL) --upgrade --upgrade-strategy eager --editable '.[serve,dev,bench]'
	$(BIN)/python .ci/constraints.py > docker/constraints/common.txt.new
	mv docker/constraints/common.txt.new docker/constraints/common.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --resolution lowest-direct --python-version 3.11 \
	  --extra serve --extra dev pyproject.toml -o .ci/lowest.txt >/dev/null

dist: $(VENV)/bin/python  ## wheel and source archive of the last commit in dist/, looked at (RELEASE=v1.2.3: as that)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	@$(BIN)/python .ci/dist.py --release '$(RELEASE)' --pages '$(PAGES)'

docs: $(VENV)/.dev  ## the site of docs/, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir site

images:  ## the images of docker/, for the CPU
	for name in load agent serve; do docker build -f docker/$$name.Dockerfile -t tailrate-$$name . || exit 1; done

audit: $(VENV)/.dev  ## known vulnerabilities of what is installed: asks PyPI, so it is no part of `make test`
	$(BIN)/python .ci/audit.py

clean:  ## removes the virtual environment and caches, not your runs
	rm -rf $(VENV) .peers dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo 'tailrate needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3'; exit 1; }
	@command -v g++ >/dev/null || { echo 'torch.compile on a CPU needs g++: install it (Debian: apt-get install g++)'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'tailrate needs the venv module of Python (Debian: apt-get install python3-venv)'; exit 1; }

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	@echo 'installing tailrate with torch and Ray into $(VENV); this takes some minutes once'
	$(INSTALL) --editable '.[serve]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.serve
	$(INSTALL) --editable '.[serve,dev]'
	touch $@ $(VENV)/.serve

$(VENV)/.bench: pyproject.toml | $(VENV)/.dev
	$(INSTALL) --editable '.[serve,dev,bench]'
	touch $@ $(VENV)/.dev $(VENV)/.serve
