# Everything starts here: each target makes the virtual environment first if it is missing.
#   make demo    train five methods on real molecules; tables, figures, report under results/
#   make test    format, lint, types, the site, then the whole test suite (one process per core)
#   make docs    the documentation site, every notebook run, under docs/_build/ (docs-serve shows it)
#   make coverage  the tests again, with the lines that each runs, under results/coverage/
#   make env     the virtual environment alone, .venv
#   make bench   timings, as ratios from interleaved runs
#   make dist    the sdist, and from it the wheel, under dist/
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP  := $(VENV)/.installed

# Compiled once: the tests start many interpreters, and each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test check coverage docs docs-serve bench dist clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed (PYTHON=$(PYTHON)); name another with: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"  # the first that knows groups
	$(PIP) -e ".[diagnostics,gp,laplace,torchjd]" --group dev
	@printf '#!/bin/sh\nBAYESAGG_PROGRAM=experiments exec "%s/python" -m experiments "$$@"\n' "$$(cd $(BIN) && pwd)" > $(BIN)/experiments
	@chmod +x $(BIN)/experiments
	@touch $@

env: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m experiments demo --out results/demo

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

coverage: $(STAMP)
	mkdir -p results/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
	  --cov --cov-context=test --cov-report=term --junitxml=results/coverage/tests.xml

docs: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs docs/_build

docs-serve: docs
	$(BIN)/python -m http.server --directory docs/_build

bench: $(STAMP)
	$(BIN)/python -m benchmarks

dist: $(STAMP)
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) docs/_build build dist .mypy_cache .pytest_cache .ruff_cache
