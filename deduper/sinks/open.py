"""Opens the ports of a job that are topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from bucket_store.log.commit_log import CommitLog
from deduper.config.model import Config
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deduper.sinks.topics import KafkaPorts


def open_topics(
    config: Config,
    log: CommitLog,
    session: Callable[[], SparkSession],
    unpublished: OnUnknown,
    stop: Event,
    *,
    by_tasks: bool,
) -> contextlib.AbstractContextManager[KafkaPorts | None]:
    """The ports that are topics; None for a job without any. `unpublished`: see `deduper run --unpublished`.

    What is sent once is sent `by_tasks` of Spark's executors, or by this process.
    """
    if not config.topic_ports:
        return contextlib.nullcontext()
    # Kafka's client is optional.
    from deduper.sinks.publisher import ThreadPublisher
    from deduper.sinks.task_publisher import TaskPublisher
    from deduper.sinks.topics import KafkaPorts

    publisher = TaskPublisher(session, stop) if by_tasks else ThreadPublisher()
    return contextlib.closing(KafkaPorts(config, log, session, publisher, unpublished, stop))
