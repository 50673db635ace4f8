"""The logger of all Kafka clients, in the driver and in the tasks, which load no settings."""

from __future__ import annotations

import logging

QUIET = logging.getLogger("deduper.kafka.client")
"""Takes librdkafka's lines about lost connections; those that matter come as errors too, which the caller reports."""
QUIET.setLevel(logging.CRITICAL)
