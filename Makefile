# Tenure: every target sets up what it needs, into .venv in this checkout.
# PYTHON chooses the interpreter the environment is made from:  make test PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
CODE   := $(wildcard src tests tools bench examples)

# The suite starts thousands of processes: each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test quick check format hunt bench failover postgres clauses docs site clean

help: ## Explain the targets (this text)
	@echo "Tenure: a durable run orchestrator. Targets:"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Each target makes .venv first when it is missing or out of date."

setup: $(STAMP) ## Make .venv with the pinned packages and tenure itself

demo: $(STAMP) ## Watch a release survive the death of its worker (15 seconds)
	$(BIN)/tenure demo

# Two processes for each core: much of a test is waiting for processes it has started.
test: $(STAMP) ## Run the whole test suite (PostgreSQL included, nothing to install)
	$(BIN)/python -m pytest --numprocesses $$($(BIN)/python -c 'import os; print(min(8, 2 * os.cpu_count()))') --dist loadfile

# The inner loop: the kernel, the orchestrator on SQLite, the SDK; what starts processes or draws many cases is left to `make test`.
QUICK      := kernel leaf profiles doctor proof expressions declared engine conformance sdk
NOT_QUICK  := expressions/test_cost.py conformance/test_group_commit.py sdk/test_crashes.py sdk/test_concurrency.py
quick: $(STAMP) ## Run the quick part of the suite, on SQLite (under a minute)
	$(BIN)/python -m pytest -q --numprocesses 4 --dist loadfile -k 'not postgres' $(QUICK:%=tests/%) $(NOT_QUICK:%=--ignore=tests/%)

check: $(STAMP) ## Check format, lint, strict types, layers and the tidy rules
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python tools/long_modules.py
	$(BIN)/python -m pytest -q tests/test_tidy.py

format: $(STAMP) ## Rewrite the code in the project's format and fix what lint can fix
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

hunt: $(STAMP) ## Hunt for lost and doubled work with real kills, cuts and crashes, and fuzz (an hour; HUNT="chaos --share 0.1" for a part)
	$(BIN)/python -m tests.chaos.hunt $(HUNT)

bench: $(STAMP) ## Measure the figures against this machine's own floor
	$(BIN)/python -m bench

# Both install Debian packages into a folder beneath /var/tmp, once; that needs root and apt (tests/chaos/debian.py).
failover: $(STAMP) ## Kill the primary of a Patroni cluster under load, and count what was lost (as root)
	$(BIN)/python -m tests.chaos.failover

VERSION ?= 15 17 18
postgres: $(STAMP) ## Run the store's tests on PostgreSQL 15, 17 and 18, or on VERSION=15 (as root)
	$(BIN)/python -m tests.chaos.postgres_versions $(VERSION)

clauses: $(STAMP) ## List the clauses of docs/spec, how each is shown, and by which tests
	$(BIN)/python -m tools.clauses

# Every generator of documentation is listed here; the tests check that their output is fresh.
docs: $(STAMP) ## Regenerate the generated documentation and SQL
	$(BIN)/tenure lifecycle docs
	$(BIN)/python -m tools.error_pages
	$(BIN)/python -m tools.json_schemas
	$(BIN)/python -m tools.roles_page
	$(BIN)/python -m tools.connectors_page
	$(BIN)/python -m tools.firestore_indexes
	$(BIN)/python -m tools.save_variants
	$(BIN)/python -m tools.sql_schemas
	$(BIN)/python -m tests.chaos.bug_table

site: $(STAMP) ## Build the documentation as a site in build/site; links and anchors are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Tenure needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)." >&2; \
	  echo "Name another one:  make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "==> Making $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	@echo "==> Installing tenure and its pinned packages"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev]' -c constraints.txt
	@touch $@
