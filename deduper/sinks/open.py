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
) -> contextlib.AbstractContextManager[KafkaPorts | None]:
    """The ports that are topics; None for a job without any. `unpublished`: see `deduper run --unpublished`."""
    if not config.topic_ports:
        return contextlib.nullcontext()
    # Kafka's client is optional.
    from deduper.sinks.topics import KafkaPorts

    return contextlib.closing(KafkaPorts(config, log, session, unpublished, stop))
