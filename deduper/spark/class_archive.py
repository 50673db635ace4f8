"""`python -m deduper.spark.class_archive` makes an archive of Spark's classes: Java starts with half the CPU.

Java reads, checks and links some 13,000 classes at each start of a job. An archive has them as they lie in memory
afterwards (class data sharing). It is made once for a Java and a Spark, and takes 160 MB of the user's cache; each job
that finds it uses it. Java looks whether it fits, and reads the jars if not.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, SparkSession

from deduper.errors import DeduperError
from deduper.spark.installed import require_java
from deduper.spark.planned_batches import PlannedBatches
from deduper.spark.session import JVM_ERRORS, start_session
from deduper.spark_promises import JAVA_OPTIONS

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
"""For a Java that lives for seconds, and does not tell which classes it leaves out."""
_WRITTEN_IN_S = 120


def make() -> Path:
    """Make the archive, if it is not there, from the classes of a query of one batch.

    Raises:
        DeduperError, UsageError: as `start_session`, and where there is no folder to write to.
    """
    archives = require_java().class_archives(_find_spark_home())
    there = archives.whole()
    if there is not None:
        return there
    try:
        archives.folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        what = f"{archives.folder}: cannot be made: {exc.strerror}"
        raise DeduperError(f"{what}; name a folder of this user's in XDG_CACHE_HOME") from exc
    with tempfile.TemporaryDirectory(dir=archives.folder) as name:
        folder = Path(name)
        made = folder / "classes.jsa"
        options = f'{_BRIEF} "-XX:ArchiveClassesAtExit={made}"'
        session = start_session("classes", {"spark.master": "local[2]", JAVA_OPTIONS: options})
        (java,) = (child for child in psutil.Process().children() if child.name() == "java")
        _run_query(session, folder)
        jvm: Any = session._jvm
        with contextlib.suppress(*JVM_ERRORS):  # it ends without an answer
            jvm.java.lang.System.exit(0)
        java.wait(_WRITTEN_IN_S)
        return archives.place(made)


def _count(batch: DataFrame, _: int) -> None:
    batch.count()


def _run_query(session: SparkSession, folder: Path) -> None:
    """What a job does with Spark: a query of a planned batch, and a task in Python."""
    batches = PlannedBatches(session)
    batches.add()
    query = batches.rows.writeStream.foreachBatch(_count).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder.as_uri()}/checkpoint").start().awaitTermination()
    session.sparkContext.parallelize(range(4), 2).map(str).collect()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{make()}\n")
    except DeduperError as error:
        sys.exit(f"error: {error}")
