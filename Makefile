# `make run` and `make test` are all that a fresh machine needs: Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers

.PHONY: run test unit-tests fuzz lint bench bench-compare bench-gpu validate-model peers history clean

run: $(STAMP)
	$(BIN)/portable-spdnn run

# Linters, of which the types take most of a minute on one core, beside the tests.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint unit-tests

# A file's tests stay together, since they share what is compiled, and begin in the order in which
# they are collected.
#
# With PYTHONDONTWRITEBYTECODE each of the hundreds of processes that tests start would compile
# what it imports.
unit-tests: export PYTHONDONTWRITEBYTECODE :=
unit-tests: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
	  --no-loadscope-reorder

# Ten minutes, before a release: every reader of files, and random networks on every backend.
fuzz: $(STAMP)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[fuzz]'
	$(BIN)/python tests/hostile/fuzz.py --seconds 420
	$(BIN)/python -m pytest tests/hostile/test_networks.py --hypothesis-profile fuzz

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(BIN)/python benchmarks/run_benchmarks.py

bench-compare: $(STAMP)
	$(BIN)/python benchmarks/compare_ratios.py --run

# One GPU, eight minutes; exit code 2 where there is none. Needs ../shared/mnist, as it says.
bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu/run_gpu.py

# Some ten minutes, on a machine that does nothing else.
validate-model: $(STAMP)
	$(BIN)/python benchmarks/validate_model.py

# Other libraries, some of a gigabyte, in an environment of their own.
peers: $(PEERS)/.installed
	$(PEERS)/bin/python benchmarks/peers/run_peers.py
	$(PEERS)/bin/python benchmarks/peers/dlmc_peers.py

$(PEERS)/.installed: pyproject.toml benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --requirement benchmarks/peers/requirements.txt --editable .
	touch $@

history: $(PEERS)/.installed
	$(PEERS)/bin/python benchmarks/plot_history.py

# Byte-compilation is left to the first import of each module: many are never imported.
# Done again when the requirements change; the package itself is installed in place.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; choose one with: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis fuzz-faults
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
