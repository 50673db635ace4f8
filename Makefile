.DEFAULT_GOAL := help
.PHONY: help setup quickstart docs check test changed all kafka fuzz mutants format bench clean

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

check: ## after every save, a minute: lint, form, types, layers, and the tests that start nothing
	@scripts/test.sh --fast

test: ## before every change goes in, a quarter of an hour: the same with Spark, Kafka, HDFS and kills
	@scripts/test.sh

changed: setup ## ten minutes more: the tests of `make all` that guard what differs from SINCE=commit (HEAD)
	@.venv/bin/python -m tests.changed $(SINCE)

all: ## by night, two to three hours: everything; PART=2/7 is one part, SEED=n repeats a run
	@scripts/test.sh --all $(PART) $(if $(SEED),--seed $(SEED))

kafka: ## a Kafka broker in the foreground, for a person: TOPICS="clicks:4 unique:4", PORT=9092
	@scripts/kafka.sh --port $(or $(PORT),9092) $(TOPICS)

fuzz: ## look for inputs that break a decoder; SECONDS=n for each (60), TARGET=name for one
	@scripts/setup.sh night
	@.venv/bin/python -m tests.fuzz $(TARGET) -max_total_time=$(or $(SECONDS),60)

mutants: ## change critical modules a little, one line at a time: the tests must fail; MODULES="a.py b.py", TOTAL=n, TIER=change
	@scripts/setup.sh night
	@.venv/bin/python -m tests.mutation $(MODULES) --total $(or $(TOTAL),0) --tier $(or $(TIER),night) --seed $(or $(SEED),1)

format: setup ## put the code into its form
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

bench: setup ## the service beside the same pipeline without it and Spark's own dedup; PRESET=quick, standard, all
	@.venv/bin/python -m tests.bench --preset $(or $(PRESET),standard)

clean: ## remove caches and the demo; .venv stays
	@rm -rf demo demo-kafka bench build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache *.egg-info
	@find bucket_store deduper tests -name __pycache__ -type d -prune -exec rm -rf {} +
