# Everything a newcomer or a checker runs. Needs make and Python 3.11 or newer; all else goes into .venv.
#   make train      set up, then train CartPole-v1 with all processes and print the result
#   make test       set up, then run the tests (the long ones left out)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TRAINS := $(VENV)/.installed_to_train

# A new name each time, so that `make train` trains again instead of reporting that the last run is finished.
# Resume a run with: make train EXPERIMENT=<its name>
EXPERIMENT := cartpole_$(shell date +%Y%m%d_%H%M%S)
TRAIN_FLAGS :=
PACKAGE_FLAGS :=
BENCH_FLAGS := --num_workers=2 --num_envs_per_worker=256 --rollout=32 --batch_size=16384 --encoder_mlp_layers 64 64 --device=cpu

# Where this is set, each of the hundreds of processes of the tests compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup train test test-long test-faults check coverage audit format package flags site bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 18

# Training needs less than the tests, which need all: where that is installed, nothing else has to be.
$(STAMP): EXTRA := dev
$(TRAINS): EXTRA := video
$(STAMP) $(TRAINS): setup.py constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "sfactory needs Python 3.11 or newer, and '$(PYTHON)' is older or cannot be run: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	test -x $(VENV)/bin/pip || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "installing sfactory and the packages it needs into $(VENV): some minutes, without output"
	$(PY) -m pip install --disable-pip-version-check -q -e '.[$(EXTRA)]' -c constraints.txt
	@touch $@

setup: $(STAMP)  ## make .venv and install sfactory into it (again when setup.py or constraints.txt change)

train: $(if $(wildcard $(STAMP)),$(STAMP),$(TRAINS))  ## train CartPole-v1 with all processes and print the result
	$(PY) -m sfactory.train --env=CartPole-v1 --experiment=$(EXPERIMENT) $(TRAIN_FLAGS)
	@echo "The run is in train_dir/$(EXPERIMENT); play it with: $(PY) -m sfactory.enjoy --experiment=$(EXPERIMENT)" >&2

# Whole files go to one of three workers; tests/conftest.py puts the files that take longest first. Three workers fill
# two cores: a test that has started a run waits for it a third of the time.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(STAMP)  ## run the tests, the long ones left out, on two cores
	$(PYTEST) -m "not long" --ignore=tests/architecture

test-long: $(STAMP)  ## run the tests that take minutes (learning, endurance, all layouts), and all fuzzing in depth
	HYPOTHESIS_PROFILE=long $(PYTEST) -m "long or hypothesis" -o faulthandler_timeout=7500

test-faults: $(STAMP)  ## run the fault tests alone (killed processes, signals)
	$(PYTEST) -m "not long" tests/faults

check: $(STAMP) site  ## formatting, lint, types, architecture, and the site with all its links
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/architecture

# The variable leaves out a notice on the future of the theme, which is no warning of this build.
site: $(STAMP)  ## build the documentation site into build/site, with warnings as errors and without a network
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

coverage: $(STAMP)  ## measure which lines of sfactory/ the tests execute, child processes included
	scripts/coverage.sh

# pip-audit brings dozens of packages, and so has a place of its own. Exit codes: docs/security.md.
audit: $(STAMP)  ## compare what is installed with known vulnerabilities (asks the package index; 3: could not ask)
	@test -x $(VENV)/audit/bin/pip-audit || { "$(PYTHON)" -m venv $(VENV)/audit && \
		$(VENV)/audit/bin/pip install --disable-pip-version-check -q pip-audit; } || true
	$(PY) scripts/audit.py $(VENV)/audit/bin/pip-audit

format: $(STAMP)  ## rewrite the code the way `make check` wants it
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

package: $(STAMP)  ## build the sdist and the wheel into dist/, and try the wheel in a new environment
	rm -rf dist
	$(PY) scripts/package.py --out=dist $(PACKAGE_FLAGS)

flags: $(STAMP)  ## write docs/flags.md again, after a change of a flag
	$(PY) scripts/write_flags.py

bench: $(STAMP)  ## measure throughput on CartPole-v1 against pure simulation, one JSON line for each layout
	$(PY) -m sfactory.train --env=CartPole-v1 --benchmark=True $(BENCH_FLAGS) --experiment=bench_central
	$(PY) -m sfactory.train --env=CartPole-v1 --benchmark=True $(BENCH_FLAGS) --experiment=bench_local --inference=local

clean:  ## remove .venv, caches and build outputs (train_dir stays)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
