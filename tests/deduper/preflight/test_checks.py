"""Whatever keeps a job from starting: `check` never calls it ready, and `run` ends with its exit code before Spark."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from threading import Timer
from typing import Any

import pytest
from typer.testing import CliRunner

from bucket_store.errors import StorageAwayError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.places.objects import ObjectNames
from deduper.cli.main import app
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.diagnostics import Severity, warning
from deduper.errors import CannotWriteError, DeduperError, ExitCode, exit_code_of
from deduper.preflight import checks, connections, folders, machine
from deduper.preflight.results import Failure, PreflightCheck, Start
from deduper.service import job as service
from deduper.service import window_metrics
from deduper.spark import installed as spark_java
from deduper.window import owner_alive, recovery, table_folder
from deduper.window.completeness import SEED_OPEN
from deduper.window.publishing import mark_published
from tests.deduper.store_samples import Window, make_store

FILES = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t timestamp"}
TOPICS = {
    "format": "kafka",
    "bootstrap_servers": "127.0.0.1:9",
    "topics": ["in"],
    "deadline": "1ms",
    "value": {"format": "json", "schema": "k string, t timestamp"},
}


class Job:
    """A job in a folder of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "job.yaml"
        self.settings: dict[str, Any] = {
            "name": "clicks",
            "source": FILES,
            "key": "k",
            "expiry": {"by": "event_time", "field": "t", "period": "24h", "span": "1h"},
            "store": {"url": "file:state", "shards": 2, "tables": "tables"},
            "sinks": {port: {"format": "json", "path": f"out/{port}"} for port in ("unique", "error")},
        }
        self.settings["sinks"] |= {port: {"format": "none"} for port in ("duplicate", "expired")}
        (directory / "in").mkdir()

    def change(self, section: str, **settings: object) -> None:
        """Change settings of a section."""
        self.settings[section] = {**self.settings.get(section, {}), **settings}

    @property
    def config(self) -> Config:
        """The settings as they are now."""
        self.file.write_text(json.dumps(self.settings), encoding="utf-8")
        return load_config(self.file, environment={})

    def make_store(self) -> CommitLog:
        """Its store, owned once, with marks in its ports."""
        config = self.config
        log = recovery.open_or_create(config, 1)
        log.claim_epoch("somebody:1", 1)
        for port in config.file_ports.values():
            port.path.mkdir(parents=True)
        mark_published(config, log, -1)
        return log

    def check(self) -> tuple[int, set[str]]:
        """The exit code of `check`, and the checks that failed."""
        answer = CliRunner().invoke(app, ["check", str(self.config and self.file), "--json"])
        found = json.loads(answer.stdout)
        failed = {diagnostic["check"] for diagnostic in found["diagnostics"] if diagnostic["severity"] == "error"}
        assert found["healthy"] is not failed
        return answer.exit_code, failed

    def start(self, *, take_over: bool = False) -> ExitCode:
        """The exit code of `run`; OK when it came as far as Spark."""
        try:
            service.run(self.config, once=True, max_windows=None, take_over=take_over, on_progress=print)
        except _SparkStartsError:
            return ExitCode.OK
        except Exception as error:  # noqa: BLE001  its code is the answer
            return exit_code_of(error)
        raise AssertionError("Spark was not started")

    def records(self) -> list[Path]:
        """The log of the store: a claim adds a record."""
        return sorted(self.directory.glob("state*/log/*"))


class _SparkStartsError(Exception):
    pass


@pytest.fixture(scope="module")
def java() -> spark_java.Java:
    """This machine's, asked once."""
    return spark_java.require_java()


@pytest.fixture
def job(tmp_path: Path, java: spark_java.Java, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that may start; its Spark never does."""

    def start_session(*_: object) -> None:
        raise _SparkStartsError

    monkeypatch.setattr(service, "start_session", start_session)
    monkeypatch.setattr(machine, "require_java", lambda: java)
    monkeypatch.setattr(owner_alive, "_LOOKS", 3)
    return Job(tmp_path)


@pytest.mark.slow
def test_a_job_that_may_start(job: Job) -> None:
    """Before its first start, and after it."""
    assert job.check() == (0, set())
    job.make_store()
    assert job.check() == (0, set())
    assert job.start() is ExitCode.OK


def test_run_and_check_go_through_one_list(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new check is one of both."""

    def fails(start: Start) -> Iterator[Any]:
        raise DeduperError(f"{start.config.name} may not; ask somebody")
        yield

    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, PreflightCheck("luck", "moon", fails)))
    assert job.check() == (3, {"luck"})
    assert job.start() is ExitCode.FAILED


