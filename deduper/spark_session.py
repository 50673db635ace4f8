"""The Spark session of the job: its settings, each with its reason, and what must be there before it starts."""

from __future__ import annotations

import contextlib
import locale
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.core import context
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deduper.config import Config
from deduper.config_kafka import KafkaSource
from deduper.file_source import SPARK_SETTINGS
from deduper.java import require_java
from deduper.kafka_jars import connector_settings

logger = logging.getLogger(__name__)

_JVM_END_S, _JVM_HOOKS_S = 1.0, 10.0

_LOG4J = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # The plan that reads is fixed: its one join is a broadcast, which keeps the rows as they come.
    "spark.sql.adaptive.enabled": "false",
    # A task's files move when it commits, and staging is private to an attempt: no second rename by the driver.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # The usual ones start a process (readlink, chmod) for every file they touch: dozens of forks a window.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.daemon.module": "deduper.daemon",
    "spark.python.worker.reuse": "true",
    # The one difference between the environment of SQL's workers and of RDDs': with it, each kind has its own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A record from the year 1 is data, and must not stop the job for a change of calendars that Spark made in 2020.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    # Windows are numbered and watched by us; Spark's own records of a query would only grow.
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # Kept for an interface that nobody looks at, a thousand of each by default: the heap of a long run grows with them.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.log.level": "ERROR",
    **SPARK_SETTINGS,
}

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OUR_JAVA_OPTIONS = (
    # Without a file of its own Spark tells the terminal about its logging first.
    f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    # Arrow checks every write twice otherwise; Spark's writer never leaves a vector's bounds.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
_COLLECTOR, _OUR_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b"), "-XX:+UseParallelGC"


def start_session(config: Config) -> SparkSession:
    """A session with our settings and, over them, the user's `spark:` section.

    Raises:
        DeduperError: no Java 17 or 21.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _let_workers_import_us()
    if locale.getpreferredencoding(do_setlocale=False).upper() not in ("UTF-8", "UTF8"):
        # Java would read no file whose name has a letter beyond ASCII.
        os.environ["LC_ALL"] = "C.UTF-8"
    builder = SparkSession.builder.appName(f"deduper {config.name}")
    settings: dict[str, object] = dict(_SETTINGS)
    if isinstance(config.source, KafkaSource):
        settings |= connector_settings(config.spark, avro=config.source.value.format == "avro")
    settings |= config.spark
    settings[_JAVA_OPTIONS] = java_options(str(config.spark.get(_JAVA_OPTIONS, "")))
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    children = _children()
    try:
        with _our_signals():
            return builder.getOrCreate()
    except BaseException:
        # Interrupted before it could say where it listens, a JVM waits for ever, and is nobody's.
        kill_children(but=children)
        raise


def java_options(asked_for: str) -> str:
    """The JVM's options: ours, then those asked for, which win; of two collectors it would take neither."""
    ours = _OUR_JAVA_OPTIONS if _COLLECTOR.search(asked_for) else (*_OUR_JAVA_OPTIONS, _OUR_COLLECTOR)
    return " ".join((*ours, asked_for)).rstrip()


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """PySpark installs a handler for SIGINT that calls the JVM in the middle of other calls, and loses the signal."""
    module: Any = context
    theirs = module.signal
    module.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT)
    try:
        yield
    finally:
        module.signal = theirs


def kill_children(but: Collection[int] = ()) -> None:
    """End what this process has started, but for some: the JVM, whose workers end with it."""
    for child in _children().difference(but):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _children() -> set[int]:
    """The processes that this one has started, and that run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid() and state != "Z":
                    found.add(int(entry.name))
    return found


def end_session(session: SparkSession) -> None:
    """Stop a session; one whose JVM is gone has nothing left to stop, and must not hide why."""
    try:
        session.stop()
    except (PySparkException, Py4JError, OSError):
        if not has_ended(session):
            raise
        logger.warning("Spark need not be stopped, its JVM is gone")


def has_ended(session: SparkSession, *, after_signal: bool = False) -> bool:
    """Whether the session's JVM has ended, or does so within a moment; after a signal it runs its hooks first."""
    gateway = session.sparkContext._gateway
    process = None if gateway is None else getattr(gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(_JVM_HOOKS_S if after_signal else _JVM_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _let_workers_import_us() -> None:
    """Workers are started by Spark's daemon with the environment of this process and must find this very package."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
