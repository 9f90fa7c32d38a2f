# foxflow: `make help` lists the targets. Each does the set-up it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e '.[ccxt,onnx,rust]' -e flows -e plugins/torch -e 'plugins/mamba2[cuda]' -e plugins/gru -e plugins/ridge
SOURCES := foxflow flows/foxflow_flows plugins/torch/foxflow_torch plugins/mamba2/foxflow_mamba2 plugins/gru/foxflow_gru plugins/ridge/foxflow_ridge
PROJECTS := pyproject.toml flows/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup backtest volatility test test-gpu check bench flow clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done ## create .venv with pinned versions and every package of this repository

$(VENV)/.done: constraints.txt $(PROJECTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq -c constraints.txt pip
	$(BIN)/pip install -qq -c constraints.txt --group dev $(PACKAGES)
	@touch $@

backtest: setup ## run the reference experiment: table, report and release under data/
	$(BIN)/foxflow backtest

volatility: setup ## run the volatility experiment, whose target can be predicted
	$(BIN)/foxflow backtest volatility

flow: setup ## run the reference experiment as a Prefect flow
	DO_NOT_TRACK=1 PREFECT_SERVER_ANALYTICS_ENABLED=false $(BIN)/python -m foxflow_flows.backtest

test: setup ## run the tests
	$(BIN)/python -m pytest

test-gpu: setup ## on an NVIDIA GPU: compile, prove and time the CUDA scan; one table within 8 minutes
	cd plugins/mamba2/benchmarks && $(CURDIR)/$(BIN)/python -m gpu

check: setup ## ruff, ruff format, mypy strict, import-linter, deptry, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/deptry foxflow
	for p in flows plugins/torch plugins/mamba2 plugins/gru plugins/ridge; do (cd $$p && $(CURDIR)/$(BIN)/deptry .) || exit 1; done
	$(BIN)/codespell $(SOURCES) tests docs README.md CHANGELOG.md Makefile

bench: setup ## time the store, a walk-forward, and the scan beside transformers (minutes); checked before they are timed
	$(BIN)/pip install -qq -c constraints.txt --group bench
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/walk_forward.py
	$(BIN)/python plugins/mamba2/benchmarks/cpu.py

clean: ## remove .venv and caches; data/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