def test_a_start_logs_every_warning(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All that `check` warns of."""

    def warns(_: Start) -> Iterator[Any]:
        yield warning("luck", "moon", "it is waning", "wait")

    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, PreflightCheck("luck", "moon", warns)))
    with caplog.at_level("WARNING"):
        assert job.start() is ExitCode.OK
    assert "moon: it is waning; wait" in caplog.messages


def test_a_storage_that_does_not_answer_is_one_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, with all its places, whatever else fails for it."""

    def away(_: Start) -> Iterator[Any]:
        yield Failure("sinks.error", CannotWriteError("sinks.error: s3://b/e does not answer; see it"), "s3://b")
        yield Failure("sinks.unique", CannotWriteError("sinks.unique: s3://b/u does not answer; see it"), "s3://b")

    def unread(_: Start) -> Iterator[Any]:
        raise OSError(errno.EIO, "no answer", "s3://b/state/manifest")
        yield

    others = (PreflightCheck("settings", "store", unread), PreflightCheck("folders", "store", away))
    monkeypatch.setattr(checks, "CHECKS", others)
    (only,) = checks.examine(Start(job.config))
    assert str(only) == "sinks.error, store, sinks.unique: s3://b/e does not answer; see it"


Broken = AbstractContextManager[object]
Breaks = Callable[[Job, pytest.MonkeyPatch], Broken | None]


def alive(job: Job, _: pytest.MonkeyPatch) -> Broken:
    """Another process owns the store."""
    return HeartBeat(job.make_store().root, "elsewhere:1", interval_s=0.05)


def alive_with_metrics(job: Job, patch: pytest.MonkeyPatch) -> Broken:
    """It serves its metrics, too."""
    owner = alive(job, patch)

    @contextmanager
    def both() -> Iterator[None]:
        with port_taken(job, patch), owner:
            yield

    return both()


def port_taken(job: Job, _: pytest.MonkeyPatch) -> Broken:
    """Another process listens on the port of the metrics."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    job.settings["metrics"] = {"port": taken.getsockname()[1]}
    return taken


def foreign_host(job: Job, _: pytest.MonkeyPatch) -> None:
    """An address of documentation, which no machine has."""
    job.settings["metrics"] = {"host": "192.0.2.1"}


def changed(section: str, **settings: object) -> Breaks:
    """A setting that is fixed for the store's life."""

    def change(job: Job, _: pytest.MonkeyPatch) -> None:
        job.make_store()
        if section == "":
            job.settings |= settings
        else:
            job.change(section, **settings)

    return change


def damaged(job: Job, _: pytest.MonkeyPatch) -> None:
    """A byte of the log."""
    record = sorted((job.make_store().root.local / "log").iterdir())[-1]
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)


def half_a_seed(job: Job, _: pytest.MonkeyPatch) -> None:
    """A seed that was begun and is not over."""
    assert job.config
    log = CommitLog.open(make_store(job.file, [Window(extra={SEED_OPEN: True})]).store.place)
    log.claim_epoch("somebody:1", 1)
    for port in job.config.file_ports.values():
        port.path.mkdir(parents=True)
    mark_published(job.config, log, 0)


def ports_of_another(job: Job, _: pytest.MonkeyPatch) -> None:
    """And no store here yet."""
    job.make_store()
    job.change("store", url="file:state2")


def older_store(job: Job, _: pytest.MonkeyPatch) -> None:
    """The ports hold a window that the store does not."""
    mark_published(job.config, job.make_store(), 5)


def environment(name: str, value: str) -> Breaks:
    """A variable; `{}` is the job's folder."""
    return lambda job, patch: patch.setenv(name, value.format(job.directory))


