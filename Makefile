# Prerequisites: Linux, Python >= 3.11 with venv, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Test files run at a time.
WORKERS ?= 2
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: demo test editor screenshots loss-parity setup setup-dev chromium check format test-slow clean

demo: setup ## run the whole way once, then serve the dashboard; ARGS="--no-serve" to stop before
	$(BIN)/dcpm demo $(ARGS)

test: setup-dev chromium ## everything that CI runs
	$(MAKE) check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
	$(BIN)/python tests/check_wheel.py

check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: setup-dev chromium ## the longer checks, marked `slow`
	$(BIN)/python -m pytest -m slow

STEPS ?= 200
OUT ?= docs/loss_parity.json
loss-parity: setup-dev ## train under DCP and densely, compare the losses: STEPS=200 OUT=FILE
	$(BIN)/python examples/loss_parity.py --steps $(STEPS) --out $(OUT)

editor: ## bundle the editor of the dashboard anew from dashboard/editor; needs node and npm
	cd dashboard/editor && npm ci --ignore-scripts --no-audit --no-fund && npm run build

screenshots: setup-dev chromium ## take the pictures of the dashboard in docs/pictures anew; ARGS="overview mask" for some
	$(BIN)/python docs/make_screenshots.py $(ARGS)

setup: $(VENV)/.installed-runtime ## install what the demo needs

setup-dev: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[runtime,dashboard,kahypar]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed-runtime

chromium: ## the browser of the browser tests; without root the tests say what to install
ifeq ($(CHROMIUM),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	fi; command -v chromium >/dev/null \
	|| echo "Chromium is missing: browser tests will be skipped. Install it: apt-get install chromium"
endif

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
