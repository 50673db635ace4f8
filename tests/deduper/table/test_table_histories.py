"""Random histories of a table as it is used: real processes that are killed, other writers before, between and beside.

The oracle is a dictionary. The seed of the run is printed; with it and the number of a history all that is drawn comes
again, but not the instant at which a process dies that is killed by the clock, or at which another writer commits.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from bucket_store import failpoints
from deduper.table.formats.protocol import PRIVATE
from deduper.table.operations.verify import verify
from tests import tiers
from tests.deduper.table.scene import CHANGE_STEPS, EPOCH, Place, Row, arrow
from tests.forked import Forked, command

pytestmark = [pytest.mark.night, pytest.mark.crash]

HISTORIES = 10
OPERATIONS = 30
"""Of a history: about ten seconds."""
Id = tuple[int, ...]
Rows = dict[Id, tuple[int, str, int]]


class History:
    """A table and what is to be in it; each method that changes it is an operation."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.scope = rng.choice(["partition", "global"])
        self.place = Place(folder, rng.choice(["delta", "delta", "parquet"]), rng.choice(["exact", "exact", "bloom"]))
        self.rows: Rows = {}
        self.kills = 0
        self.failed: set[str] = set()
        """Operations whose error is in the port for certain, and those that may have died before."""
        self.may_have_failed: set[str] = set()
        self._versions: dict[int, Rows] = {}
        self._fresh = 1000
        self._more = f"scope: {self.scope}\ntarget_file_bytes: {rng.choice(['1KiB', '128MiB'])}\n"
        self._more += rng.choice(["", "small_file_bytes: 1KiB\n"])
        self._step = 0
        (folder / "in").mkdir()
        self._write("load", [(1, "first", 0)])

    @property
    def is_delta(self) -> bool:
        return self.place.format == "delta"

    def id_of(self, key: int, day: int) -> Id:
        """What a row's key is in its scope."""
        return (key,) if self.scope == "global" else (key, day)

    def operate(self) -> None:
        """One operation, and a look at the table afterwards."""
        self._step += 1
        foreign = [self._append, self._lose_index]
        foreign += (
            [self._delete_foreign, self._update, self._merge, self._compact, self._restore, self._vacuum]
            if self.is_delta
            else [self._remove_file, self._rename_file]
        )
        if self.rng.random() < 0.35:
            self.rng.choice(foreign)()
        else:
            kind = self.rng.choice(["load", "upsert", "upsert", "delete"])
            self._write(kind, self._batch(), dies=self.rng.random() < 0.4, beside=self.rng.random() < 0.3)
        self._check()
        if self.is_delta:
            self._versions[DeltaTable(str(self.place.root)).version()] = dict(self.rows)

    def finish(self) -> None:
        """The end: the index is right, nothing is left, each error is in its port once."""
        self._write("load", [])
        assert verify(self.place.config(self._more)).is_sound
        assert self.place.leftovers() == []
        found = [pq.ParquetFile(file).read(["v"]) for file in self.place.ports["errors"].glob("*.parquet")]
        errors = Counter(value for table in found for value in table["v"].to_pylist())
        assert all(count <= 1 + (value in self.may_have_failed) for value, count in errors.items())
        assert self.failed <= set(errors) <= self.failed | self.may_have_failed

    def _batch(self) -> list[Row]:
        keys = [*range(40), *(row[0] for row in self.rows.values())]
        rows: list[Row] = [
            (self.rng.choice(keys), f"{self._step}.{number}", self.rng.randrange(3))
            for number in range(self.rng.randrange(15))
        ]
        return rows + [(None, f"error {self._step}", 0)] * self.rng.randrange(2)

    def _after(self, kind: str, batch: list[Row]) -> Rows:
        """The rows after a write."""
        kept: Rows = {}
        for key, value, day in batch:
            if key is not None and day is not None:
                kept.setdefault(self.id_of(key, day), (key, value, day))
        if kind == "load":
            return kept | self.rows
        if kind == "upsert":
            return self.rows | kept
        return {one: row for one, row in self.rows.items() if one not in kept}

    def _write(self, kind: str, batch: list[Row], *, dies: bool = False, beside: bool = False) -> None:
        pq.write_table(arrow(batch), self.place.root.parent / "in/a.parquet")
        self.place.config(self._more)
        options = ["--execute"] * (kind != "load")
        tags = {value for key, value, _ in batch if key is None}
        with self._other_writer() if beside else contextlib.nullcontext():
            if dies:
                self._kill(kind, *options)
                self.may_have_failed |= tags
        if dies:
            either = (self.rows, self._after(kind, batch))
            if self.is_delta:
                assert self._held() in either
            then = self.rng.choice(["repeat", "complete", "leave"])
            if then == "complete" or (then == "leave" and not self.is_delta):
                self._complete()
            if then != "repeat":
                self.rows = self._held()
                assert self.rows in either
                return
        with self._other_writer() if beside else contextlib.nullcontext():
            self._lives(kind, *options)
        self.rows = self._after(kind, batch)
        self.failed |= tags - self.may_have_failed

    def _complete(self) -> None:
        """A write without rows: what a dead one has left is completed or removed."""
        pq.write_table(arrow([]), self.place.root.parent / "in/a.parquet")
        self._lives("load")

    def _lives(self, kind: str, *options: str) -> None:
        done = command("table", kind, str(self.place.root.parent / "place.yaml"), *options)
        assert done.returncode == 0, done.stderr

    def _kill(self, kind: str, *options: str) -> None:
        """Runs a command that dies at a step, or by the clock, or lives if it has come to its end before."""
        armed = f"{self.rng.choice(CHANGE_STEPS)}=kill@{self.rng.randint(1, 2)}" if self.rng.random() < 0.5 else ""
        outputs = [self.place.root.parent / name for name in ("stdout", "stderr")]
        words = ("table", kind, str(self.place.root.parent / "place.yaml"), *options)
        process = Forked(words, {**os.environ, failpoints.ENVIRONMENT: armed}, *outputs)
        if not armed:
            time.sleep(self.rng.uniform(0, 0.4))
            process.kill()
        process.wait(60)
        self.kills += process.returncode != 0

    @contextlib.contextmanager
    def _other_writer(self) -> Iterator[None]:
        """Another one adds rows of new keys meanwhile, a few times."""
        ended = threading.Event()
        pauses = [self.rng.uniform(0.01, 0.2) for _ in range(3)]

        def write() -> None:
            for pause in pauses:
                if ended.wait(pause):
                    return
                self._append()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _append(self) -> None:
        self._fresh += 1
        key, day = self._fresh, self._fresh % 3
        row = (key, "foreign", day)
        if self.is_delta:
            write_deltalake(str(self.place.root), arrow([row]), mode="append", partition_by=["d"])
        else:
            folder = self.place.root / f"d={EPOCH.fromordinal(EPOCH.toordinal() + day)}"
            folder.mkdir(exist_ok=True)
            pq.write_table(arrow([row]).drop_columns(["d"]), folder / ".new")
            (folder / ".new").rename(folder / f"foreign-{key}.parquet")
        self.rows[self.id_of(key, day)] = row

    def _lose_index(self) -> None:
        shutil.rmtree(self.place.root / PRIVATE / self.place.index.replace("exact", "index"), ignore_errors=True)

    def _delete_foreign(self) -> None:
        least = self.rng.randrange(40)
        DeltaTable(str(self.place.root)).delete(f"k >= {least} and k < {least + 5}")
        self.rows = {one: row for one, row in self.rows.items() if not least <= row[0] < least + 5}

    def _update(self) -> None:
        value = f"update {self._step}"
        DeltaTable(str(self.place.root)).update({"v": f"'{value}'"}, predicate="k % 5 = 0")
        self.rows = {one: (k, value if k % 5 == 0 else v, d) for one, (k, v, d) in self.rows.items()}

    def _merge(self) -> None:
        batch = [row for row in self._batch() if row[0] is not None]
        new = self._after("upsert", batch)
        rows = arrow([row for one, row in new.items() if self.rows.get(one) != row])
        same = "t.k = s.k" if self.scope == "global" else "t.k = s.k and t.d = s.d"
        if not rows:
            return
        merge = DeltaTable(str(self.place.root)).merge(rows, same, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        self.rows = new

    def _compact(self) -> None:
        DeltaTable(str(self.place.root)).optimize.compact()

    def _restore(self) -> None:
        """To a version after an operation, of which the files are there."""
        if not self._versions:
            return
        version = self.rng.choice(list(self._versions))
        if self.rng.random() < 0.5 or version == DeltaTable(str(self.place.root)).version():  # which Delta refuses
            self._lives("rollback", "--to", str(version), "--execute")
        else:
            DeltaTable(str(self.place.root)).restore(version)
        self.rows = dict(self._versions[version])

    def _vacuum(self) -> None:
        DeltaTable(str(self.place.root)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        self._versions.clear()

    def _remove_file(self) -> None:
        if len(self.place.files()) > 1:
            path = self.rng.choice(self.place.files())
            (self.place.root / path).unlink()
            self.rows = self._held()

    def _rename_file(self) -> None:
        path = self.place.root / self.rng.choice(self.place.files())
        path.rename(path.with_name(f"renamed-{self._step}.parquet"))

    def _held(self) -> Rows:
        """The rows by their keys, as other readers see them; none is there twice."""
        rows = self.place.rows()
        found = {self.id_of(key, day): (key, value, day) for key, value, day in rows}
        assert len(found) == len(rows)
        return found

    def _check(self) -> None:
        assert self._held() == self.rows


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_history_against_a_dictionary(number: int, tmp_path: Path) -> None:
    """Loads, upserts, deletes, rollbacks, deaths; foreign appends, merges, deletes, compactions, restores, vacuums."""
    history = History(tmp_path, random.Random(f"{tiers.seed()} {number}"))
    for step in range(OPERATIONS):
        try:
            history.operate()
        except (AssertionError, DeltaError) as error:
            error.add_note(f"history {number} of seed {tiers.seed()}, operation {step}, {history.kills} kills before")
            raise
    history.finish()
    print(f"history {number} of seed {tiers.seed()}: {OPERATIONS} operations, {history.kills} kills")
    assert history.kills
