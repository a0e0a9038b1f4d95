# Everything a developer or CI does. Needs Python >= 3.11 and make; `make help` lists the targets.
PYTHON ?= python3
PIP := .venv/bin/pip install --quiet --disable-pip-version-check
PYTEST := .venv/bin/python -m pytest
CORES := $(shell getconf _NPROCESSORS_ONLN)
# The rooms are measured by the first; the second starts processes, which tell little of their branches.
MEASURED := tests/contract tests/property tests/unit
SERVERS := client/tests devserver/tests tests/api
QUICK := $(MEASURED) $(SERVERS)
CLUSTER := tests/chart tests/e2e tests/gitops tests/operator tests/security tests/upgrade
# Tests wait for processes much of the time, so more of them run than there are cores.
WORKERS := -n $(shell expr 2 '*' $(CORES)) --dist loadfile --no-loadscope-reorder
# Not on an index when the locks are made.
OURS := --no-emit-package agentmemory-client
ASSETS = KUBEBUILDER_ASSETS="$$($(PYTHON) tests/controlplane/build.py | tail -n 1)"

.PHONY: help setup demo dev test test-unit test-quick test-servers test-cluster test-faults test-again e2e-kind image-check coverage mutants lint types bench crds crds-check completions manifests gitops controlplane audit release-check docs check lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.version.split()[0]} found: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv

# What users run; `make demo` needs no more.
.venv/.run: requirements/run.txt pyproject.toml client/pyproject.toml devserver/pyproject.toml | .venv/bin/python
	@echo "installing the locked packages into .venv ..."
	@$(PIP) --require-hashes -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation -e client -e devserver -e .
	@touch $@

# What the tests need on top.
.venv/.dev: requirements/dev.txt .venv/.run
	@echo "installing the locked development packages into .venv ..."
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.mutants: requirements/mutants.txt .venv/.dev
	@$(PIP) --require-hashes -r requirements/mutants.txt
	@touch $@

setup: .venv/.dev ## .venv/ with everything, `agentmemory` in .venv/bin

demo: .venv/.run ## the main job end to end, on this machine alone
	@.venv/bin/python examples/demo.py

dev: .venv/.run ## the dev stack on the quickstart, until Ctrl-C
	@.venv/bin/agentmemory dev --manifests examples/quickstart --port 8080

controlplane: ## build or find the servers for tests; prints the folder of kube-apiserver, etcd, kubectl
	@$(PYTHON) tests/controlplane/build.py

test-unit: .venv/.dev ## decisions and translations alone: after every change
	@$(PYTEST) -q tests/unit -n $(CORES) --dist worksteal

test-quick: .venv/.dev ## all that needs no control plane: before a commit
	@$(PYTEST) $(QUICK) -m "not faults" $(WORKERS)

test-servers: .venv/.dev ## of those, the retrieval API and the dev Qdrant
	@$(PYTEST) $(SERVERS) -m "not faults" $(WORKERS)

coverage: .venv/.dev ## the others of those; fails where they take too few branches of the rooms
	@.venv/bin/coverage erase
	@.venv/bin/coverage run -m pytest $(MEASURED) -m "not faults" $(WORKERS)
	@.venv/bin/coverage combine --quiet
	@.venv/bin/coverage report

test-cluster: .venv/.dev ## what needs a control plane, but the faults
	@$(ASSETS) $(PYTEST) $(CLUSTER) -m "not faults" $(WORKERS)

test: test-quick test-cluster ## every test but the faults

test-faults: .venv/.dev ## enumerated kills, soaks, large counts
	@$(ASSETS) $(PYTEST) -m faults $(WORKERS) --timeout 1800

e2e-kind: .venv/.dev ## tests/e2e in a cluster that kind makes, from the image; needs docker or podman
	@.venv/bin/python -m tests.e2e.kind

test-again: .venv/.dev ## what failed last, alone
	@$(ASSETS) $(PYTEST) --last-failed --timeout 1800

mutants: .venv/.mutants ## change the source at random, see whether tests notice: SEED=1 EACH=15 AREAS="chains fence"
	@nice .venv/bin/python tests/mutants/run.py $(SEED:%=--seed %) $(EACH:%=--each %) $(AREAS)

lint: .venv/.dev ## format, lint, layers
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/lint-imports

types: .venv/.dev ## mypy, strict
	@.venv/bin/mypy

crds: .venv/.run ## write crds/ and the chart's copy from the models
	@.venv/bin/agentmemory crds --write

crds-check: crds ## fail where crds/ is not what the models say
	@git diff --exit-code --stat -- crds charts || { echo "crds/ was not current: commit what 'make crds' wrote" >&2; exit 1; }

audit: .venv/.dev ## known vulnerabilities of the locked packages, and credentials in the files; offline
	@.venv/bin/python release/audit.py
	@.venv/bin/python release/secret_scan.py

release-check: .venv/.dev ## make and try everything that a release has, into dist/, from one version; pushes nothing
	@$(PYTHON) tests/controlplane/build.py > /dev/null
	@rm -rf dist
	@.venv/bin/python release/check.py dist

completions: .venv/.dev ## write what a shell completes, from the verbs; tests/unit fails where it is not current
	@.venv/bin/python -m tests.support.completions

manifests: .venv/.dev ## write examples/install from the chart; tests/chart fails where it is not current
	@$(ASSETS) .venv/bin/python -m tests.chart.manifests

gitops: .venv/.run ## write Argo CD's settings from the Lua in gitops/
	@.venv/bin/python gitops/argocd/render.py

bench: .venv/.dev ## measure against the bare engine; prints the tables of bench/README.md
	@.venv/bin/python -m bench

docs: .venv/.dev ## check that every setting, reason and command is documented
	@$(PYTEST) -q tests/unit/docs

check: lint types crds-check audit docs test ## what has to pass before a commit

lock: | .venv/bin/python ## resolve requirements/*.txt anew
	@$(PIP) uv
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) \
	  requirements/build.in pyproject.toml client/pyproject.toml devserver/pyproject.toml -o requirements/run.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --extra fastembed --group dev \
	  -c requirements/run.txt requirements/build.in pyproject.toml client/pyproject.toml devserver/pyproject.toml \
	  -o requirements/dev.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --no-emit-package wordllama \
	  -c requirements/run.txt pyproject.toml -o requirements/image.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --no-emit-package wordllama \
	  --extra fastembed -c requirements/dev.txt pyproject.toml -o requirements/image-fastembed.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-deps \
	  -c requirements/run.txt requirements/weights.in -o requirements/weights.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) --group mutants \
	  -c requirements/dev.txt -o requirements/mutants.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(OURS) \
	  -c requirements/run.txt requirements/build.in requirements/sbom.in -o requirements/build.txt

# Nothing is installed. The locks are for the image's Python, in Debian 12 (glibc 2.36); weights.txt is of no platform.
image-check: | .venv/bin/python ## ask the package index for a wheel of each of the image's packages, for amd64 and arm64
	@$(PIP) uv
	@for platform in x86_64 aarch64; do for lock in requirements/image*.txt; do \
	  .venv/bin/uv pip install --no-config --dry-run --quiet --require-hashes --only-binary :all: --python-version 3.11 \
	    --python-platform $$platform-manylinux_2_28 --target .venv/.none -r $$lock || exit 1; \
	  echo "$$lock: wheels for $$platform"; \
	done; done

clean: ## remove .venv
	rm -rf .venv
