.DEFAULT_GOAL := help
.PHONY: help setup check docs dist test test-share test-rest test-laws test-all run cluster demo faults mutants bench lock clean

DIST = dist

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## Make .venv from the locked requirements (PYTHON=... chooses the Python)
	@PYTHON="$(PYTHON)" bash requirements/setup

check: setup ## Lint, check the format, the types, the import contracts, the words, and the locked packages for known vulnerabilities
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python -m tests.words
	bash requirements/audit

docs: ## Build the pages into site/, with links that are checked; they need no internet
	@PYTHON="$(PYTHON)" bash requirements/setup docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs:. .venv/bin/python -m mkdocs build --strict

dist: setup ## Build the wheel, the sdist, and the list of the locked packages (CycloneDX) into dist/
	.venv/bin/python -m hatchling build --directory $(DIST)
	.venv/bin/python requirements/sbom.py requirements/onceload.txt > $(DIST)/onceload.cdx.json

# The tests start hundreds of processes. Without bytecode, each of them would compile the modules again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE .venv/bin/pytest --durations 15

test: setup ## Run all but the long tests, four at a time (ARGS=... goes to pytest)
	$(PYTEST) --numprocesses 4 --dist worksteal -m "not long" $(ARGS)

test-rest: setup ## Run the long tests: the whole of Airflow, clusters, many loads at once, the other Postgres
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder -m long $(ARGS)

test-laws: setup ## Try each law with ten times as many examples: 1 000 where make test has 100
	$(PYTEST) --numprocesses 3 --dist worksteal -m "hypothesis and not long" --hypothesis-profile full $(ARGS)

# The time of a commit decides where they begin, so that each of them runs within a few commits.
TURN = --turn $$(git show --no-patch --format=%ct HEAD)

test-share: setup ## Run a share of the long tests and the laws: what fits into 15 minutes, from a place that turns with the commit
	$(MAKE) test-rest ARGS="$(TURN) --minutes-max 11"
	$(MAKE) test-laws ARGS="$(TURN) --minutes-max 4"

test-all: test test-rest test-laws ## Run every test, and every law with ten times as many examples

run: setup ## Run Postgres, Airflow and sample files that grow, until Ctrl-C
	.venv/bin/onceload run $(ARGS)

cluster: setup ## Run a Spark master and two workers, until Ctrl-C
	.venv/bin/onceload cluster $(ARGS)

demo: setup ## Load days, kill a worker, break a file, recover rows; report each step with numbers (about five minutes)
	.venv/bin/onceload demo

faults: setup ## Kill servers, workers and connections for hours, and print what was lost or repeated (ARGS="--only loads": one part)
	.venv/bin/python -m tests.fault.report $(ARGS)

mutants: setup ## Plant known bugs, and show that the tests catch each
	.venv/bin/python -m tests.mutants

bench: setup ## Measure, after checking the rows
	.venv/bin/python -m bench

lock: setup ## Resolve the requirements again
	bash requirements/lock

clean: ## Remove what can be made again (not .onceload: it holds data)
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
