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
TORCH_VERSION := 2.13.0
TORCH := $(abspath $(VENV))/torch-$(TORCH_VERSION)
JAX_VERSION := 0.10.2
JAX := $(abspath $(VENV))/jax-$(JAX_VERSION)
TRITON_VERSION := 3.9.0
CUTLASS_VERSION := 4.2.0.0
TRITON := $(abspath $(VENV))/foreign-$(TRITON_VERSION)
PLAYWRIGHT := $(abspath $(VENV))/playwright
# Files with tests that need PyTorch; their names, or those of the tests, say so.
TORCH_TESTS = $(shell grep -l 'importorskip."torch"' tests/test_*.py) tests/test_docs.py
# Byte code is kept, whatever the environment says: tests start hundreds of processes that import
# the package.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath build/pycache) \
  $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
METADATA := setup.cfg setup.py pyproject.toml

.PHONY: help demo test test-all test-torch test-jax test-triton test-browser test-gpu lint installs docs pictures site bench clean

help:
	@echo "make demo       tiled GEMMs on the GPU, or in emulation, checked against NumPy"
	@echo "make test       one test of each family of kernels, type, row of the table, message and page"
	@echo "make test-all   all tests"
	@echo "make test-torch the tests that need PyTorch, on the CPU"
	@echo "make test-jax   the tests that need JAX, on the CPU"
	@echo "make test-triton the tests of kernels of Triton and CUDA, which are compiled without a GPU"
	@echo "make test-browser  the tests of the site and of other pages in Chromium"
	@echo "make test-gpu   the tests on a machine with a GPU, those of the GPU and of PyTorch too"
	@echo "make lint       ruff, its formatting and mypy"
	@echo "make installs   build sdist and wheel, test them with the oldest and newest versions of others"
	@echo "make docs       run the examples of the docs again, generate the instruction reference"
	@echo "make pictures   draw the pictures of the docs that are out of date"
	@echo "make site       the documentation as a site, in build/site; a broken link is an error"
	@echo "make bench      the benchmarks; results go to build/"
	@echo "make clean      remove the environment and all caches"

demo: $(DEMO)
	$(BIN)/tensorcore-dsl demo

test: $(DEV)
	$(PYTEST)

# Three runs: a worker keeps what its tests have compiled, which is 3 GB after half an hour.
test-all: $(DEV)
	@rm -f build/crashes.txt; status=0; \
	  for letters in a-e f-l m-z; do \
	    $(PYTEST) --all tests/test_[$$letters]*.py || status=$$?; \
	  done; \
	  cat build/crashes.txt 2>/dev/null; exit $$status

# PyTorch lies in a folder of its own, so that the other targets run without it.
test-torch: $(DEV) $(TORCH)
	PYTHONPATH=$(TORCH) $(PYTEST) --all -k torch $(TORCH_TESTS)

test-jax: $(DEV) $(JAX)
	PYTHONPATH=$(JAX) $(PYTEST) --all -k "jax" tests/test_jax.py tests/test_array_interop.py tests/test_docs.py

test-triton: $(DEV) $(TRITON) $(TORCH)
	PYTHONPATH=$(TRITON):$(TORCH) $(PYTEST) --all tests/test_ptx_triton.py tests/test_ptx_cuda.py tests/test_ptx_cutlass.py

# The browser is Debian's package; playwright, in a folder of its own, drives it.
test-browser: $(DEV) $(PLAYWRIGHT) site
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	PYTHONPATH=$(PLAYWRIGHT) $(PYTEST) --all tests/test_*_browser.py

# PyTorch's wheels for Linux use CUDA, which comes with them: `make test-torch` can do without.
test-gpu: $(DEV)
	$(PIP) -e '.[dev,torch]'
	@mkdir -p build
	$(PYTEST) --all -rs --record=build/suite.md

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
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
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/reference docs/notebooks docs/project docs/programs docs/extra
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

# The build for CPUs, 2.13.0+cpu, is one wheel of 192 MB (754 MB on disk) and six small packages in
# pure Python: nothing of CUDA. pip prefers it where one of its indexes has it. PyPI has none for Linux:
# pip then takes the build for CUDA 13, which brings the CUDA toolkit, cuDNN, NCCL and Triton, several
# GB; with these the tests run, too. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids it.
$(TORCH): | $(BIN)/python
	rm -rf $@.part
	$(PIP) --target $@.part torch==$(TORCH_VERSION)
	mv $@.part $@

# JAX's wheels for CPUs; NumPy and ml_dtypes are those of the environment.
$(JAX): | $(BIN)/python
	rm -rf $@.part
	$(PIP) --no-deps --target $@.part jax==$(JAX_VERSION) jaxlib==$(JAX_VERSION) opt-einsum scipy
	mv $@.part $@

# Triton is one wheel; it too lies in a folder of its own, since torch.compile would use it. With it
# come headers that NVRTC needs for `mma.h`, and those of CUTLASS.
$(TRITON): | $(BIN)/python
	rm -rf $@.part
	$(PIP) --no-deps --target $@.part triton==$(TRITON_VERSION) nvidia-cuda-crt nvidia-cutlass==$(CUTLASS_VERSION)
	mv $@.part $@

$(PLAYWRIGHT): | $(BIN)/python
	rm -rf $@.part
	$(PIP) --target $@.part playwright
	mv $@.part $@

$(SITE): $(METADATA) | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@
