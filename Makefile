# Stillframe. `make demo` and `make test` set up all they need; `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# Films of `make demo`: all, or a comma-separated choice such as ONLY=render
ONLY ?= all
OUTPUT ?= demo-out
# what the chosen films need installed: a choice without video and nerf installs no torch
comma := ,
FILMS := $(if $(filter all,$(subst $(comma), ,$(ONLY))),video nerf,$(filter video nerf,$(subst $(comma), ,$(ONLY))))

.DEFAULT_GOAL := help
.PHONY: help setup setup-video setup-nerf demo test lint types format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.render ## virtual environment with `farm` for render and encode jobs (setup-video, setup-nerf: those too)

setup-video setup-nerf: setup-%: $(VENV)/.%

demo: $(VENV)/.render $(FILMS:%=$(VENV)/.%) ## make the demo films, each verified; the last line is the turntable's path
	@sh scripts/debian_packages.sh --optional bwrap=bubblewrap '/usr/lib/*/libLLVM.so.1[7-9]*=libllvm19' 1>&2
	@$(BIN)/farm demo --only "$(ONLY)" --output "$(OUTPUT)"

test: $(VENV)/.dev ## set up PostgreSQL, Redis, Chromium and Blender for the tests, and run them
	@sh scripts/debian_packages.sh redis-server=redis-server '/usr/lib/postgresql/*/bin/initdb=postgresql' \
		chromium=chromium bwrap=bubblewrap
	@FARM_BLENDER_HOME="$${FARM_BLENDER_HOME:-$(CURDIR)/.blender}" $(BIN)/farm blender install \
		|| echo "no Blender here: its tests are skipped" 1>&2
	$(BIN)/python -m pytest $(PYTEST)

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## print the figures of tests/benchmarks with the hardware that they were seen on
	$(BIN)/python -m tests.benchmarks

clean: ## remove the virtual environment, caches and the demo's output
	rm -rf $(VENV) .blender build demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: sudo apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh scripts/debian_packages.sh /nonexistent=python3-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.render: $(VENV)/.core
	@command -v redis-server >/dev/null 2>&1 || command -v valkey-server >/dev/null 2>&1 \
		|| $(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e '.[broker]'
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e '.[render]'
	@touch $@

$(VENV)/.video $(VENV)/.nerf: $(VENV)/.%: $(VENV)/.render
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(VENV)/.dev: $(VENV)/.render
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e '.[render,broker,video,nerf,dev]'
	@touch $@
