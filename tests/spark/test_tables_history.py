"""A job's folder is copied, moved and restored beside the resident tables of its machines: every row leaves once.

The files that were read are removed where a folder goes to another path: the source names them by
their whole paths.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deduper.window import policy, table_folder
from tests.spark.harness import Job

pytestmark = pytest.mark.spark

A, B, C = ([f"{letter}{number}" for number in range(50)] for letter in "abc")


@pytest.fixture
def job(new_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that has judged the keys A in window 0, on a machine of its own."""
    on_machine(monkeypatch, tmp_path / "machine A")
    made = new_job(store={"url": "file:state", "shards": 2}, sinks={})
    assert judged(made, A) == {"unique": A}
    return made


def on_machine(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    """From here on the tables lie in this machine's memory and on its disk."""
    (machine / "shm").mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", machine / "shm")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(machine / "tmp"))


def judged(job: Job, keys: Sequence[str]) -> dict[str, list[str]]:
    """The keys that left by each port in the one window that these keys, in one new file, make."""
    before = {port: Counter(row["k"] for row in job.rows(port)) for port in ("unique", "duplicate")}
    path = job.add_records([{"k": key} for key in keys], f"{len(job.progress):04d}-{keys[0]}.json")
    assert job.run().windows == 1
    path.unlink()
    new = {port: Counter(row["k"] for row in job.rows(port)) - seen for port, seen in before.items()}
    return {port: sorted(count.elements(), key=keys.index) for port, count in new.items() if count}


def at_other_path(job: Job, directory: Path, place: Callable[[Path, Path], object]) -> Job:
    """The job after its folder was copied or moved."""
    place(job.directory, directory)
    return Job(directory, job.session, job.settings)


@pytest.mark.night(but=["own tables"])
@pytest.mark.parametrize("is_one_folder", [False, True], ids=["own tables", "tables shared"])
def test_a_copied_folder_goes_on_beside_its_original(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_one_folder: bool
) -> None:
    """In turn on one machine: each judges by its own windows, also where both have one path, as in two containers."""
    if is_one_folder:
        monkeypatch.setattr(policy, "table_folder", lambda store_id, _: f"{store_id}-0000beef")
    copy = at_other_path(job, job.directory.with_name("copy"), shutil.copytree)
    assert judged(job, B) == {"unique": B}
    with caplog.at_level(logging.WARNING, "bucket_store.log.copies"):
        assert judged(copy, C) == {"unique": C}
    assert f"is a copy of the store {job.directory / 'state'}" in caplog.text
    assert judged(job, ["x"]) == {"unique": ["x"]}
    assert judged(copy, C + B) == {"unique": B, "duplicate": C}
    assert judged(job, [*C, *B, "x"]) == {"unique": C, "duplicate": [*B, "x"]}
    assert judged(copy, ["x", *A]) == {"unique": ["x"], "duplicate": A}


def test_a_moved_folder_goes_on(job: Job) -> None:
    """Its tables are recreated."""
    moved = at_other_path(job, job.directory.with_name("moved"), shutil.move)
    assert judged(moved, A + B) == {"unique": B, "duplicate": A}


@pytest.mark.night
def test_a_restored_folder_goes_on(job: Job) -> None:
    """Store and outputs of window 0 are put back while the machine's tables hold three windows more."""
    backup = job.directory.with_name("backup")
    shutil.copytree(job.directory, backup, copy_function=shutil.copy2)
    for keys in (B, C, ["x"]):
        assert judged(job, keys) == {"unique": keys}
    shutil.rmtree(job.directory)
    shutil.copytree(backup, job.directory, copy_function=shutil.copy2)
    assert judged(job, A + B) == {"unique": B, "duplicate": A}
    assert judged(job, [*B, "x"]) == {"unique": ["x"], "duplicate": B}


@pytest.mark.night
@pytest.mark.parametrize("from_backup", [False, True], ids=["same history", "older copy"])
def test_a_job_comes_back_to_the_first_machine(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_backup: bool
) -> None:
    """Machine A has tables of earlier windows, or of windows that machine B never had."""
    lost: list[str] = []
    assert judged(job, ["w"]) == {"unique": ["w"]}
    if from_backup:
        backup = job.directory.with_name("backup")
        shutil.copytree(job.directory, backup, copy_function=shutil.copy2)
        lost = ["x", "y"]
        for key in lost:
            assert judged(job, [key]) == {"unique": [key]}
        shutil.rmtree(job.directory)
        shutil.copytree(backup, job.directory, copy_function=shutil.copy2)
    tables = sorted((tmp_path / "machine A").rglob("*.table"))
    nonces = {path: path.read_bytes()[16:32] for path in tables}
    assert tables
    on_machine(monkeypatch, tmp_path / "machine B")
    for keys in (B, C, ["z"]):
        assert judged(job, keys) == {"unique": keys}
    on_machine(monkeypatch, tmp_path / "machine A")
    assert judged(job, [*lost, *A, *B, *C, "z"]) == ({"unique": lost} if lost else {}) | {
        "duplicate": [*A, *B, *C, "z"]
    }
    kept = [path for path in tables if path.exists() and path.read_bytes()[16:32] == nonces[path]]
    assert kept == ([] if from_backup else tables)
