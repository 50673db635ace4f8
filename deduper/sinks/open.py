"""Opens the ports of a job that are topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from threading import Event
from typing import TYPE_CHECKING

from bucket_store.compiled import ready
from bucket_store.log.commit_log import CommitLog
from deduper.config.kafka.sections import KafkaSink
from deduper.sinks.publish_state import OnUnknown
from deduper.spark.hdfs_login import LogsIn, needs_none

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deduper.sinks.topics import KafkaPorts


def open_topics(
    sinks: Mapping[str, KafkaSink],
    deadline_us: int,
    log: CommitLog,
    unpublished: OnUnknown,
    stop: Event,
    session: Callable[[], SparkSession] | None = None,
    logged_in: LogsIn = needs_none,
) -> contextlib.AbstractContextManager[KafkaPorts | None]:
    """The ports that are topics, by name; None for none. `unpublished`: see `deduper run --unpublished`.

    Waits until the deadline for brokers that do not answer. Warns of topics that were made again since the newest
    commit. With a `session`, Spark's executors send the rows (`logged_in`); otherwise this process does.
    """
    if not sinks:
        return contextlib.nullcontext()
    # Kafka's client is optional.
    from deduper.sinks.publisher import ThreadPublisher
    from deduper.sinks.task_publisher import TaskPublisher
    from deduper.sinks.topics import KafkaPorts

    publisher = ThreadPublisher() if session is None else TaskPublisher(session, stop, logged_in)
    ports = KafkaPorts(sinks, deadline_us / 1_000_000, log, publisher, unpublished, stop)
    ports.compare_topics()
    return contextlib.closing(ports)


def load_sending() -> None:
    """Load, or compile, the kernel that sends rows to topics."""
    from deduper.sinks.row_sender import KERNELS

    ready(*KERNELS)
