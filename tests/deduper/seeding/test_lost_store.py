"""A store that is lost: a new one is filled from what the unique port has written, and the job goes on with it.

The real job, on a stand-in for a session, as in `test_seed`.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console

from bucket_store.pieces import rocksdb_backend
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import verify_store
from deduper.arrow_columns import arrow_type
from deduper.cli.views.soundness import render_verify as render
from deduper.core.digests import key_type
from deduper.errors import ExitCode, UsageError, exit_code_of
from deduper.seeding.run import plan_seed
from deduper.seeding.source import SeedInput
from tests.deduper.digest_cases import SCALARS
from tests.deduper.seeding import test_seed
from tests.deduper.seeding.test_seed import opened, seeded
from tests.deduper.store_memory import table_folders
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.slow
new_job = test_seed.new_job
EXPIRIES: dict[str, dict[str, Any]] = {
    "ordered": {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"},
    "event_time": {"by": "event_time", "field": "t", "unit": "s", "period": "100s", "span": "10s"},
    "category": {"by": "category", "field": "c", "live_categories": 3},
    "never": {"by": "never"},
}
Key = tuple[str, int]


def records(number: int) -> list[dict[str, Any]]:
    """A file: keys come again in later ones, within the period and beyond it; its greatest time is of a new key."""
    some = [{"k": f"{(number * 7 + key) % 40}", "t": number * 20 + key % 7} for key in range(25)]
    some += [{"k": f"new-{number}", "t": number * 20 + 19}, {"k": "late", "t": number * 20 - 200}]
    return [{**record, "c": f"c{number // 2}"} for record in some]


def answers(job: Job, names: set[str]) -> dict[str, list[Key]]:
    """The records of these files by port: file and position."""
    found = {
        port: [(Path(row["_dedup"]["source"]).name, row["_dedup"]["position"]) for row in job.rows(port)]
        for port in PORTS
    }
    return {port: sorted(one for one in some if one[0] in names) for port, some in found.items()}


def lost(job: Job, **settings: Any) -> Job:
    """A job beside one whose store is gone, on the same source, with a store and ports of its own."""
    shutil.rmtree(job.config.store.path)
    sinks = {port: {"format": "parquet", "path": f"out-2/{port}"} for port in PORTS}
    more = {"store": {"url": "file:state-2", "shards": 2}, "sinks": sinks, **settings}
    return Job(job.directory, job.session, {**job.settings, **more}, _files=job._files)


def outputs(job: Job) -> SeedInput:
    """What the job's unique port has written, as an input of a seed."""
    return SeedInput("files", str(job.directory / "out" / "unique"), is_of_outputs=True)


@pytest.mark.night(but=["event_time-csv", "category-json"])
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize("expiry", EXPIRIES)
def test_the_job_goes_on_as_if_its_store_was_there(
    expiry: str,
    form: str,
    new_job: Callable[..., Job],
) -> None:
    """From each format of the port: new files get the verdicts of a job that was not disturbed."""
    settings: dict[str, Any] = {
        "source": {"schema": "k string, t long, c string", "max_files_per_batch": 1},
        "expiry": EXPIRIES[expiry],
        "store": {"url": "file:state", "shards": 2},
    }
    undisturbed = new_job("undisturbed", **settings)
    job = new_job("job", **settings, sinks={"unique": {"format": form, "path": "out/unique"}})
    for each in (undisturbed, job):
        for number in range(6):
            each.add_records(records(number))
        each.run()
    rebuilt = lost(job)
    done = job.directory / "done"
    (job.directory / "in").rename(done)
    report = seeded(rebuilt, outputs(job))
    assert report.reasons == {}
    assert report.counts["unique"] == len(undisturbed.rows("unique"))
    new = set()
    for number in range(6, 9):
        new.add(undisturbed.add_records(records(number)).name)
        rebuilt.add_records(records(number))
    undisturbed.run()
    rebuilt.run()
    assert answers(rebuilt, new) == answers(undisturbed, new)
    assert not verify_store(opened(rebuilt)).findings


def flip_a_byte(store: OpenStore) -> None:
    """In the digests of the oldest piece."""
    ref = min((ref for refs in store.log.state.pieces.values() for ref in refs), key=lambda ref: ref.first_window)
    whole = store.pieces.read(ref)
    path = store.root.local / ref.file
    for file in sorted(path.glob("*.sst")) if path.is_dir() else [path]:
        data = file.read_bytes()
        at = data.find(whole[-200:])
        if at >= 0:
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
    raise AssertionError("the piece's bytes are nowhere")


