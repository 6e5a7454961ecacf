# Each target does all set-up itself, in .venv of this folder, and nothing else is needed.
#   make demo    the bundled pair generates text: plain, chain, tree, with figures
#   make test    the tests that fit in a few minutes on two cores, no GPU
#   make lint    ruff, format check, mypy --strict on src, the layers
#   make bench   latency of the bundled pair, with transformers beside it, JSON in out/
#   make prove   the long equality and statistics runs
# PYTHON=... picks the interpreter, PIP_ARGS=... goes to pip, JOBS=... sets the number of test processes, ARGS=... goes
# to the command that the target runs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test lint bench prove clean

VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PIP_ARGS ?=
ARGS ?=
FIND_PYTHON = for p in "$(PYTHON)" python3 python3.13 python3.12 python3.11; do \
	if [ -n "$$p" ] && "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	then echo "$$p"; exit 0; fi; done; \
	echo "error: no Python 3.11, 3.12 or 3.13 found; install one or call make with PYTHON=/path/to/python" >&2; exit 1

demo: $(VENV)/.installed
	$(BIN)/frostline demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

prove: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "slow and not gpu" --timeout 7200 $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	@mkdir -p out
	$(BIN)/frostline bench latency --model frostline/tiny --batch 1,8 --against transformers --json $(ARGS) \
		| tee out/latency.json

$(VENV)/bin/python:
	python="$$($(FIND_PYTHON))"; "$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
