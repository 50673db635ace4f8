"""A job whose store is seeded: it goes on as one that had seen those records, however the seed was interrupted.

The real job, on a stand-in for a session: of windows as small as these, read without Spark, Spark does nothing.
"""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.status import store_status
from deduper.admin.verify.run import verify_store
from deduper.cli.main import app
from deduper.config.files import FilesSource
from deduper.errors import UsageError, exit_code_of
from deduper.replay.files import source_files
from deduper.seeding.run import SeedReport, Statement, plan_seed, seed
from deduper.seeding.source import KnownByOrder, SeededFiles, SeedInput
from deduper.sources.files.batch import FileBatches
from deduper.sources.files.listing import list_files
from deduper.testing import Oracle, Row, Settings
from deduper.window.completeness import complete_since, is_complete
from tests import triggers
from tests.deduper.killed_runs import Killed, killing
from tests.spark.harness import Job

pytestmark = pytest.mark.slow
PERIOD = 100
EXPIRY = {"by": "ordered", "field": "t", "period": PERIOD, "span": 10, "lookup": "all_live"}
FILES = 4


def records(seed: int, number: int) -> list[dict[str, Any]]:
    """A file; its keys come again in later ones, within the period and beyond it, and some records are late."""
    draw = random.Random(f"{seed} {number}")
    return [{"k": str(draw.randrange(60)), "t": number * 40 + draw.randrange(-120, 40)} for _ in range(50)]


def judged(given: list[list[dict[str, Any]]], lookup: str = "all_live") -> list[list[str]]:
    """The oracle's verdicts, a file a window."""
    oracle = Oracle(Settings("ordered", period=PERIOD, span=10, lookup=lookup))
    windows = [oracle.judge([[Row((row["k"],), row["t"]) for row in rows]], 0) for rows in given]
    return [[answer[0] for answer in part] for window in windows for part in window]


def opened(job: Job) -> OpenStore:
    """The store with its config."""
    store = open_store(job.config.store.url)
    return OpenStore(store.url, job.config, store.log, store.pieces)


def old_files(job: Job, number: int, files: int = FILES) -> Path:
    """Files outside of the source, in their order."""
    job._files = 0
    for index in range(files):
        path = job.add_records(records(number, index))
        (job.directory / "old").mkdir(exist_ok=True)
        path.rename(job.directory / "old" / path.name)
    return job.directory / "old"


def seeded(job: Job, given: SeedInput, since: int | None = None) -> SeedReport:
    """The seed of a job, in its session."""
    return seed(job.config, given, None if since is None else Statement(since), session=job.session)


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Makes jobs, each in a directory of its own below the test's."""
    context = SimpleNamespace(master="local[2]", defaultParallelism=2, getConf=dict)
    session = cast(SparkSession, SimpleNamespace(sparkContext=context))
    monkeypatch.setattr("deduper.service.job.require_promises", lambda *_: None)
    triggers.stand_in(monkeypatch)

    def make(name: str = "job", **settings: Any) -> Job:
        directory = tmp_path / name
        directory.mkdir()
        return Job(directory, session, settings)

    return make


def seeded_with_kills(job: Job, given: SeedInput, points: tuple[str, ...], kill: Callable[[str], None]) -> SeedReport:
    """The seed, killed once at each of these points and repeated."""
    for point in points:
        kill(point)
        with pytest.raises(Killed):
            seeded(job, given, -200)
    kill("")
    return seeded(job, given, -200)


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """See `killing`."""
    return killing(monkeypatch)


POINTS = (
    "start.claimed",
    "seed.begun",
    "window.7.checkpoint",
    "window.7.checkpoint@2",
    "seed.drained",
    "seed.proven",
    "move.claimed",
)


