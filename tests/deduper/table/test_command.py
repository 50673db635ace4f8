"""`deduper table`: answers, exit codes, mistakes with their places; real processes that are killed at their steps."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from bucket_store import failpoints
from deduper.cli.main import app
from deduper.table.operations.verify import verify
from deduper.units import approximate_size
from tests.deduper.table.scene import CHANGE_STEPS, CONFIG, ROLLBACK_STEPS, STEPS, Place, Row, arrow
from tests.forked import Forked, command
from tests.tiers import is_night

pytestmark = pytest.mark.slow


def deliver(folder: Path, name: str, rows: list[Row]) -> None:
    """A file of the batch."""
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(arrow(rows), folder / f"in/{name}.parquet")


def run(*words: str) -> Result:
    """A command in this process."""
    return CliRunner().invoke(app, ["table", *words])


RECEIPT = [
    *("operation", "load", "version", "rows", "inserted", "updated", "deleted", "found", "absent", "repeats", "errors"),
    *("found_in", "files", "removed_files", "removed_bytes", "removed_rows", "carried_rows", "read_files"),
    *("began_anew", "completed", "tries", "seconds"),
]
"""The names of a receipt, for programs."""


def test_the_answer_of_a_load(place: Place, tmp_path: Path) -> None:
    """For people, and for programs."""
    deliver(tmp_path, "a", [(1, "a", 0), (2, "b", 0), (1, "c", 0), (None, "d", 0)])
    first = run("load", str(tmp_path / "load.yaml"))
    assert first.exit_code == 0, first.stderr
    lines = [" ".join(line.split()) for line in first.stdout.splitlines()]
    for line in ("rows 4", "new 2 in 1 file", "repeats in the batch 1", "in the table 0", "errors 1 null_key"):
        assert line in lines
    second = json.loads(run("load", str(tmp_path / "load.yaml"), "--json").stdout)
    assert list(second) == RECEIPT
    assert (second["rows"], second["inserted"], second["found"], second["errors"]) == (4, 0, 3, {"null_key": 1})
    assert second["found_in"] == [{"path": place.files()[0], "rows": 3}]


def test_the_answer_of_an_upsert(place: Place, tmp_path: Path) -> None:
    """Without `--execute` the plan, and no file is made or changed; with it what was done."""
    file = str(tmp_path / "load.yaml")
    place.load([(1, "a", 0), (2, "a", 0), (3, "a", 1)])
    deliver(tmp_path, "a", [(1, "b", 0), (4, "b", 0), (4, "c", 0), (None, "d", 0)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan = run("upsert", file)
    assert plan.exit_code == 0, plan.stderr
    lines = [" ".join(line.split()) for line in plan.stdout.splitlines()]
    size = approximate_size((place.root / place.files()[0]).stat().st_size)
    for line in (
        *("plan upsert; nothing is written", "rows 4", "inserted 1", "updated 1", "repeats in the batch 1"),
        *("errors 1 null_key", "table version 0", f"rewritten 1 file, 2 rows, {size}"),
        "next `deduper table upsert` with `--execute` does it",
    ):
        assert line in lines
    counts = ["operation", "version", "rows", "inserted", "updated", "deleted", "absent", "repeats", "errors"]
    as_json = json.loads(run("upsert", file, "--json").stdout)
    assert list(as_json) == [*counts, "files", "file_rows", "bytes", "filled_files"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    done = run("upsert", file, "--execute")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in ("inserted 1", "updated 1", f"rewritten 1 file, 2 rows, {size}", "rows carried over 1", "new files 2"):
        assert line in lines
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 0), (3, "a", 1), (4, "b", 0)]
    again = json.loads(run("upsert", file, "--execute", "--json").stdout)
    assert list(again) == RECEIPT
    assert (again["updated"], again["removed_files"]) == (2, 2)


def test_the_answer_of_a_delete(place: Place, tmp_path: Path) -> None:
    """Without `--execute` the plan; a table that is not there has a place in the config."""
    file = str(tmp_path / "load.yaml")
    deliver(tmp_path, "a", [(1, "", 0), (9, "", 0)])
    missing = run("delete", file, "--execute")
    assert missing.exit_code == 2
    assert "load.yaml:2:15: table.path" in missing.stderr
    place.load([(1, "a", 0), (3, "a", 1)])
    lines = [" ".join(line.split()) for line in run("delete", file).stdout.splitlines()]
    for line in ("plan delete; nothing is written", "deleted 1", "not in the table 1"):
        assert line in lines
    assert place.held() == [(1, 0), (3, 1)]
    done = run("delete", file, "--execute")
    assert done.exit_code == 0, done.stderr
    assert place.held() == [(3, 1)]
    assert "rewritten no file" in " ".join(run("delete", file).stdout.split())


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_the_answer_of_a_rollback(place: Place, tmp_path: Path) -> None:
    """Without `--execute` the plan, and no file is made or changed; a version that is not there is exit code 2."""
    file = str(tmp_path / "load.yaml")
    deliver(tmp_path, "a", [(1, "a", 0), (2, "a", 0)])
    run("load", file)
    deliver(tmp_path, "a", [(1, "b", 0), (3, "b", 1)])
    run("upsert", file, "--execute")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan = run("rollback", file, "--to", "0")
    assert plan.exit_code == 0, plan.stderr
    lines = [" ".join(line.split()) for line in plan.stdout.splitlines()]
    for line in (
        *("plan rollback to version 0; nothing is written", "table version 1"),
        "next `deduper table rollback` with `--execute` does it",
    ):
        assert line in lines
    assert "files that go 2 files, 3 rows, " in " ".join(lines)
    assert "files that return 1 file, 2 rows, " in " ".join(lines)
    as_json = json.loads(run("rollback", file, "--to", "0", "--json").stdout)
    names = [f"{what}_{of}" for what in ("removed", "restored") for of in ("files", "rows", "bytes")]
    assert list(as_json) == ["version", "to", *names, "needed"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    done = json.loads(run("rollback", file, "--to", "0", "--execute", "--json").stdout)
    assert list(done) == [*as_json, "load", "read_files", "began_anew", "completed", "seconds"]
    assert sorted(place.rows()) == [(1, "a", 0), (2, "a", 0)]
    again = run("rollback", file, "--to", "0", "--execute")
    assert "nothing: the table is as it was in that version" in " ".join(again.stdout.split())
    wrong = run("rollback", file, "--to", "9")
    assert wrong.exit_code == 2
    assert "there is no version 9; the present one is 2" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (("key: k", "key: kk"), "load.yaml:3:6: key: there is no column `kk`; did you mean `k`?"),
        (("key: k", "key: k, v"), "load.yaml:3:6: key: there is no column `k, v`; write `key: [k, v]`"),
        (("partition_by: d", "partition_by: [d, x]"), "load.yaml:4:15: partition_by: there is no column `x`"),
        (("path: in", "path: nowhere"), "load.yaml:1:16: source.path: "),
        (("key: k", "key: []"), "load.yaml:3:6: key: "),
        (("errors: errors", "keep: {greatest: x}"), "load.yaml:6:7: keep: there is no column `x`"),
    ],
)
def test_a_setting_that_does_not_fit_has_its_place(wrong: tuple[str, str], found: str, tmp_path: Path) -> None:
    """Before the table's folder is made; exit code 2."""
    (tmp_path / "load.yaml").write_text(CONFIG.replace("FORMAT", "delta").replace(*wrong), encoding="utf-8")
    deliver(tmp_path, "a", [(1, "a", 0)])
    result = run("load", str(tmp_path / "load.yaml"))
    assert result.exit_code == 2
    assert found in result.stderr
    assert "nothing was started" in result.stderr
    assert not (tmp_path / "table").exists()


