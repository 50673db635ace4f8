"""Spark's settings that a promise of the service rests on, each with the value it must have, and the promise. PURE.

The service sets them over Spark's own configuration files and variables. A configuration that asks for another value is
refused, and so is a session that has one all the same. All other settings are the user's.

One more decides the values of a record; it is free, but fixed for the life of a store: `FIXED_BY_STORE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TIME_ZONE = "spark.sql.session.timeZone"
FIXED_BY_STORE = {TIME_ZONE: "UTC"}
"""With its default: the zone of times that are written without one."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
"""Of the JVMs of a cluster, which read files too."""
JVM_PROPERTIES = {"user.timezone": "UTC", "user.language": "en", "file.encoding": "UTF-8"}
"""The same on every machine: the zone of old calendars, the letters of numbers, the bytes of texts."""

_WHOLE = "one task reads a file from its beginning to its end, so every record has a place of its own"
_LINES = "every line of a file becomes one tuple"
_ERRORS = "a file that cannot be read leaves by the error port"
_VALUES = "a record has the same values in every run, so equal keys stay equal"
_LOCAL = "paths name files of this machine"
_OWN = "the service has a Spark of its own, in this process and on this machine"


@dataclass(frozen=True, slots=True)
class Promised:
    """The value that a promise needs; None: the setting has none, and Spark's default counts."""

    value: str | None
    promise: str


REQUIRED = {
    # Larger than any file: row numbers and the clock depend on it.
    "spark.sql.files.maxPartitionBytes": Promised("1099511627776", _WHOLE),
    "spark.sql.files.openCostInBytes": Promised("1099511627776", _WHOLE),
    # The plan that reads is fixed: its one join is a broadcast, which keeps the rows as they come.
    "spark.sql.adaptive.enabled": Promised("false", _WHOLE),
    "spark.sql.optimizer.disableHints": Promised("false", _WHOLE),
    # Spark's other readers cut files, and report less about them.
    "spark.sql.sources.useV1SourceList": Promised("avro,csv,json,kafka,orc,parquet,text", _WHOLE),
    "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": Promised("2147483647", _LINES),
    "spark.sql.files.ignoreCorruptFiles": Promised("false", _ERRORS),
    "spark.sql.files.ignoreMissingFiles": Promised("false", _ERRORS),
    "spark.sql.ansi.enabled": Promised("true", _VALUES),
    "spark.sql.caseSensitive": Promised("false", _VALUES),
    "spark.sql.timestampType": Promised("TIMESTAMP_LTZ", _VALUES),
    "spark.sql.decimalOperations.allowPrecisionLoss": Promised("true", _VALUES),
    "spark.sql.execution.arrow.useLargeVarTypes": Promised("false", _VALUES),
    "spark.sql.extensions": Promised("", _VALUES),
    # A record from the year 1 is data, and must not stop the job for a change of calendars that Spark made in 2020.
    "spark.sql.legacy.timeParserPolicy": Promised("CORRECTED", _VALUES),
    "spark.sql.parquet.outputTimestampType": Promised("TIMESTAMP_MICROS", _VALUES),
    "spark.sql.parquet.datetimeRebaseModeInWrite": Promised("CORRECTED", _VALUES),
    "spark.sql.parquet.datetimeRebaseModeInRead": Promised("CORRECTED", _VALUES),
    "spark.sql.parquet.int96RebaseModeInWrite": Promised("CORRECTED", _VALUES),
    "spark.sql.parquet.int96RebaseModeInRead": Promised("CORRECTED", _VALUES),
    "spark.sql.avro.datetimeRebaseModeInRead": Promised("CORRECTED", _VALUES),
    "spark.hadoop.fs.defaultFS": Promised("file:///", _LOCAL),
    # The usual one starts a process (readlink, chmod) for every file it touches: dozens of forks a window.
    "spark.hadoop.fs.file.impl": Promised("org.apache.hadoop.fs.RawLocalFileSystem", _LOCAL),
    "spark.api.mode": Promised("classic", _OWN),
}

# Families of which no other setting is allowed, including those that a later Spark adds.
_CLOSED = {
    "spark.sql.files.": _WHOLE,
    "spark.sql.ansi.": _VALUES,
    "spark.sql.avro.": _VALUES,
    "spark.sql.collation.": _VALUES,
    "spark.sql.csv.": _VALUES,
    "spark.sql.execution.datasources.": _LINES,
    "spark.sql.function.": _VALUES,
    "spark.sql.json.": _VALUES,
    "spark.sql.legacy.": _VALUES,
    "spark.sql.parquet.": _VALUES,
    "spark.sql.parser.": _VALUES,
    "spark.remote": _OWN,
}
_FREE = frozenset(
    (
        "spark.sql.avro.compression.codec",
        "spark.sql.parquet.columnarReaderBatchSize",
        "spark.sql.parquet.compression.codec",
        "spark.sql.parquet.filterPushdown",
        "spark.sql.parquet.mergeSchema",
    )
)
_JVM_PROPERTY = re.compile(rf"-D({'|'.join(map(re.escape, JVM_PROPERTIES))})=(\S*)")


DEFAULT_MASTER = "local[*]"
_ONE_PROCESS = re.compile(r"local(\[[^]]*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_ON_THIS_MACHINE = re.compile(r"local(-cluster)?(\[[^]]*\])?")


def is_one_process(master: str) -> bool:
    """Whether the tasks of this master are children of the driver: `local[4]`."""
    return _ONE_PROCESS.fullmatch(master.strip()) is not None


def is_this_machine(master: str) -> bool:
    """Whether all executors of this master are on the driver's machine: `local[4]`, `local-cluster[2,1,1024]`."""
    return _ON_THIS_MACHINE.fullmatch(master.strip()) is not None


def have_spare_cores(master: str, executor_cores: str | None) -> bool:
    """Whether the executors of this master have two cores or more. `executor_cores`: `spark.executor.cores`, if set.

    By Spark's defaults an executor has all cores of its worker, but on YARN and Kubernetes one.
    """
    if is_one_process(master):
        return False
    if (local := _LOCAL_CLUSTER.fullmatch(master.strip())) is not None:
        return int(local[1]) > 1
    if executor_cores is not None:
        return executor_cores.strip() != "1"
    return not master.strip().startswith(("yarn", "k8s:"))


def promised(name: str) -> Promised | None:
    """The value that a promise needs for a setting; None if no promise depends on it."""
    if name in REQUIRED:
        return REQUIRED[name]
    if name in _FREE:
        return None
    return next((Promised(None, promise) for prefix, promise in _CLOSED.items() if name.startswith(prefix)), None)


def broken(settings: Mapping[str, object]) -> Iterator[tuple[str, Promised]]:
    """The settings whose values break a promise, with the values they must have."""
    for name, value in settings.items():
        needed = promised(name)
        if needed is not None and not _is_same(value, needed.value):
            yield name, needed
        if name in (JAVA_OPTIONS, EXECUTOR_JAVA_OPTIONS):
            for found in _JVM_PROPERTY.finditer(str(value)):
                if found[2] != JVM_PROPERTIES[found[1]]:
                    yield name, Promised(f"-D{found[1]}={JVM_PROPERTIES[found[1]]}", _VALUES)


def _is_same(value: object, needed: str | None) -> bool:
    return needed is not None and str(value).strip().lower() == needed.lower()


def store_settings(spark: Mapping[str, object]) -> dict[str, str]:
    """`FIXED_BY_STORE`, as a `spark:` section has them."""
    return {name: str(spark.get(name, default)) for name, default in FIXED_BY_STORE.items()}
