.DEFAULT_GOAL := help
.PHONY: help setup quickstart docs check test services kafka crash fuzz differential mutants format bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: ## .venv with the project and the tools of the tests; a Java for Spark
	@scripts/setup.sh test

quickstart: ## a million lines of a web log through the real job, in ./demo
	@scripts/quickstart.sh

docs: setup ## the pages of docs/ as a site, in build/docs; writes their generated parts first
	@.venv/bin/python scripts/reference.py
	@.venv/bin/sphinx-build -W -n --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

check: ## lint, format, types, layers, and the fast tests
	@scripts/test.sh --fast

test: ## the same with all tests: Spark, services, crashes
	@scripts/test.sh

services: setup ## the tests on a real Kafka, which they start
	@.venv/bin/python -m pytest -m services tests/services

kafka: ## a Kafka broker in the foreground, for a person: TOPICS="clicks:4 unique:4", PORT=9092
	@scripts/kafka.sh --port $(or $(PORT),9092) $(TOPICS)

crash: setup ## kill driver, JVM, executors, machine, HDFS at every failpoint; KILLS=n adds n at random, SEED=s repeats a session
	@CRASH_ALL=1 CRASH_KILLS=$(KILLS) CRASH_SEED=$(or $(SEED),random) .venv/bin/python -m pytest -m "crash or services" tests/crash tests/services/test_hdfs_outages.py

fuzz: setup ## look for inputs that break a decoder; SECONDS=n for each (60), TARGET=name for one
	@.venv/bin/python -c 'import atheris' 2>/dev/null || .venv/bin/python -m pip install --quiet --editable '.[fuzz]'
	@.venv/bin/python -m tests.fuzz $(TARGET) -max_total_time=$(or $(SECONDS),60)

differential: setup ## both readers of files against each other and the rules, every cell (an hour); SEED=n varies what is random
	@DIFFERENTIAL_ALL=1 DIFFERENTIAL_SEED=$(or $(SEED),1) .venv/bin/python -m pytest -m "spark or not spark" -s \
		tests/deduper/tasks/readers/test_parquet_damage.py tests/spark/test_*_differential.py tests/spark/test_text_against_spark.py tests/spark/test_exchange_contents.py

mutants: setup ## change critical modules a little, one line at a time: the tests must fail; MODULES="a.py b.py", SAMPLE=n of each
	@.venv/bin/python -c 'import cosmic_ray' 2>/dev/null || .venv/bin/python -m pip install --quiet --editable '.[mutation]'
	@.venv/bin/python -m tests.mutation $(MODULES) --sample $(or $(SAMPLE),0) --seed $(or $(SEED),1)

format: setup ## put the code into its form
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

bench: setup ## the service beside the same pipeline without it and Spark's own dedup; PRESET=quick, standard, all
	@.venv/bin/deduper bench --preset $(or $(PRESET),standard)

clean: ## remove caches and the demo; .venv stays
	@rm -rf demo demo-kafka bench build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache *.egg-info
	@find bucket_store deduper tests -name __pycache__ -type d -prune -exec rm -rf {} +
