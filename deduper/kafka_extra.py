"""Whether Kafka's client is there: extra `kafka`, which jobs on files alone do without."""

from __future__ import annotations

from importlib.util import find_spec

MISSING = "Kafka's client is not installed"
REMEDY = "in the clone, pip install -e '.[kafka]'"


def is_client_installed() -> bool:
    """Looked for only: importing it loads librdkafka."""
    return find_spec("confluent_kafka") is not None
