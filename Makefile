# Each target sets up all that it needs; nothing to do first.  `make` alone lists them.
SHELL := /bin/bash
PY := .venv/bin/python
BOOT := $(shell for name in "$$OUTBOX_PYTHON" python3.11 python3.12 python3.13 python3 python; do \
	[ -n "$$name" ] && "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 7))' >/dev/null 2>&1 </dev/null \
	&& { echo "$$name"; break; }; done)

UV = $(shell for name in uv .venv/bin/uv; do \
	"$$name" --version >/dev/null 2>&1 </dev/null && { echo "$$name"; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help setup play demo demo-azure azure test check docs docs-check bench charts bench-streams bench-azure bench-peers explore foreign soak spark-package clean check-infra lock dist

help:
	@echo 'make play    a page in a browser: kill workers, lose replies, and watch the promise hold (ARGS="--no-browser")'
	@echo 'make demo    the whole system at work on this machine'
	@echo 'make demo-azure  the same job through the Azure SDKs and Functions hosts, on emulators that fail on demand'
	@echo 'make azure   Cosmos DB, Service Bus and Functions emulated on this machine, the sample bank in them (ARGS="--hosts 2")'
	@echo 'make test    static checks and all tests, as CI runs them (ARGS="-k name" goes to pytest)'
	@echo 'make check   static checks only: ruff, mypy --strict, import-linter'
	@echo 'make docs    the documentation as a site, into build/site (installs Sphinx, which nothing else needs)'
	@echo 'make docs-check  the same, and every page of it in a Chromium or Chrome that is installed'
	@echo 'make check-infra  the templates in infra/, and what has to agree with them'
	@echo 'make bench   measure and publish to docs/benchmarks (ARGS="--repeats 1 --only sqlite")'
	@echo 'make charts  draw what was published (installs matplotlib, which nothing else needs)'
	@echo 'make bench-streams  ordered logs and processors beside SQLite and our own handlers'
	@echo 'make bench-azure  every scope, kind of key, round trip and concurrency beside the bare SDKs (hours)'
	@echo 'make bench-peers  W1 beside DBOS, which is installed into build/bench-peers-venv; optional, some minutes'
	@echo 'make explore  every interleaving of the three protocols under each single fault; publishes its table'
	@echo 'make foreign  Microsoft'"'"'s tests of its SDKs against our emulators; needs the index (ARGS="--suite azure-cosmos --only test_crud.py")'
	@echo 'make soak    drawn faults, kills, explorations, fuzz (ARGS="--minutes 10 --only drawn"), into a table: hours'
	@echo 'make dist    what a release publishes, into dist: built, checked, installed and run in an empty environment'
	@echo 'make lock    requirements.lock and tools/release.lock, kept where they still fit (ARGS="--upgrade" for the newest)'
	@echo 'make spark-package  the zip, wheel and requirements for a Spark pool, into build/spark'
	@echo 'make clean   remove what was made here: .venv, build, demo.data, azure.data, caches; wheels in your cache folder stay'

setup:
	@test -n "$(BOOT)" || { echo 'no Python runs here; install Python 3.11, 3.12 or 3.13' >&2; exit 2; }
	@$(BOOT) tools/setup.py

play: setup
	@$(PY) -m outbox play $(ARGS)

demo: setup
	@$(PY) -m tools.demo $(ARGS)

demo-azure: setup
	@$(PY) -m tools.demo_azure $(ARGS)

azure: setup
	@$(PY) -m tools.local_azure $(ARGS)

test:
	@.ci/run $(ARGS)

check: setup
	@$(PY) tools/check.py

docs:
	@test -n "$(BOOT)" || { echo 'no Python runs here; install Python 3.11, 3.12 or 3.13' >&2; exit 2; }
	@$(BOOT) tools/setup.py --docs
	@$(PY) -m tools.site

docs-check: docs
	@$(BOOT) tools/setup.py --browser
	@$(PY) -m tools.site_check $(ARGS)

check-infra: setup
	@$(PY) -m tools.infra_check

bench: setup
	@$(PY) -m benchmarks.run $(ARGS)
	@$(PY) -m tests.docs.figures
	@$(MAKE) --no-print-directory charts

charts: setup
	@$(PY) -c 'import matplotlib' 2>/dev/null || $(PY) -m pip install -q 'matplotlib>=3.9,<4'
	@$(PY) -m benchmarks.charts

bench-streams: setup
	@$(PY) -m benchmarks.bench_streams $(ARGS)

bench-azure: setup
	@$(PY) -m outbox_bench.bench_latency --full $(ARGS)

bench-peers: setup
	@$(PY) -m benchmarks.peers_run $(ARGS)

explore: setup
	@$(PY) -m tests.simulation.explore $(ARGS)

foreign: setup
	@$(PY) -m tests.foreign.run $(ARGS)

soak: setup
	@$(PY) -m tools.soak $(ARGS)

spark-package: setup
	@$(PY) -m spark_jobs.package $(ARGS)

dist:
	@test -n "$(BOOT)" || { echo 'no Python runs here; install Python 3.11, 3.12 or 3.13' >&2; exit 2; }
	@$(BOOT) -m tools.release dist

# One file for Python 3.11 to 3.13: Azure runs 3.13, and where versions differ a marker says so.  With hashes, so that what
# a deployment installs is what was looked at, whatever the index serves by then.
lock:
	@[ -n "$(UV)" ] || { echo 'needs uv: pip install uv' >&2; exit 2; }
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command 'make lock' $(ARGS) requirements.txt -o requirements.lock
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command 'make lock' $(ARGS) --group release -o tools/release.lock

clean:
	@rm -rf .venv build dist demo.data azure.data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
