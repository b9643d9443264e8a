# Every target sets up what it needs: the environment is made once and kept in $(VENV).
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The demo needs the assembler and the driver's bindings only where there is a GPU.
GPU := $(wildcard /dev/nvidiactl /proc/driver/nvidia/version)
DEMO := $(VENV)/.demo$(if $(GPU),-cuda)
DEV := $(VENV)/.dev
SITE := $(VENV)/.site
METADATA := setup.cfg setup.py pyproject.toml

.PHONY: help demo test test-gpu lint installs docs pictures site bench clean

help:
	@echo "make demo      tiled GEMMs on the GPU, or in emulation, checked against NumPy"
	@echo "make test      the tests"
	@echo "make test-gpu  the tests on a machine with a GPU, those of the GPU and of PyTorch too"
	@echo "make lint      ruff and mypy"
	@echo "make installs  build sdist and wheel, test them with the oldest and newest versions of others"
	@echo "make docs      run the examples of the docs again, generate the instruction reference"
	@echo "make pictures  draw the pictures of the docs that are out of date"
	@echo "make site      the documentation as a site, in build/site; a broken link is an error"
	@echo "make bench     the benchmarks; results go to build/"
	@echo "make clean     remove the environment and all caches"

demo: $(DEMO)
	$(BIN)/tensorcore-dsl demo

test: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# PyTorch's wheels for Linux hold all of CUDA: only this target installs them.
test-gpu: $(DEV)
	$(PIP) -e '.[dev,torch]'
	@mkdir -p build
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -rs --record=build/suite.md

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy

installs: $(DEV)
	$(BIN)/python .ci/installs.py

docs: $(DEV)
	$(BIN)/python docs/generate.py

pictures: $(DEV)
	$(BIN)/python docs/pictures.py

site: $(SITE)
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/site  # -W: warnings fail
	@echo "open build/site/index.html"

bench: $(DEV)
	$(BIN)/python -m benchmarks --out build

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/reference docs/notebooks docs/project
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Some systems ship Python without ensurepip: then pip installs itself from outside.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.demo: $(METADATA) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.demo-cuda: $(METADATA) | $(BIN)/python
	$(PIP) -e '.[cuda]'
	@touch $@

$(DEV): $(METADATA) | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@

$(SITE): $(METADATA) | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@
