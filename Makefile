# Everything a contributor or CI does. Needs Python 3.11 or newer and make; nothing else.
#   make test PYTHON=python3.12     another interpreter (only when .venv does not exist yet)

SHELL  := /bin/bash -o pipefail
PYTHON ?= $(shell for p in python3.11 python3; do \
            $$p -c '' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Pyright would otherwise ask the package index for news of itself on every run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The tests start python some hundred times: each would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo energy_flow xec liquid quick test plain style types lint format docs prove bench clean

help:  ## this list
	@grep -hE '^[a-z_]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z_]+):[^#]*## /  make \1\t/' | expand -t 20

install: $(STAMP)  ## make .venv and install everything into it (once)

# The build tool goes in first and is used from there, so that a later install after a change
# of pyproject.toml needs no network as long as no new package is asked for.
$(STAMP): pyproject.toml models/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (the first time takes some minutes: torch is large)"
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]' -e './models[plots,text,xec,onnx,liquid]'
	@touch $@
	@echo "installed: $$($(BIN)/python -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)')"

# A half-made environment (Debian without its venv package) is removed, or it would be kept.
$(BIN)/python:
	@$(or $(PYTHON),python3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "needs Python 3.11 or newer, not '$(PYTHON)'; try: make install PYTHON=python3.12" >&2; \
	  exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }

demo: install  ## a script that dies of NaN under python and lives under holdfast
	@$(BIN)/holdfast demo

energy_flow: install  ## train the first model family, draw and evaluate it: minutes on two cores
	@run=runs/energy_flow_$$(date +%Y%m%d_%H%M%S) && \
	$(BIN)/holdfast train energy_flow --run-dir $$run && \
	$(BIN)/holdfast energy_flow eval $$run && echo && ls -d $$run/report.html $$run/pictures/*.png

xec: install  ## generate calorimeter events, train a regressor on them and draw what it is worth
	@run=runs/xec_$$(date +%Y%m%d_%H%M%S) && \
	$(BIN)/holdfast train xec.reg --preset small --run-dir $$run && echo && \
	ls -d $$run/report.html $$run/predictions.root $$run/model.onnx $$(find $$run/pictures -name '*.png' -not -name '*_step*' | sort)

liquid: install  ## train the third model family on Python source, write on from "def " and evaluate it
	@run=runs/liquid_$$(date +%Y%m%d_%H%M%S) && \
	$(BIN)/holdfast train liquid --run-dir $$run && echo && \
	$(BIN)/holdfast liquid generate $$run --prompt "def " && echo && \
	$(BIN)/holdfast liquid eval $$run && echo && ls -d $$run/report.html $$run/pictures/*.png

# One thread each: two runs of tests, and the scripts they start, share two cores.
# The timeout of a test is a signal, which a wait inside of a library never looks at: then all threads are shown, and
# the group ends.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q \
  -o faulthandler_timeout=240 -o faulthandler_exit_on_timeout=true

# A queue of two, the longest first: whichever ends makes room for the next. Tests of resume fork the process they are
# in, and those of live and watching search through all of its objects: in one that has grown through all others they
# take up to four times as long.
CHECKS   := test-e2e test-live types test-families test-liquid test-rooms test-watching test-resume
e2e      := tests/e2e
live     := tests/guard tests/recovery tests/training
watching := tests/diagnosis tests/watching tests/integrations
resume   := tests/resume
rooms    := tests $(addprefix --ignore=,$(e2e) $(live) $(watching) $(resume))
liquid   := models/tests/liquid
families := models/tests --ignore=$(liquid)

# While working: rules about sources, and the rooms that a detector, a record or a report touches.
QUICK    := test-judged test-recorded changed-types
judged   := tests/detectors tests/catalogue tests/architecture
recorded := tests/records tests/probes tests/report tests/run tests/config
# Where pyright looks; it would take a file that is excluded there, too, if it is named.
TYPED    := $(foreach folder,src tests examples benchmarks models,'$(folder)/*.py') \
            ':!tests/e2e/scripts' ':!tests/e2e/warm'

quick: install style  ## ruff, types of what changed since main, tests of detectors, records, reports: about a minute
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target $(QUICK)

changed-types:
	@files=$$(git diff --name-only --diff-filter=d \
	    $$(git merge-base HEAD main 2>/dev/null || echo HEAD) -- $(TYPED); \
	  git ls-files --others --exclude-standard -- $(TYPED)); \
	echo "pyright: $$(wc -w <<< "$$files") changed files"; \
	[ -z "$$files" ] || $(BIN)/pyright --pythonpath $(BIN)/python $$files

test: install style  ## lint, types and the default tests: CPU only, offline
	@echo "types and tests, two at a time: each is told when it has ended"
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target $(CHECKS)

.PHONY: $(CHECKS) $(QUICK)
$(filter test-%,$(CHECKS) $(QUICK)): test-%:
	@echo "$*: $($*)"
	@$(PYTEST) -o cache_dir=$(VENV)/cache-$* $($*)

style:
	@echo "ruff"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet

types:
	@echo "pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python

# The fast steps have tests of their own, which are about nothing else.
plain: install  ## the tests of the guard with its fast steps switched off
	@HOLDFAST_FAST=0 $(PYTEST) -o cache_dir=$(VENV)/cache-plain tests/guard tests/recovery/test_rollback.py --ignore=tests/guard/fast

lint: install style types  ## ruff and pyright

format: install  ## let ruff put the code in order
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: install  ## build docs/detectors, docs/events.md and the imports in the READMEs of the rooms
	@$(BIN)/python docs/build_detectors.py
	@$(BIN)/python docs/build_records.py
	@$(BIN)/python docs/build_rooms.py

prove: install  ## the slow proofs: every drill, every fault, every collection (hours)
	@$(BIN)/python -m pytest -m 'slow and not gpu'
	@$(BIN)/python benchmarks/drills.py --write
	@$(BIN)/python benchmarks/detection.py --keep $(VENV)/kept --resume --jobs 2 > $(VENV)/detection.log \
	  || echo "a goal of detection is missed: $(VENV)/detection.log"
	@$(BIN)/python benchmarks/detection.py --judge $(VENV)/kept --same > $(VENV)/judged.log \
	  || { grep -A99 "Other findings" $(VENV)/judged.log; exit 1; }

bench: install  ## what the guard costs on this machine
	@$(BIN)/python benchmarks/overhead.py
	@$(BIN)/python benchmarks/host_cost.py --quick

clean:  ## remove .venv and every cache
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist build
	@find src tests benchmarks corpus models -name __pycache__ -type d -prune -exec rm -rf {} +
