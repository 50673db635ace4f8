"""The Spark session of the job: its settings, each with its reason, and the checks before it starts."""

from __future__ import annotations

import contextlib
import locale
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark import context
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from bucket_store.filesystem import package_root
from deduper.errors import DeduperError, UsageError
from deduper.spark.failures import readable_cause
from deduper.spark.installed import (
    DEFAULT_HEAP,
    SUBMITTED,
    Java,
    require_java,
    require_own_spark,
    require_user_name,
)
from deduper.spark.jvm_log import logged_jvm
from deduper.spark_promises import (
    DEFAULT_MASTER,
    EXECUTOR_JAVA_OPTIONS,
    FIXED_BY_STORE,
    JAVA_OPTIONS,
    JVM_PROPERTIES,
    REQUIRED,
    Promised,
    broken,
    is_one_process,
    is_this_machine,
    store_settings,
)

logger = logging.getLogger(__name__)

JVM_ERRORS = (PySparkException, Py4JError, OSError)
"""The errors of a call into a JVM that has ended; its exceptions have no text any more."""
_JVM_END_S, _JVM_HOOKS_S = 1.0, 10.0

_HADOOP = "spark.hadoop."
_LOG4J = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.memory": DEFAULT_HEAP,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A task's files move when it commits, and staging is private to an attempt: no second rename by the driver.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.worker.reuse": "true",
    # The one difference between the environment of SQL's workers and of RDDs': with it, each kind has its own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Windows are numbered and watched by us; Spark's own records of a query would only grow.
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # Kept for an interface that is off, a thousand of each by default: the heap of a long run grows with them.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.log.level": "ERROR",
    # The driver lists the few files of a batch itself; a Spark job for it would cost more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    **FIXED_BY_STORE,
    **{name: needed.value for name, needed in REQUIRED.items()},
}

_WORKERS_PYTHON = "spark.pyspark.python"
_DRIVERS_PYTHON = "PYSPARK_DRIVER_PYTHON"
_ON_CLUSTER = {
    # Shards stay where their tables are: a shuffle would prefer the places of its largest outputs.
    "spark.shuffle.reduceLocality.enabled": "false",
    # A window leaves its keys in the executors' shuffle files until the driver's JVM collects garbage.
    "spark.cleaner.periodicGC.interval": "3min",
    # Java reads no file whose name has a letter beyond ASCII in another locale.
    "spark.executorEnv.LC_ALL": "C.UTF-8",
}

_OUR_JAVA_OPTIONS = (
    # Without a file of its own Spark prints a note about its logging to the terminal first.
    f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    # Arrow checks every write twice otherwise; Spark's writer never leaves a vector's bounds.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
    *(f"-D{name}={value}" for name, value in JVM_PROPERTIES.items()),
)
_COLLECTOR, _OUR_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b"), "-XX:+UseParallelGC"
_READ_BY_JAVA = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")


def start_session(name: str, requested: Mapping[str, object]) -> SparkSession:
    """A session with our settings and, over them, those of the job.

    Raises:
        DeduperError: no Java 17 or 21, or a user without a name.
        UsageError: as `require_own_spark` and `require_promises`.
    """
    java = require_java()
    require_user_name()
    require_own_spark()
    _set_environment(requested)
    if locale.getencoding().upper() not in ("UTF-8", "UTF8"):
        # Java would read no file whose name has a letter beyond ASCII. Not what Python has made of it: Java does not.
        os.environ["LC_ALL"] = "C.UTF-8"
    builder = SparkSession.builder.appName(f"deduper {name}")
    options = session_options(requested)
    options[JAVA_OPTIONS] = f"{_archive_options(java)} {options[JAVA_OPTIONS]}".lstrip()
    for setting, value in options.items():
        builder = builder.config(setting, str(value).lower() if isinstance(value, bool) else str(value))
    children = {child.pid for child in psutil.Process().children()}
    try:
        with _our_signals(), _without_packages_of_sources(), logged_jvm() as jvm:
            session = builder.getOrCreate()
        _quiet(session)
        require_promises(session, requested)
        return session
    except BaseException as exc:
        reason = readable_cause(exc) if isinstance(exc, JVM_ERRORS) else ""  # its text is in the JVM
        # A JVM that is interrupted before it reports its port waits for ever, and nothing ends it.
        kill_children(but=children)
        if isinstance(exc, PySparkException) and "JAVA_GATEWAY_EXITED" in str(exc):
            why = jvm.last_words() or "it left no message; --verbose shows what it writes"
            raise DeduperError(f"Spark's Java process ended at its start: {why}") from exc
        if reason:
            raise DeduperError(f"Spark did not start: {reason}; --verbose shows its log") from exc
        raise


@contextlib.contextmanager
def _without_packages_of_sources() -> Iterator[None]:
    """A JVM that is started inside looks for no Python packages that bring data sources.

    A query's start would wait more than a second for it, and no job uses one. Spark looks by the driver's Python, and
    not if it is no program; all else it runs by the Python of the workers.
    """
    theirs = os.environ.get(_DRIVERS_PYTHON)
    os.environ[_DRIVERS_PYTHON] = "no-python"
    try:
        yield
    finally:
        if theirs is None:
            del os.environ[_DRIVERS_PYTHON]
        else:
            os.environ[_DRIVERS_PYTHON] = theirs


def _quiet(session: SparkSession) -> None:
    """PySpark writes a traceback to the terminal when the JVM ends before it, as by a SIGTERM for all processes."""
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = lambda *_: logger.debug("the JVM has left its accumulators: %r", sys.exc_info()[1])


