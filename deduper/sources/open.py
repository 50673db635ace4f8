"""The way in: a source's settings for the session, whether a job can run on it, and the source itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bucket_store.log.commit_log import CommitLog
from deduper.config.files import FilesSource
from deduper.config.kafka import KafkaSource
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.sources.files.batch import FileBatches
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.source_file import missing_folder
from deduper.sources.files.suspects import suspects
from deduper.sources.protocol import StreamedSource
from deduper.spark.kafka_jars import connector_settings


def session_settings(config: Config) -> dict[str, object]:
    """The settings of a session for this job: what its source needs, and over it the `spark:` section.

    Raises:
        UsageError: as `connector_settings`.
    """
    if not isinstance(config.source, KafkaSource):
        return dict(config.spark)
    return {**connector_settings(config.spark, avro=config.source.value.format == "avro"), **config.spark}


def check_source(config: Config) -> None:
    """Before the epoch is claimed: a job that cannot run must not disturb one that does.

    Raises:
        DeduperError: a folder, the client, the connector or something of the cluster is missing.
    """
    missing = missing_folder(config.source)
    if missing is not None:
        raise UsageError(f"source.path: {missing} does not exist: make it (mkdir -p {missing}), or correct the path")
    if isinstance(config.source, KafkaSource):
        if not is_client_installed():
            raise UsageError(f"{CLIENT_MISSING}: {INSTALL_CLIENT}")
        from deduper.kafka.preflight import require

        connector_settings(config.spark)
        require(config)


def open_source(
    config: Config, log: CommitLog, checkpoint: Path, is_stopping: Callable[[], bool]
) -> FileBatches | StreamedSource:
    """The batches of the job's source, from where the store's log says.

    Raises:
        CorruptionError: a file of sources is missing or damaged.
    """
    if isinstance(config.source, FilesSource):
        return FileBatches(config.source, KnownFiles(config.source, log), suspects(log))
    # Not everybody has Kafka's client.
    from deduper.kafka.cluster import KafkaCluster
    from deduper.sources.kafka.batch import KafkaBatches
    from deduper.sources.kafka.broker_watch import BrokerWatch

    cluster = KafkaCluster(config.source, is_stopping=is_stopping)
    return KafkaBatches(
        config.source, checkpoint, cluster, log.state, BrokerWatch(config.source, is_stopping=is_stopping)
    )