@pytest.mark.night(but=["all_live-rocksdb"])
@pytest.mark.parametrize("backend", ["file", "rocksdb"])
@pytest.mark.parametrize("lookup", ["all_live", "own_bucket"])
def test_the_job_continues_as_one_that_had_seen_the_records(
    backend: str, lookup: str, new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """Killed between any two steps and repeated: the oracle's verdicts, the mark, and a sound store."""
    settings: dict[str, Any] = {
        "store": {"url": f"{backend}:state", "shards": 2},
        "expiry": {**EXPIRY, "lookup": lookup},
        "source": {"max_files_per_batch": 1},
    }
    job = new_job(**settings)
    old = old_files(job, 1)
    given = SeedInput("files", str(old))
    report = seeded_with_kills(job, given, POINTS, kill)
    assert report.windows == 0  # the kills have left nothing to judge
    assert report.after is not None
    assert report.before == report.after
    assert report.after.count > 0
    state = CommitLog.open(job.config.store.place).state
    assert state.next_window == FILES
    before = [verdict for part in judged([records(1, index) for index in range(FILES)], lookup) for verdict in part]
    assert state.totals == {port: before.count(port) for port in ("unique", "duplicate", "expired", "error")}
    mark = complete_since(state)
    assert mark is not None
    assert mark.point == -200
    assert is_complete(job.config, state)
    assert [(note["action"], note["keys"]) for note in state.notes] == [("seed", report.after.count)]

    again = seeded(job, given, -200)
    assert (again.windows, again.after) == (0, report.after)

    files = [job.add_records(records(1, FILES + index)) for index in range(2)]
    job.run()
    everything = judged([records(1, index) for index in range(FILES + 2)], lookup)
    assert job.verdicts(files) == everything[FILES:]
    first = {row["_dedup"]["first_seen"]["source"] for row in job.rows("duplicate")}
    assert any(source.startswith(f"seed:{old}/file-") for source in first)
    assert not verify_store(opened(job)).findings
    assert complete_since(CommitLog.open(job.config.store.place).state) == mark
    with pytest.raises(UsageError, match="a job has judged windows") as refused:
        seeded(job, given)
    assert exit_code_of(refused.value) == 2


def test_one_run_and_many_killed_ones_leave_the_same_keys(
    new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """The proof of a whole run: none before, the unique ones after, without those that died."""
    settings: dict[str, Any] = {
        "store": {"url": "file:state", "shards": 2},
        "expiry": {"by": "never"},
        "source": {"max_files_per_batch": 1},
    }
    once, often = new_job("once", **settings), new_job("often", **settings)
    whole = seed(once.config, SeedInput("files", str(old_files(once, 4))), Statement(None), session=once.session)
    assert whole.before is not None
    assert whole.after is not None
    assert (whole.before.count, whole.after.count, whole.died) == (0, whole.counts["unique"], 0)
    assert whole.complete_since == "ever"
    assert whole.is_complete
    given = SeedInput("files", str(old_files(often, 4)))
    for point in ("window.7.checkpoint", "window.7.checkpoint", "seed.drained"):
        kill(point)
        with pytest.raises(Killed):
            seeded(often, given)
    kill("")
    parts = seeded(often, given)
    assert parts.after is not None
    assert parts.after.count == whole.after.count
    assert not parts.is_complete


def test_a_renewed_key_is_not_seeded_twice(new_job: Callable[..., Job]) -> None:
    """Judged again, the second copy would be unique: its first one has expired since. Newer files are still judged."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old = job.directory / "old"
    old.mkdir()

    def add(rows: list[dict[str, Any]]) -> Path:
        path = job.add_records(rows)
        return path.rename(old / path.name)

    first = add([{"k": "a", "t": 10}, {"k": "a", "t": 105}, {"k": "b", "t": 120}])
    given = SeedInput("files", str(old))
    assert seeded(job, given).counts == {"unique": 2, "duplicate": 1, "expired": 0, "error": 0}
    again = seeded(job, given)
    assert again.before == again.after
    assert not any(again.counts.values())
    add([{"k": "b", "t": 130}])
    assert seeded(job, given).counts["duplicate"] == 1
    first.unlink()
    with pytest.raises(UsageError, match="not its oldest files any more"):
        seeded(job, given)


@pytest.mark.parametrize("other", ["old/file-0001*", "old/../old", "link"])
def test_files_that_were_seeded_are_not_judged_again_under_another_name(
    other: str, new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """By a pattern, another spelling of the folder, or a link to it; also where the first seed was interrupted."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY, source={"max_files_per_batch": 1})
    given = SeedInput("files", str(old_files(job, 9)))
    (job.directory / "link").symlink_to(job.directory / "old")
    kill("window.7.checkpoint@2")
    with pytest.raises(Killed):
        seeded(job, given)
    kill("")
    with pytest.raises(UsageError, match="was seeded as a file of"):
        seeded(job, SeedInput("files", f"{job.directory}/{other}"))
    seeded(job, given)
    with pytest.raises(UsageError, match="was seeded as a file of"):
        plan_seed(job.config, SeedInput("files", f"{job.directory}/{other}"), None)


def test_a_file_that_vanishes_ends_the_seed_and_is_judged_once_it_is_back(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as judged: its keys would be lacking for ever, under a statement that none is."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry={"by": "never"}, source={"max_files_per_batch": 1})
    old = old_files(job, 10, files=3)
    second, aside = sorted(old.iterdir())[1], job.directory / "aside"

    def take(name: str) -> None:
        if name == "window.7.checkpoint" and not aside.exists():
            second.rename(aside)

    monkeypatch.setattr(failpoints, "hit", take)
    with pytest.raises(UsageError, match="is gone"):
        seeded(job, SeedInput("files", str(old)))
    assert store_status(opened(job), last=1).history.is_seed_open
    aside.rename(second)
    aside.touch()
    after = seeded(job, SeedInput("files", str(old))).after
    assert after is not None
    assert after.count == len({row["k"] for index in range(3) for row in records(10, index)})


def test_a_file_that_is_not_finished_holds_the_seed(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """In a folder of Spark's sink: once its log lists it, it may be older than files that were judged."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY, source={"max_files_per_batch": 1})
    old = old_files(job, 11)
    names = sorted(path.name for path in old.iterdir())
    (old / "empty.json").touch()  # has nothing to seed, and holds nothing
    log = old / "_spark_metadata" / "0"
    log.parent.mkdir()

    def lists(whole: list[str]) -> None:
        log.write_text("\n".join(["v1", *(json.dumps({"path": f"file://{old}/{name}"}) for name in whole)]))

    given = SeedInput("files", str(old))
    lists([name for name in names if name != names[1]])
    for act in (lambda: plan_seed(job.config, given, None), lambda: seeded(job, given)):
        with pytest.raises(UsageError, match=f"{names[1]} is not finished by its writer"):
            act()
    assert not job.config.store.path.exists()
    lists(names)
    kill("window.7.checkpoint@2")
    with pytest.raises(Killed):
        seeded(job, given)
    kill("")
    report = seeded(job, given)
    assert (report.files, report.windows, sum(report.counts.values())) == (FILES, FILES - 2, 50 * (FILES - 2))


def test_a_file_that_may_not_be_read_holds_the_seed(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be older than those that are judged. A replay counts it among those that it leaves out."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old = old_files(job, 13, files=2)
    link = old / "link.json"
    stat = os.stat

    def denied(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if path == str(link):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return stat(path, *arguments, **more)

    link.symlink_to(next(old.iterdir()))
    monkeypatch.setattr(os, "stat", denied)
    given = SeedInput("files", str(old))
    for act in (lambda: plan_seed(job.config, given, None), lambda: seeded(job, given)):
        with pytest.raises(UsageError, match=r"link\.json leads to a place that this user may not enter"):
            act()
    source = FilesSource.model_validate(
        {"format": "files", "path": str(old), "file_format": "json", "schema": "k string"}
    )
    files, waiting = source_files(source)
    assert (len(files), waiting) == (2, 1)


def test_the_order_of_a_seed_is_that_of_finished_files(tmp_path: Path) -> None:
    """As a job takes them: one that comes unfinished between two runs has no place yet."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "_spark_metadata").mkdir()
    for number, name in enumerate(["a", "failed", "b", "c"]):
        (folder / name).write_text('{"k": "x"}\n')
        os.utime(folder / name, (1000 + number, 1000 + number))
    listed = [json.dumps({"path": f"file://{folder}/{name}"}) for name in "abc"]
    (folder / "_spark_metadata" / "0").write_text("\n".join(["v1", *listed]))
    raw = {"format": "files", "path": str(folder), "file_format": "json", "schema": "k string"}
    source = FilesSource.model_validate({**raw, "max_files_per_batch": 1})
    reading: Any = None
    judged = SeededFiles()
    for name in "abc":
        batches = FileBatches(source, KnownByOrder(judged, source), reading)
        batches.list_new()
        batch = batches.next_batch()
        assert batch is not None
        assert [Path(one.name).name for one in batch.partitions] == [name]
        judged = judged.after(batch)
    assert KnownByOrder(judged, source).new(list_files(source)) == []


def test_a_link_in_a_circle_is_passed_over(new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture) -> None:
    """As by a job, with a warning."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old = old_files(job, 12, files=2)
    (old / "loop").symlink_to("loop")
    report = seeded(job, SeedInput("files", str(old)))
    assert (report.is_executed, report.files) == (True, 2)
    assert "loop cannot be looked at" in caplog.text


def test_a_pattern_that_matches_a_folder_and_its_files_gives_each_once(new_job: Callable[..., Job]) -> None:
    """Else the same command finds other files the second time, and is refused."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old_files(job, 8, files=2)
    given = SeedInput("files", f"{job.directory}/{{old,old/*}}")
    assert plan_seed(job.config, given, None).files == 2
    once = seeded(job, given)
    again = seeded(job, given)
    assert (once.after, again.after, again.windows) == (once.after, once.after, 0)


def test_without_a_statement_a_seed_sets_no_mark(new_job: Callable[..., Job]) -> None:
    """The first window of the job does; `unique` is final a period later."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old = old_files(job, 2, files=1)
    assert not seeded(job, SeedInput("files", str(old))).is_complete
    assert complete_since(CommitLog.open(job.config.store.place).state) is None
    first = job.add_records([{"k": "a", "t": 60}])
    job.run()
    state = CommitLog.open(job.config.store.place).state
    mark = complete_since(state)
    assert mark is not None
    assert mark.point == state.latest_point
    assert not is_complete(job.config, state)
    later = job.add_records([{"k": "b", "t": state.latest_point + PERIOD}])  # type: ignore[operator]
    job.run()
    assert is_complete(job.config, CommitLog.open(job.config.store.place).state)
    assert job.verdicts([first, later]) == [["unique"], ["unique"]]


@pytest.mark.night(but=["seed.proven"])
@pytest.mark.parametrize("point", ["seed.begun", "window.7.checkpoint@2", "seed.proven"])
def test_a_job_does_not_take_half_a_seed_for_a_whole_one(
    point: str, new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """Refused until the command was repeated; then nothing is lacking."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY, source={"max_files_per_batch": 1})
    given = SeedInput("files", str(old_files(job, 5)))
    kill(point)
    with pytest.raises(Killed):
        seeded(job, given)
    kill("")
    files = [job.add_records(records(5, FILES))]
    assert store_status(opened(job), last=1).history.is_seed_open
    with pytest.raises(UsageError, match="a seed of this store is not over") as refused:
        job.run()
    assert exit_code_of(refused.value) == 2
    seeded(job, given)
    assert not store_status(opened(job), last=1).history.is_seed_open
    job.run()
    assert job.verdicts(files) == judged([records(5, index) for index in range(FILES + 1)])[FILES:]
    with pytest.raises(UsageError, match="a job has judged windows"):
        plan_seed(job.config, given, None)


def test_a_path_without_files_is_refused_and_bad_rows_are_counted_by_reason(new_job: Callable[..., Job]) -> None:
    """A wrong path must not end as a whole seed of nothing; no store is made for it."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    (job.directory / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(UsageError, match="--files"):
            seeded(job, SeedInput("files", str(job.directory / name)))
    assert not (job.directory / "state").exists()
    job.add_file(['{"k": "a", "t": 1}', '{"k": ', '{"k": "b"}'])
    report = seeded(job, SeedInput("files", str(job.directory / "in")))
    assert report.counts["error"] == sum(report.reasons.values()) == 2
    assert len(report.reasons) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name one input"),
        (["--files", "old", "--topic", "old"], "name one input"),
        (["--files", "old", "--from", "2025-03-01"], "are of a --topic"),
        (["--topic", "old"], "add --brokers"),
    ],
)
def test_the_command_has_one_input(words: list[str], reason: str, tmp_path: Path) -> None:
    """Exit code 2, and the option that is lacking or too many."""
    config = tmp_path / "job.yaml"
    config.write_text(
        "name: seed\nsource: {format: files, path: in, file_format: json, schema: k string}\nkey: k\n"
        "expiry: {by: never}\nstore: {url: 'file:state'}\nsinks: {unique: {format: none}, duplicate: {format: none}, "
        "expired: {format: none}, error: {format: none}}\n"
    )
    done = CliRunner().invoke(app, ["seed", str(config), *words])
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())


def test_a_seed_is_refused_beside_a_job(new_job: Callable[..., Job]) -> None:
    """Its heartbeat moves: exit code 5, and nothing is changed."""
    job = new_job(store={"url": "file:state", "shards": 2}, expiry=EXPIRY)
    old = old_files(job, 6, files=2)
    seeded(job, SeedInput("files", str(old)))
    log = CommitLog.open(job.config.store.place)
    with (
        HeartBeat(log.root, "elsewhere:1"),
        pytest.raises(Exception, match="another process owns this store") as refused,
    ):
        seeded(job, SeedInput("files", str(old)))
    assert exit_code_of(refused.value) == 5
    assert CommitLog.open(job.config.store.place).state.next_number == log.state.next_number
