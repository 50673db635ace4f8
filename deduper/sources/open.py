"""Opens a job's source: the settings of its session, and the source itself."""

from __future__ import annotations

import time
from threading import Event

from bucket_store.log.commit_log import CommitLog
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, OrderedExpiry, ProcessingTimeExpiry
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.batch import FileBatches
from deduper.sources.files.folding import FilesToFold
from deduper.sources.files.judged import KnownFiles
from deduper.sources.protocol import PlannedSource
from deduper.tasks.warm import JobKernels

WORKER_DAEMON = "deduper.tasks.worker_daemon"
"""The module that Spark starts as its daemon of Python workers. Not imported: that would patch PySpark's own here."""


def session_settings(config: Config) -> dict[str, object]:
    """The settings of a session for this job: those that our tasks need, and over them the `spark:` section."""
    of_workers = {f"spark.executorEnv.{name}": value for name, value in job_kernels(config).in_environment().items()}
    return {"spark.python.daemon.module": WORKER_DAEMON, **of_workers, **config.spark}


def job_kernels(config: Config) -> JobKernels:
    """The kernels that the windows of a job call."""
    scale, source = config.expiry_key_scale, config.source
    form = source.file_format if isinstance(source, FilesSource) else source.value.format
    return JobKernels(
        float_domain=scale.is_float,
        lookup_all_live=config.lookup == "all_live",
        is_secure=config.digest == "secure",
        is_time=scale.is_time,
        is_sampled=isinstance(config.expiry, EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry),
        forms=() if form in ("parquet", "text", "avro") else (form,),
        writes_text=any(sink.format in ("json", "csv") for sink in config.file_ports.values()),
        compares=config.has_fingerprint,
        keeps_versions=config.keeps_versions,
    )


def open_files(config: Config, source: FilesSource, log: CommitLog) -> tuple[FileBatches, FilesToFold]:
    """The job's source of files, which continues after the judged ones of the store's log, and those for folding.

    Raises:
        CorruptionError: a file of sources is missing or damaged.
    """
    known = KnownFiles(source, log)
    reading = file_reading(config, source, log.manifest.salt)
    # What lies in the folder of a new store may be years old, and has not waited for it.
    came_after_s = 0.0 if log.state.next_window else time.time()
    return FileBatches(source, known, reading, came_after_s), FilesToFold.of(source, known)


def open_topics_source(config: Config, log: CommitLog, stop: Event) -> PlannedSource:
    """The job's source of topics, which continues after the judged offsets of the store's log."""
    # Kafka's client is optional.
    from deduper.kafka.cluster import KafkaCluster
    from deduper.kafka.offsets import ENDS, judged_ends
    from deduper.sources.kafka.batch import KafkaBatches
    from deduper.sources.kafka.broker_watch import BrokerWatch
    from deduper.sources.kafka.reading import topic_reading

    source = config.source
    assert isinstance(source, KafkaSource)
    reading = topic_reading(config, source, log.manifest.salt)
    stored = judged_ends(log.state) if ENDS in log.state.extra else None
    return KafkaBatches(source, KafkaCluster(source, stop), stored, BrokerWatch(source, stop), reading)
