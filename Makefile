# One word per task. `make` alone lists them: a target shows up when a `##` comment follows it.
# PYTHON=... chooses the interpreter for .venv; ARGS=... is passed on to pytest, the demo or the bench.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
INSTALLED := $(VENV)/.installed
JOBS ?= 2
ARGS ?=

# Editing the C core installs anew, which builds it.
NATIVE := $(wildcard src/ratekeeper/native/*.[ch] src/ratekeeper/algorithms/*.h)

# Branch coverage of these is 100 %: no clock, no I/O, so no excuse.  What the C core replaces is run without it too.
FLOORS := src/ratekeeper/algorithms/*,src/ratekeeper/limit.py,src/ratekeeper/decision.py,src/ratekeeper/check.py,src/ratekeeper/units.py,src/ratekeeper/keys.py,src/ratekeeper/flow/effects.py,src/ratekeeper/flow/queue.py,src/ratekeeper/flow/acquire.py,src/ratekeeper/flow/settle.py

# Tools and the redis-server that ensure-redis may have put there are found first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Python compiles our files once for a test run, not again in each of the processes that the run starts.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run demo test full real lint format types coverage bench conformance sanitize fuzz wheel docs changelog clean distclean

help:
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp is as old as the last complete installation; editing pyproject.toml or the C core makes it stale.
# The build leaves an egg-info in src/, a second and soon outdated record of our pytest plugin: away with it.
$(INSTALLED): pyproject.toml setup.py scripts/make-venv scripts/ensure-nghttp2 $(NATIVE)
	@sh scripts/make-venv $(VENV)
	@echo "installing ratekeeper with all extras into $(VENV) (a minute or two the first time)"
	@$(PIP) install --upgrade 'pip>=25.1'
	@rm -f src/ratekeeper/native/*.so
	@sh scripts/ensure-nghttp2
	@$(PIP) install --editable '.[all]' --group dev
	@rm -rf src/ratekeeper.egg-info
	@touch $@

# Groups that only one target needs are installed when that target is first asked for.
$(VENV)/.group-%: $(INSTALLED)
	@$(PIP) install --group $*
	@touch $@

setup: $(INSTALLED) ## create .venv and install the project with everything it needs

run: $(INSTALLED) ## start the service with its dashboard and sample rules (Ctrl-C ends it)
	@$(PY) -m ratekeeper serve src/ratekeeper/service/sample.toml $(ARGS)

demo: $(INSTALLED) ## show the six algorithms live in the terminal
	@$(PY) -m ratekeeper.demo $(ARGS)

# The quick tier: every test, with fewer random steps and examples (tests/tier.py).
test: $(INSTALLED) ## run the quick suite on $JOBS processes (2), in a minute
	@$(PY) scripts/ensure-redis >/dev/null
	@$(PY) scripts/ensure-redis --valkey >/dev/null
	@$(PY) scripts/ensure-postgres >/dev/null
	@$(PY) -m pytest -n $(JOBS) -m "not real" --ignore tests/real $(ARGS)

full: export RATEKEEPER_FULL := 1
full: test ## run the same suite with every step, example and seed

# pytest exits 5 when nothing was collected: fine as long as there is no tests/real.
real: $(VENV)/.group-real $(VENV)/.group-docs ## run the slow tests on real servers and real time (SHORT=1 for minutes less)
	@$(PY) scripts/ensure-redis >/dev/null
	@$(PY) scripts/ensure-redis --valkey >/dev/null
	@$(PY) scripts/ensure-postgres >/dev/null
	@$(PY) scripts/ensure-tools 2>/dev/null | grep '^no ' || true
	@$(PY) scripts/ensure-upstream-ratelimit 2>/dev/null | grep '^no ' || true
	@$(PY) scripts/ensure-arq >/dev/null 2>&1 || echo "no arq here: its test is skipped"
	@RATEKEEPER_REAL_SHORT=$(SHORT) $(PY) -m pytest -m real --timeout 600 $(ARGS) \
		|| { code=$$?; [ $$code -eq 5 ] && [ ! -d tests/real ]; }

lint: $(INSTALLED) ## check style, formatting and that no test sleeps
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) scripts/no-sleeping tests

format: $(INSTALLED) ## rewrite the code the way lint wants it
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

types: $(INSTALLED) ## check types, strictly
	@$(PY) -m mypy

coverage: export RATEKEEPER_FULL := 1
coverage: $(INSTALLED) ## measure branch coverage; the pure floors must have 100 %
	@$(PY) scripts/ensure-redis >/dev/null
	@$(PY) scripts/ensure-redis --valkey >/dev/null
	@$(PY) scripts/ensure-postgres >/dev/null
	@$(PY) -m coverage erase
	@$(PY) -m coverage run -m pytest -n $(JOBS) -m "not real" $(ARGS)
	@RATEKEEPER_PURE=1 $(PY) -m coverage run -m pytest -q -n $(JOBS) tests/test_check.py tests/test_decision.py tests/test_limit.py tests/test_limiter.py tests/test_reservation.py tests/algorithms/test_unlimited.py tests/flow
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report
	@$(PY) -m coverage report --include='$(FLOORS)' --fail-under=100

bench: $(VENV)/.group-bench ## measure, beside the peers (ARGS=--help lists what)
	@$(PY) scripts/ensure-redis >/dev/null
	@$(PY) scripts/ensure-redis --valkey >/dev/null
	@$(PY) scripts/ensure-postgres >/dev/null
	@$(PY) -m bench $(ARGS)

# The peers go into build/conformance; what cannot be installed here is skipped, with a line that says why.
conformance: $(INSTALLED) ## judge ratekeeper and other rate limiters by the conformance suite, and write its page
	@$(PY) scripts/ensure-redis >/dev/null
	@$(PY) -m conformance install
	@$(PY) -m conformance run --target all --out conformance/results/latest.json $(ARGS) || true
	@$(PY) -m conformance page

sanitize: $(INSTALLED) ## run the C core under sanitizers and a leak check
	@sh scripts/sanitize

# A machine without a wheel of atheris fuzzes too, unguided, and says so.
$(VENV)/.fuzzers: $(INSTALLED)
	@$(PIP) install --group fuzz 2>/dev/null || true
	@touch $@

SECONDS ?= 60
fuzz: $(VENV)/.fuzzers ## feed every parser hostile bytes, guided by coverage, for $SECONDS each (60)
	@$(PY) -m fuzz --seconds $(SECONDS) $(ARGS)

# The path in build/ of an earlier build would be packed too. The wheel is built from the source archive, so that has all.
# TRY=... names more interpreters to try the wheel on.
wheel: $(INSTALLED) ## build an archive and a wheel into dist/, and try both where there is no compiler
	@rm -rf build/lib* build/bdist* dist
	@$(PY) -m build --outdir dist . >/dev/null
	@rm -rf src/ratekeeper.egg-info
	@ls dist
	@sh scripts/try-install "$(CURDIR)"/dist/*.whl native $(PY) $(TRY)
	@sh scripts/try-install "$(CURDIR)"/dist/*.tar.gz pure $(PY)

# Not --quiet: it hides warnings from strict mode too, and then a broken link passes.
docs: $(VENV)/.group-docs ## build the site into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir build/site
	@echo "build/site/index.html"

changelog: $(INSTALLED) ## fold changelog.d/ into CHANGELOG.md (DRAFT=1 only shows it)
	@$(PY) -m towncrier build --yes $(if $(DRAFT),--draft) \
		--version "$$($(PY) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"

clean: ## remove what was built or cached
	@rm -rf build dist src/*.egg-info .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	@rm -rf $(VENV)
