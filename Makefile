# `make demo` and `make test` need Python 3.11+ and make; everything else is installed into .venv.
# PIP_ARGS is passed to pip, e.g. PIP_ARGS="--index-url URL-of-an-index-with-CPU-builds-of-torch".
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
TINY := build/tiny-omni
HOST ?= 127.0.0.1
PORT ?= 8000
LAYOUT ?= e+pd

.PHONY: install install-dev demo serve test check format bench soak clean

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" $(PIP_ARGS)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Triptych into $(VENV) (the first time this downloads torch: minutes) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS) --group dev
	@touch $@

$(TINY)/config.json: $(VENV)/installed $(wildcard model/*.py)
	@echo "Making the tiny omni model in $(TINY) ..."
	$(BIN)/python -m model.make_tiny $(TINY)

demo: $(TINY)/config.json
	$(BIN)/python examples/demo.py $(TINY)

serve: $(TINY)/config.json
	$(BIN)/triptych serve $(TINY) --layout $(LAYOUT) --host $(HOST) --port $(PORT)

test: install-dev
	$(BIN)/python -m pytest

check: install-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: install-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(TINY)/config.json
	$(BIN)/triptych bench serve $(TINY)

soak: install-dev
	$(BIN)/python -m pytest -m soak --timeout=3600

clean:
	rm -rf build $(VENV)