def _set_environment(requested: Mapping[str, object]) -> None:
    """Set the variables that Spark reads from this process and hands to its workers."""
    master = _master(requested)
    if _WORKERS_PYTHON in requested:
        os.environ["PYSPARK_PYTHON"] = str(requested[_WORKERS_PYTHON])  # the driver sends its name with every task
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_this_machine(master):
        # On a cluster executors connect to the driver, by the name of its host.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_this_machine(master) and not is_one_process(master):
        os.environ.setdefault("SPARK_HOME", _find_spark_home())  # `local-cluster` starts executors from it
    _let_workers_import_us()


def session_options(requested: Mapping[str, object]) -> dict[str, object]:
    """Our settings and, over them, the requested ones; with those of executors where they are other processes."""
    settings = {**_SETTINGS, **requested}
    if not is_one_process(_master(requested)):
        of_package = {"spark.executorEnv.PYTHONPATH": str(package_root())}
        settings = {**_SETTINGS, **_ON_CLUSTER, **of_package, **requested}
        settings[EXECUTOR_JAVA_OPTIONS] = f"{_properties()} {requested.get(EXECUTOR_JAVA_OPTIONS, '')}".rstrip()
    settings[JAVA_OPTIONS] = java_options(str(requested.get(JAVA_OPTIONS, "")))
    return settings


def _master(requested: Mapping[str, object]) -> str:
    return str(requested.get("spark.master", DEFAULT_MASTER))


def require_promises(session: SparkSession, requested: Mapping[str, object]) -> None:
    """Refuse a session whose settings break a promise, wherever they come from.

    Raises:
        UsageError: naming each setting, its value, the promise, and where it may come from.
    """
    found: dict[str, str | None] = {**dict(session.sparkContext.getConf().getAll()), **session.conf.getAll}
    found |= store_settings({name: found[name] for name in FIXED_BY_STORE if found.get(name) is not None})
    hadoop: Any = session._jsc
    for name in REQUIRED:
        if name.startswith(_HADOOP):
            found[name] = hadoop.hadoopConfiguration().get(name.removeprefix(_HADOOP))
        else:
            found[name] = session.conf.get(name, None)
    wrong = {name: (found[name], needed) for name, needed in broken(found)}
    wrong |= {f"-D{name}": reported for name, reported in _wrong_in_jvm(session).items()}
    for name, value in store_settings(requested).items():
        if found.get(name) != value:
            wrong[name] = (found.get(name), Promised(value, "the session is that of the configuration"))
    if wrong:
        raise UsageError("\n".join(_described(name, *what) for name, what in sorted(wrong.items())))


def _wrong_in_jvm(session: SparkSession) -> dict[str, tuple[str, Promised]]:
    jvm: Any = session._jvm
    names = [*JVM_PROPERTIES, "sun.jnu.encoding"]
    found = {name: jvm.java.lang.System.getProperty(name) for name in names}
    needed = {**JVM_PROPERTIES, "sun.jnu.encoding": "UTF-8"}
    return {
        name: (value, Promised(needed[name], "texts, times and names of files are read alike on every machine"))
        for name, value in found.items()
        if value != needed[name]
    }


def _described(name: str, value: str | None, needed: Promised) -> str:
    write = "remove it" if needed.value is None else f"it must be `{needed.value}`"
    what = f"{name} is `{value}` in the Spark session, and a promise rests on it ({needed.promise})"
    return f"{what}; {write}{_origin(name)}"


def _origin(name: str) -> str:
    """The possible origin of a setting that is not from the configuration."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    defaults = Path(folder, "spark-defaults.conf")
    with contextlib.suppress(OSError):
        if name in defaults.read_text(errors="replace"):
            return f": it is in {defaults}"
    for variable in ("PYSPARK_SUBMIT_ARGS", *_READ_BY_JAVA):
        if name in os.environ.get(variable, ""):
            return f": it is in {variable}"
    if name.removeprefix("-D") in JVM_PROPERTIES and SUBMITTED in os.environ:
        return f": add --conf '{JAVA_OPTIONS}={_properties()}' to spark-submit"
    return ": check the program that makes the session, Hadoop's configuration and the locale"


def _properties() -> str:
    return " ".join(f"-D{name}={value}" for name, value in JVM_PROPERTIES.items())


def java_options(requested: str) -> str:
    """The JVM's options: ours, then the requested ones, which win.

    With two collectors it would not start, so one that is requested, or named in a variable that Java reads, is alone.
    """
    named = (requested, *(os.environ.get(variable, "") for variable in _READ_BY_JAVA))
    collector = () if any(map(_COLLECTOR.search, named)) else (_OUR_COLLECTOR,)
    return " ".join((*_OUR_JAVA_OPTIONS, *collector, requested)).rstrip()


def _archive_options(java: Java) -> str:
    """Options with which Java takes Spark's classes from their archive, if there is one; it is quiet if it cannot."""
    archive = java.class_archives(_find_spark_home()).whole()
    return "" if archive is None else f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'


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


@contextlib.contextmanager
def changed_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while; a query that is started meanwhile takes them with it."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def kill_children(but: Collection[int] = ()) -> None:
    """Kill the children of this process, except some: the JVM, whose workers end with it."""
    for child in psutil.Process().children():
        if child.pid not in but:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def end_session(session: SparkSession) -> None:
    """Stop a session; one whose JVM is gone has nothing left to stop, and must not hide why."""
    try:
        session.stop()
    except JVM_ERRORS:
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
    root = str(package_root())
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
