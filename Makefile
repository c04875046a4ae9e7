# `make demo` and `make test` work on a machine with Python 3.11 and make; a second call skips what is done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0

.PHONY: demo test lint unit thorough clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

test: lint unit

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

# Tests start hundreds of processes: compiled once, each starts a second sooner.
unit: $(VENV)/.installed
	@$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -q -rfEs -n auto --dist worksteal --durations 25

# What `test` leaves out to stay short: random plans of every model, and more ways for runs to fail.
thorough: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m thorough

# A torch that is installed for this Python already is used; else the pinned one comes into the environment.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Syncline needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then $(PYTHON) -m venv --system-site-packages $(VENV); \
	else $(PYTHON) -m venv $(VENV); fi
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q --progress-bar on $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "Installing Syncline into $(VENV) ..."
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .demo
