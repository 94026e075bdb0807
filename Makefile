# make chat       set up, fetch the default model, open the chat
# make test       set up, fetch the default model, run the tests of every day
# make test-all   the long statistical, training and stress tests too
# make lint       style, types, contracts between the packages
# make setup      only prepare .venv and the default model

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: chat test test-slow test-all lint setup clean

chat: setup
	@$(BIN)/specchat

test: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile -m 'not slow'

test-slow: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile -m slow

test-all: test test-slow

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: .venv/ready
	@$(BIN)/specchat models pull smollm2-135m

.venv/ready: pyproject.toml setup.py constraints.txt $(wildcard engine/kernels/source/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specchat needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo 'Installing the dependencies into .venv, PyTorch among them: this takes some minutes, without output.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv
