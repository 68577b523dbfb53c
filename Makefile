# make help lists the targets. Each makes .venv on first use, and brings it up to date when
# pyproject.toml or constraints.txt changed. To choose the interpreter: make PYTHON=/path/to/python test

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-full lint bench bench-full bench-check clean distclean

PYTHON ?=
PIP_VERSION := 26.1.2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INTEROP_STAMP := $(VENV)/.installed-interop
BENCH := .venv-bench
BENCH_STREAMING := .venv-bench-streaming
# One more than there are cores, because many tests wait for processes of their own; these need cores too, so 4 at most.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
CODE := resumable_data tests $(wildcard benchmarks docs/examples)

# What a shell may set for another environment must not reach ours.
unexport PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@echo "make demo       train on 4 processes, kill, resume on 3, then on 2, and prove the data exact"
	@echo "make test       ruff, mypy, doctests and all tests but the slow ones"
	@echo "make test-full  the same, with the slow tests"
	@echo "make lint       ruff and mypy alone"
	@echo "make bench      the benchmarks beside other loaders, in short, and docs/benchmarks.md"
	@echo "make bench-full the same with all cases and repeats: about an hour"
	@echo "make bench-check  whether a hot path became slower than its committed figure"
	@echo "make clean      remove caches and build outputs; make distclean removes the environments too"

demo: $(STAMP)
	$(BIN)/resumable-data demo

test: lint
	$(BIN)/python -m pytest --doctest-modules resumable_data
	$(PYTEST) -m "not slow"

# Some of the slow tests need strace: apt-get install strace
test-full: lint $(INTEROP_STAMP)
	$(BIN)/python -m pytest --doctest-modules resumable_data
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

# Where the second environment cannot be made, its figures stay as they are stored.
bench bench-full: $(BENCH).installed
	$(BENCH)/bin/python -m benchmarks $(BENCH_OPTIONS)
	-$(MAKE) $(BENCH_STREAMING).installed && $(BENCH_STREAMING)/bin/python -m benchmarks --streaming $(BENCH_OPTIONS)
	$(BENCH)/bin/python -m benchmarks._page

bench-full: BENCH_OPTIONS := --full

bench-check: $(STAMP)
	$(BIN)/python -m benchmarks.guard

# Other loaders, each left out where it does not install. MosaicML Streaming brings gigabytes of CUDA libraries with it.
$(BENCH).installed: TORCH := torch==2.13.0
$(BENCH_STREAMING).installed: TORCH := torch==2.14.1
$(BENCH).installed: GROUP := bench
$(BENCH_STREAMING).installed: GROUP := bench-streaming
$(BENCH).installed $(BENCH_STREAMING).installed: %.installed: $(STAMP) benchmarks/install_peers.py
	$(BIN)/python -m venv --clear $*
	$*/bin/python -m pip install --quiet "pip==$(PIP_VERSION)"
	$*/bin/python -m pip install "$(TORCH)" --editable .
	$*/bin/python benchmarks/install_peers.py $(GROUP) "$(TORCH)"
	@touch $@

# An environment that is there and new enough is kept and brought up to date; any other is made anew.
$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	probe='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$probe" >/dev/null 2>&1 || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=; \
	  for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	    if "$$python" -c "$$probe" >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: expected Python 3.11 or newer with its venv module, found none." >&2; \
	    echo "Install one (on Debian and Ubuntu python3-venv too), or name it: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "making $(VENV) with $$found"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "installing into $(VENV) what constraints.txt pins (the first time takes minutes: torch is large)"
	@$(BIN)/python -m pip install --quiet "pip==$(PIP_VERSION)"
	$(BIN)/python -m pip install --constraint constraints.txt --group all --editable .
	@touch $@

# Accelerate, Lightning and others, which the tests in tests/interop run against.
$(INTEROP_STAMP): $(STAMP)
	@echo "installing into $(VENV) the packages that tests/interop runs against"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group interop
	@touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find resumable_data tests $(wildcard benchmarks docs) -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(BENCH) $(BENCH).installed $(BENCH_STREAMING) $(BENCH_STREAMING).installed