def lose_a_file(store: OpenStore) -> None:
    """A whole segment or database."""
    path = store.root.local / store.log.state.pieces[0][0].file
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.night(but=["rocksdb-flip_a_byte", "file-lose_a_file"])
@pytest.mark.parametrize("damage", [flip_a_byte, lose_a_file])
@pytest.mark.parametrize("backend", ["rocksdb", "file"])
def test_damage_stops_the_job_and_names_its_place(
    backend: str, damage: Callable[[OpenStore], None], new_job: Callable[..., Job]
) -> None:
    """Exit code 4 with file and offset; `verify` finds it and says what to do; nothing is written meanwhile."""
    store = {"url": f"{backend}:state", "shards": 2, "tables": "tables"}
    job = new_job("job", store=store, expiry=EXPIRIES["ordered"], source={"max_files_per_batch": 1})
    for number in range(4):
        job.add_records(records(number))
    job.run()
    damage(opened(job))
    # As after a reboot: the pieces must be read.
    for folder in table_folders(job.config, opened(job).log.manifest.store_id):
        shutil.rmtree(folder, ignore_errors=True)
    rocksdb_backend._readers.clear()
    before = {port: job.rows(port) for port in PORTS}
    job.add_records(records(4))
    with pytest.raises(Exception, match=r"pieces/\d{4}/") as stopped:
        job.run()
    assert exit_code_of(stopped.value) is ExitCode.INTEGRITY
    assert "expected" in str(stopped.value)
    assert "at byte" in str(stopped.value)
    assert {port: job.rows(port) for port in PORTS} == before
    rocksdb_backend._readers.clear()
    report = verify_store(opened(job))
    assert report.exit_code is ExitCode.INTEGRITY
    console = Console(width=200, file=io.StringIO())
    console.print(*render(report), sep="\n")
    assert "deduper seed --outputs" in console.file.getvalue()  # type: ignore[attr-defined]


def test_files_that_stay_in_the_source_are_judged_again_and_give_no_unique(new_job: Callable[..., Job]) -> None:
    """Nothing says any more which files were judged: their rows leave by the other ports, within the period."""
    job = new_job("job", store={"url": "file:state", "shards": 2}, expiry=EXPIRIES["ordered"])
    files = [job.add_records(records(number)) for number in range(4)]
    job.run()
    unique = answers(job, {file.name for file in files})["unique"]
    rebuilt = lost(job)
    seeded(rebuilt, outputs(job))
    rebuilt.run()
    again = answers(rebuilt, {file.name for file in files})
    assert again["unique"] == []
    assert set(unique) <= {*again["duplicate"], *again["expired"]}