def test_exit_codes_of_a_load(place: Place, tmp_path: Path) -> None:
    """2 for a batch that does not fit, 4 for a damaged index."""
    deliver(tmp_path, "a", [(1, "a", 0)])
    assert run("load", str(tmp_path / "load.yaml")).exit_code == 0
    (piece,) = (place.root / "_deduper/index/pieces").iterdir()
    piece.write_bytes(b"no piece")
    damaged = run("load", str(tmp_path / "load.yaml"))
    assert damaged.exit_code == 4
    assert "the next load builds the index anew" in damaged.stderr
    (tmp_path / "in/a.parquet").write_bytes(b"no Parquet")
    wrong = run("load", str(tmp_path / "load.yaml"))
    assert wrong.exit_code == 2
    assert "a.parquet: cannot be read as Parquet" in wrong.stderr


def lives(*words: str) -> str:
    """What a process says that nothing kills."""
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_CHANGE = {
    *("index.state", "table.3.staged", "table.4.planned", "table.placed", "table.5.committed", "table.6.port"),
    "table.removed",
}


def chosen(steps: tuple[str, ...]) -> tuple[str, ...]:
    """All steps at night, else some; each format passes all of these but two."""
    return steps if is_night() else tuple(step for step in steps if step in IN_CHANGE)