def no_java(job: Job, patch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME leads nowhere."""
    patch.setattr(machine, "require_java", spark_java.require_java)
    patch.setenv("JAVA_HOME", str(job.directory / "no-java"))


def nameless(_: Job, patch: pytest.MonkeyPatch) -> None:
    """A user without a line in /etc/passwd."""
    patch.setattr(spark_java.pwd, "getpwuid", {}.__getitem__)


def other_python(job: Job, patch: pytest.MonkeyPatch) -> None:
    """Workers of an older Python."""
    program = job.directory / "python"
    program.write_text("#!/bin/sh\necho Python 3.8\n", encoding="ascii")
    program.chmod(0o755)
    patch.setenv("PYSPARK_PYTHON", str(program))


def no_source(job: Job, _: pytest.MonkeyPatch) -> None:
    """The source's folder is missing."""
    (job.directory / "in").rmdir()


def no_right(name: str) -> Breaks:
    """A folder that this user may not enter, also as root."""

    def forbid(job: Job, patch: pytest.MonkeyPatch) -> None:
        (job.directory / name).mkdir(exist_ok=True)
        real = os.access
        patch.setattr(folders.os, "access", lambda path, mode: Path(path).name != name and real(path, mode))

    return forbid


def in_the_way(name: str) -> Breaks:
    """A file where a folder is to be."""
    return lambda job, _: (job.directory / name).write_text("in the way", encoding="utf-8") and None


def full(_: Job, patch: pytest.MonkeyPatch) -> None:
    """Not a byte is free."""
    usage = folders.shutil.disk_usage("/")
    patch.setattr(folders.shutil, "disk_usage", lambda _: usage._replace(free=0))


def topics(job: Job, _: pytest.MonkeyPatch) -> None:
    """A source of topics whose brokers are down."""
    job.settings["source"] = TOPICS


def no_client(job: Job, patch: pytest.MonkeyPatch) -> None:
    """A source of topics, and no client."""
    topics(job, patch)
    patch.setattr(connections, "is_client_installed", lambda: False)


CONDITIONS: Mapping[str, tuple[Breaks, set[str], int]] = {
    "a second start": (alive, set(), 5),
    "a second start, with metrics": (alive_with_metrics, set(), 5),
    "the metrics' port is taken": (port_taken, {"metrics"}, 1),
    "the metrics' address is not ours": (foreign_host, {"metrics"}, 1),
    "another key": (changed("", key=["k", "t"]), {"settings"}, 2),
    "another digest": (changed("", digest="secure"), {"settings"}, 2),
    "other shards": (changed("store", shards=4), {"settings"}, 2),
    "another expiry": (changed("", expiry={"by": "never"}), {"settings"}, 2),
    "another span": (changed("expiry", span="2h"), {"settings"}, 2),
    "a damaged store": (damaged, {"settings", "outputs"}, 4),
    "half a seed": (half_a_seed, {"settings"}, 2),
    "ports of another store": (ports_of_another, {"outputs"}, 2),
    "an older store": (older_store, {"outputs"}, 4),
    "no Java": (no_java, {"java"}, 1),
    "another Spark": (environment("SPARK_HOME", "{}"), {"java"}, 2),
    "a Spark elsewhere": (environment("SPARK_REMOTE", "sc://x"), {"java"}, 2),
    "a user without a name": (nameless, {"java"}, 1),
    "another Python": (other_python, {"python"}, 2),
    "no Python": (environment("PYSPARK_PYTHON", "{}/python"), {"python"}, 2),
    "no source": (no_source, {"folders"}, 2),
    "no right to read the source": (no_right("in"), {"folders"}, 1),
    "a file in the store's place": (in_the_way("state"), {"folders"}, 2),
    "a file in a port's place": (in_the_way("out"), {"folders"}, 2),
    "no right to write the store": (no_right("state"), {"folders"}, 1),
    "no right to write a port": (no_right("out"), {"folders"}, 1),
    "no right to write tables": (no_right("tables"), {"folders"}, 1),
    "no room": (full, {"folders"}, 1),
    "no client": (no_client, {"client"}, 2),
    "no broker": (topics, {"brokers"}, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_keeps_a_job_from_starting(job: Job, condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` ends with 3 and names the check; `run` ends with its code, and has claimed nothing.

    Beside a running job `check` has a note alone.
    """
    breaks, failed, code = CONDITIONS[condition]
    with breaks(job, monkeypatch) or nullcontext():
        before = job.records()
        assert job.check() == (3 if failed else 0, failed)
        assert job.start() == code
        assert job.records() == before


@pytest.mark.slow
@pytest.mark.parametrize("owner_before", [False, True])
@pytest.mark.parametrize("is_bound", ["before the checks", "after the checks"])
def test_two_starts_in_one_instant(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_bound: str, owner_before: bool
) -> None:
    """The other one has the port, and claims the store a moment later: 5, not the 1 of a taken port."""
    monkeypatch.setattr(owner_alive, "_LOOKS", 100)
    root = job.make_store().root
    if owner_before:
        HeartBeat(root, f"{owner_alive.own_name().rpartition(':')[0]}:0").beat()
    before = job.records()
    other = HeartBeat(root, "elsewhere:1", interval_s=0.05)

    def take(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    with port_taken(job, monkeypatch):
        if is_bound == "after the checks":
            monkeypatch.setattr(connections.socket, "create_server", lambda *_, **__: socket.socket())
        monkeypatch.setattr(window_metrics, "start_http_server", take)
        claim = Timer(0.5, other.start)
        claim.start()
        try:
            assert job.start() is ExitCode.FENCED
        finally:
            claim.join()
            other.stop()
    assert job.records() == before


def test_a_store_that_is_taken_over(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may be alive, but not serve the same page: then nothing is claimed."""
    with alive(job, monkeypatch):
        before = job.records()
        assert job.start(take_over=True) is ExitCode.OK
        taken = job.records()
        assert len(taken) > len(before)
        with port_taken(job, monkeypatch):
            assert job.start(take_over=True) is ExitCode.FAILED
        assert job.records() == taken


def test_a_folder_on_another_storage_is_asked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is not ours to measure; one that does not answer ends a start."""
    config = job.config
    url = f"objects:{job.directory}/bucket/state"
    there = config.model_copy(update={"store": config.store.model_copy(update={"url": url})})
    shown = [str(found) for found in folders.written(Start(there)) if "answers" in str(found)]
    assert [url.removeprefix("objects:") in text for text in shown] == [True]

    def away(*_: object) -> bool:
        raise TimeoutError("no answer within 50 s")

    monkeypatch.setattr(type(there.store.place.names), "exists", away)
    (failure,) = (found for found in folders.written(Start(there)) if isinstance(found, Failure))
    assert failure.place == "store"
    assert exit_code_of(failure.error) == exit_code_of(CannotWriteError(""))
    assert "does not answer: no answer within 50 s" in str(failure.error)


def test_a_storage_that_is_away_is_one_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, with its address and cause; what follows from it is left out."""
    config = job.config
    url = f"objects:{job.directory}/bucket/state"
    there = config.model_copy(update={"store": config.store.model_copy(update={"url": url})})

    def away(names: ObjectNames, path: PurePosixPath, _: object) -> object:
        raise StorageAwayError.of(errno.EIO, "the object store cannot be reached", names.url(path))

    monkeypatch.setattr(ObjectNames, "_call", away)
    errors = [found for found in checks.examine(Start(there)) if found.severity is Severity.ERROR]
    (error,) = [found for found in errors if "reached" in found.what]
    assert error.what.endswith("bucket/state/heartbeat: the object store cannot be reached")
    assert error.remedy == "see that its servers run"


def test_tables_that_another_job_removes_meanwhile_end_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory has the tables of all jobs of a machine; their bytes are a part of a warning alone."""
    for name in ("gone", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t0.table").write_bytes(b"abc")
    scandir = os.scandir

    def removed(path: Any = ".") -> Any:
        if Path(os.fspath(path)).name == "gone":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert machine._size(tmp_path) == 3


@pytest.mark.parametrize(
    ("master", "submitted", "said"),
    [
        (
            "local[2]",
            False,
            "store.memory: with the 4 GiB of spark.driver.memory it is more than the 3 GiB of",
        ),
        ("local[2]", True, "store.memory: there is no "),
        ("spark://head:7077", False, "spark.driver.memory: 4 GiB is more than the 3 GiB of this "),
        ("spark://head:7077", True, ""),
    ],
)
def test_memory_is_held_against_what_takes_it_here(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str, submitted: bool, said: str
) -> None:
    """On a cluster tables are elsewhere; a JVM of `spark-submit` has another heap than the config's."""
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(machine, "_machine_bytes", lambda: 3 << 30)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    job.change("store", url="hdfs://namenode:8020/state")
    job.settings["source"] = TOPICS
    job.settings["sinks"] = {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")}
    job.settings["spark"] = {"spark.master": master}
    found = list(machine.memory(Start(job.config)))
    assert (found == []) == (said == "")
    assert str(found[-1] if found else "").startswith(said)
    assert not (master.startswith("spark:") and "store.memory" in " ".join(map(str, found)))


def test_a_variable_with_one_underline_is_no_setting(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The near name is shown; those of Kubernetes for a service of this name, and real settings, are not."""
    for name in ("DEDUPER_STORE_SHARDS", "DEDUPER_SERVICE_HOST", "DEDUPER__STORE__SHARDS"):
        monkeypatch.setenv(name, "8")
    (only,) = machine.variables(Start(job.config))
    assert str(only) == "DEDUPER_STORE_SHARDS: is no setting, and is not read; write `DEDUPER__STORE__SHARDS`"