def list_of_judged_files() -> str:
    """The program of the page that lists the files to move away."""
    page = Path(__file__).parents[3] / "docs/recovery.md"
    found = re.search(r'^( +)python -c "(.*?)"$', page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[2].replace(f"\n{found[1]}", "\n")


def test_a_window_that_is_half_published_loses_no_row(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files stay in the source, by the list of the page: its rows that were not out leave by `unique`, once."""
    job = new_job(store={"url": "file:state", "shards": 2}, source={"max_files_per_batch": 1})
    for number in range(3):
        job.add_records({"k": key, "t": number} for key in ["again", *(f"{number}-{nth}" for nth in range(6))])
    job.run()
    keys = sorted(row["k"] for row in job.rows("unique"))
    # Of two writers' files in `unique` one was renamed, beside all files of other ports.
    newest = max((job.directory / "out/unique").glob("*.parquet"))
    parquet.write_table(parquet.ParquetFile(newest).read().slice(0, 3), newest)
    published = [row["k"] for row in job.rows("unique")]
    assert len(published) == len(keys) - 3
    monkeypatch.chdir(job.directory)
    capsys.readouterr()
    exec(list_of_judged_files(), {})
    (done := job.directory / "done").mkdir()
    for path in map(Path, capsys.readouterr().out.split()):
        path.rename(done / path.name)
    rebuilt = lost(job)
    seeded(rebuilt, outputs(job))
    rebuilt.run()
    assert sorted([*published, *(row["k"] for row in rebuilt.rows("unique"))]) == keys
    assert len(list(done.iterdir())) == 2
    assert len(rebuilt.rows("duplicate")) == 4


@pytest.mark.night(but=["secure-json"])
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize("digest", ["fast", "secure"])
def test_keys_of_every_type_are_known_again(form: str, digest: str, new_job: Callable[..., Job]) -> None:
    """Every scalar type, its edges and null, out of every format; CSV has no binary, and one empty text for two."""
    types = [name for name in SCALARS if not (form == "csv" and name in ("binary", "string"))]
    columns = {f"c{number}": name for number, name in enumerate(types)}
    job = new_job(
        f"{form}-{digest}",
        source={"file_format": "parquet", "schema": ", ".join(f"{name} {kind}" for name, kind in columns.items())},
        key=list(columns),
        null_keys="allow",
        digest=digest,
        store={"url": "file:state", "shards": 2},
        sinks={"unique": {"format": form, "path": "out/unique"}},
    )
    rows = [
        {name: ([*SCALARS[kind], None])[row % (len(SCALARS[kind]) + 1)] for name, kind in columns.items()}
        for row in range(2 * max(map(len, SCALARS.values())))
    ]
    schema = pa.schema([(name, arrow_type(key_type(kind))) for name, kind in columns.items()])
    job.add_table(pa.Table.from_pylist(rows, schema))
    job.run()
    unique = len(job.rows("unique")) if form != "csv" else None
    rebuilt = lost(job)
    report = seeded(rebuilt, outputs(job))
    assert report.reasons == {}
    rebuilt.run()
    assert rebuilt.rows("unique") == []
    assert len(rebuilt.rows("duplicate")) == len(rows)
    assert unique in (None, report.counts["unique"])


def test_columns_of_partition_folders_are_in_the_rows(new_job: Callable[..., Job]) -> None:
    """The outputs lie in no such folders."""
    for form in ("parquet", "csv"):
        job = new_job(
            form,
            source={"schema": "k string, day date"},
            key=["k", "day"],
            store={"url": "file:state", "shards": 2},
            sinks={"unique": {"format": form, "path": "out/unique"}},
        )
        for day in ("2024-02-29", "2024-03-01"):
            path = job.add_file(['{"k": "a"}', '{"k": "b"}', '{"k": "a"}'])
            (folder := path.parent / f"day={day}").mkdir()
            path.rename(folder / path.name)
        job.run()
        rebuilt = lost(job)
        assert seeded(rebuilt, outputs(job)).counts["unique"] == 4
        rebuilt.run()
        assert (len(rebuilt.rows("unique")), len(rebuilt.rows("duplicate"))) == (0, 6)


def test_outputs_of_two_formats_are_refused(new_job: Callable[..., Job]) -> None:
    """One format reads one kind; a pattern names the files of one."""
    job = new_job(store={"url": "file:state", "shards": 2})
    job.add_file(['{"k": "a"}'])
    job.run()
    (file,) = (job.directory / "out" / "unique").glob("*.parquet")
    shutil.copy(file, file.with_suffix(".json"))
    rebuilt = lost(job)
    with pytest.raises(UsageError, match="several formats"):
        plan_seed(rebuilt.config, outputs(job), None)
    given = SeedInput("files", f"{file.parent}/*.parquet", is_of_outputs=True)
    assert plan_seed(rebuilt.config, given, None).files == 1


def test_files_that_are_no_outputs_are_refused(new_job: Callable[..., Job]) -> None:
    """Their endings say nothing, and each of their keys would count by its latest copy."""
    job = new_job(store={"url": "file:state", "shards": 2})
    job.add_file(['{"k": "a"}'])
    with pytest.raises(UsageError, match="not all files are a port's"):
        plan_seed(job.config, SeedInput("files", str(job.directory / "in"), is_of_outputs=True), None)


@pytest.mark.parametrize("is_of_outputs", [False, True])
def test_a_place_is_seeded_as_outputs_or_as_records(is_of_outputs: bool, new_job: Callable[..., Job]) -> None:
    """Once: a second time its keys that have expired since would be back. Topics are told apart by the same rule."""
    job = new_job(store={"url": "file:state", "shards": 2}, source={"file_format": "parquet"})
    job.add_table(pa.table({"k": ["a"], "t": [1]}))
    job.run()
    rebuilt = lost(job)
    given = replace(outputs(job), is_of_outputs=is_of_outputs)
    seeded(rebuilt, given)
    with pytest.raises(UsageError, match="it was seeded with" + "out" * (not is_of_outputs) + " --outputs"):
        plan_seed(rebuilt.config, replace(given, is_of_outputs=not is_of_outputs), None)
    assert plan_seed(rebuilt.config, given, None).files == 1


def test_the_latest_copy_of_a_key_counts(new_job: Callable[..., Job]) -> None:
    """A duplicate moved the clock, so a key was unique again: by the unique rows alone its first copy still lives."""
    settings: dict[str, Any] = {"expiry": EXPIRIES["ordered"], "source": {"max_files_per_batch": 1}}
    job = new_job(store={"url": "file:state", "shards": 2}, **settings)
    job.add_records([{"k": "a", "t": 1}, {"k": "b", "t": 90}])
    job.add_records([{"k": "b", "t": 101}, {"k": "a", "t": 60}])
    job.run()
    assert [(row["k"], row["t"]) for row in job.rows("unique")] == [("a", 1), ("b", 90), ("a", 60)]
    rebuilt = lost(job)
    (job.directory / "in").rename(job.directory / "done")
    report = seeded(rebuilt, outputs(job))
    assert report.counts == {"unique": 3, "duplicate": 0, "expired": 0, "error": 0}
    assert not verify_store(opened(rebuilt)).findings
    rebuilt.add_records([{"k": "c", "t": 120}, {"k": "a", "t": 120}])
    rebuilt.run()
    assert [(row["k"], row["t"]) for row in rebuilt.rows("unique")] == [("c", 120)]
    assert not verify_store(opened(rebuilt)).findings