@pytest.mark.night
@pytest.mark.crash
def test_real_kills_at_every_step(place: Place, tmp_path: Path) -> None:
    """A chain of loads, each killed at another step by SIGKILL, and at last one that lives: all rows, each once."""
    file = str(tmp_path / "load.yaml")
    expected: set[tuple[int, int]] = set()
    killed = 0
    words = ["table", "load", file, "--json"]
    steps = chosen(STEPS)
    for number, step in enumerate(steps):
        # Of each batch a part comes again with the next one.
        batch: list[Row] = [(key, "a", key % 3) for key in range(10 * number, 10 * number + 15)]
        deliver(tmp_path, "a", [*batch, (None, "x", 0), batch[0]])
        done = command(*words, armed=f"{step}=kill")
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        killed += done.returncode != 0
        if number % 2:
            receipt = json.loads(lives(*words))
            assert receipt["rows"] == 17
            expected |= {(key, day) for key, _, day in batch}  # type: ignore[misc]
        found = place.held()
        assert len(found) == len(set(found))
        assert expected <= set(found)
    assert run("load", file).exit_code == 0
    assert place.leftovers() == []
    assert killed >= len(steps) - (5 if is_night() else 2)


@pytest.mark.night
@pytest.mark.crash
def test_real_kills_of_upserts_and_deletes(place: Place, tmp_path: Path) -> None:
    """A chain of both, each killed at another step by SIGKILL: the table is as before or as after, nothing is left."""
    file = str(tmp_path / "load.yaml")
    rows = {(key, key % 3): "first" for key in range(30)}
    place.load([(key, value, day) for (key, day), value in rows.items()])
    killed = 0
    steps = chosen(CHANGE_STEPS)
    for number, step in enumerate(steps):
        kind = "delete" if number % 3 == 2 else "upsert"
        batch: list[Row] = [(key, f"turn {number}", key % 3) for key in range(number, number + 5)]
        deliver(tmp_path, "a", [*batch, (None, "x", 0)])
        new = dict(rows)
        for key, value, day in batch:
            assert key is not None
            assert day is not None
            if kind == "upsert":
                new[key, day] = value
            else:
                new.pop((key, day), None)
        words = ["table", kind, file, "--execute", "--json"]
        done = command(*words, armed=f"{step}=kill")
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        killed += done.returncode != 0
        held = {(key, day) for key, _, day in place.rows()}
        assert set(rows) & set(new) <= held, f"a key is missing after a death at {step}"
        place.load([])
        found = {(key, day): value for key, value, day in place.rows()}
        assert len(found) == len(place.rows())
        assert found in (rows, new)
        if number % 2:
            lives(*words)
            found = {(key, day): value for key, value, day in place.rows()}
            assert found == new
        rows = found
        assert place.leftovers() == []
    assert killed >= len(steps) - (3 if is_night() else 2)


@pytest.mark.parametrize("place", ["delta"], indirect=True)
@pytest.mark.night
@pytest.mark.crash
def test_real_kills_of_rollbacks(place: Place, tmp_path: Path) -> None:
    """Each is killed at another step by SIGKILL: the table is as before or as after, and a repetition is after."""
    file = str(tmp_path / "load.yaml")
    deliver(tmp_path, "a", [(key, "old", key % 3) for key in range(9)])
    run("load", file)
    old = sorted(place.rows())
    killed = 0
    steps = chosen(ROLLBACK_STEPS)
    for step in steps:
        deliver(tmp_path, "a", [(key, step, key % 3) for key in range(4, 14)])
        assert run("upsert", file, "--execute").exit_code == 0
        new = sorted(place.rows())
        (place.root / "_deduper/index/state").unlink()  # so that the index is written
        words = ["table", "rollback", file, "--to", "0", "--execute", "--json"]
        done = command(*words, armed=f"{step}=kill")
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        killed += done.returncode != 0
        held = {(key, day) for key, _, day in place.rows()}
        assert {(key, day) for key, _, day in old} <= held, f"a key is missing after a death at {step}"
        place.upsert([])
        assert sorted(place.rows()) in (old, new), step
        lives(*words)
        assert sorted(place.rows()) == old
        assert place.leftovers() == []
    assert killed >= len(steps) - (3 if is_night() else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "step", "said"),
    [
        pytest.param(
            ["load"],
            "table.1.locked",
            "SIGTERM: stopped; nothing was committed, the table is as it was; the next write",
            marks=pytest.mark.night,
        ),
        pytest.param(
            ["upsert", "--execute"],
            "table.3.staged",
            "SIGTERM: stopped; nothing was committed, the table is as it was",
            marks=pytest.mark.night,
        ),
        (["upsert", "--execute"], "table.4.planned", "SIGTERM: stopped; it may be committed: the next write completes"),
        pytest.param(
            ["delete", "--execute"],
            "table.6.published",
            "SIGTERM: stopped; it is committed, the table has all its rows",
            marks=pytest.mark.night,
        ),
        pytest.param(
            ["rollback", "--execute", "--to", "0"],
            "table.1.locked",
            "SIGTERM: stopped; nothing was committed",
            marks=pytest.mark.night,
        ),
        (["rebuild"], "index.rebuilt", "SIGTERM: stopped; the old index counts; repeat the command, which continues"),
    ],
)
def test_a_write_that_is_stopped_says_what_is_done(words: list[str], step: str, said: str, tmp_path: Path) -> None:
    """SIGTERM ends it at once, with one line; the command then does all of it. So does Ctrl-C."""
    place = Place(tmp_path, "delta")
    (tmp_path / "load.yaml").write_text(CONFIG.replace("FORMAT", "delta"), encoding="utf-8")
    place.load([(1, "a", 0), (2, "a", 1)])
    place.upsert([(1, "b", 0)])
    deliver(tmp_path, "a", [(1, "c", 0), (1, "d", 0), (3, "c", 0), (None, "e", 0)])
    kind, *options = words
    for number in (signal.SIGTERM, signal.SIGINT):
        there = tmp_path / f"{number.name}.there"
        environment = {**os.environ, failpoints.ENVIRONMENT: f"{step}=hang:once={there}"}
        outputs = [tmp_path / f"{number.name}.{name}" for name in ("out", "err")]
        process = Forked(("table", kind, str(tmp_path / "load.yaml"), *options), environment, *outputs)
        deadline = time.monotonic() + 60
        while not there.exists():
            assert time.monotonic() < deadline
            assert process.poll() is None, outputs[1].read_text(encoding="utf-8")
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        line = outputs[1].read_text(encoding="utf-8").splitlines()[-1]
        assert line.startswith(said.replace("SIGTERM", number.name))
    assert run(kind, str(tmp_path / "load.yaml"), *options).exit_code == 0
    assert place.leftovers() == []
    assert verify(place.config()).is_sound
