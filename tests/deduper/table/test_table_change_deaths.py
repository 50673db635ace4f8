"""Upserts and deletes that die: the table is as before or as after, and the next write completes or removes it."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgpack
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from bucket_store.wire import decode, encode
from deduper.config.problems import ConfigError
from deduper.table.formats.protocol import PRIVATE, Commit, RemovedFile
from deduper.table.operations.questions import read, tag
from deduper.table.operations.rollback import rollback
from deduper.table.operations.verify import verify
from deduper.table.settings import load_config
from tests.deduper.table.scene import CHANGE_STEPS, CONFIG, Place, Row, arrow, dying, foreign

pytestmark = pytest.mark.slow
Rows = list[tuple[int, str, int]]


class Model:
    """A table as a list of rows; `unit` is what a key is unique in."""

    def __init__(self, scope: str, moves: bool) -> None:
        self.rows: Rows = []
        self._is_global = scope == "global"
        self._moves = moves

    def id_of(self, row: Row) -> tuple[int | None, ...]:
        """The key of a row in its scope."""
        return (row[0],) if self._is_global else (row[0], row[2])

    def load(self, batch: list[Row]) -> Rows:
        """The rows afterwards."""
        held = {self.id_of(row) for row in self.rows}
        return self.rows + [row for row in self._kept(batch) if self.id_of(row) not in held]

    def upsert(self, batch: list[Row]) -> Rows:
        """The rows afterwards."""
        kept = self._kept(batch)
        changed = {self.id_of(row) for row in kept}
        day = {self.id_of(row): row[2] for row in reversed(self.rows)}
        added = [(k, v, d if self._moves else day.get(self.id_of((k, v, d)), d)) for k, v, d in kept]
        return [row for row in self.rows if self.id_of(row) not in changed] + added

    def delete(self, batch: list[Row]) -> Rows:
        """The rows afterwards."""
        gone = {self.id_of(row) for row in batch if row[0] is not None}
        return [row for row in self.rows if self.id_of(row) not in gone]

    def _kept(self, batch: list[Row]) -> Rows:
        """The first rows of each key, without errors."""
        kept: dict[tuple[int | None, ...], tuple[int, str, int]] = {}
        for key, value, day in batch:
            if key is not None and day is not None:
                kept.setdefault(self.id_of((key, value, day)), (key, value, day))
        return list(kept.values())


@pytest.mark.night(
    but=[
        *("delta-table.3.staged-upsert", "delta-table.4.planned-delete", "delta-table.5.committed-upsert"),
        *("delta-index.merged-upsert", "delta-table.6.port-delete", "parquet-index.state-delete"),
        *("parquet-table.4.planned-upsert", "parquet-table.placed-upsert"),
        *("parquet-table.removed-delete", "parquet-table.6.port-upsert"),
    ]
)
@pytest.mark.parametrize("kind", ["upsert", "delete"])
@pytest.mark.parametrize("step", CHANGE_STEPS)
def test_a_death_at_each_step_of_a_change(step: str, kind: str, place: Place) -> None:
    """Before the commit the table is the old one, after it the new one; in between no key is missing."""
    model = Model("partition", moves=True)
    for number in range(7):  # so that pieces are merged
        batch: list[Row] = [(number, "a", 0), (200 + number, "a", 0), (100 + number, "a", 1)]
        place.load(batch)
        model.rows = model.load(batch)
    rows: list[Row] = [(2, "b", 0), (3, "b", 0), (3, "c", 0), (104, "b", 1), (50, "b", 1), (51, "b", 1)]
    rows += [(None, "b", 0)]
    old, new = Counter(model.rows), Counter(getattr(model, kind)(rows))
    with dying(step) as died:
        getattr(place, kind)(rows)
    found = Counter(place.rows())
    if place.format == "delta":
        assert found in (old, new)
    stay = {(k, d) for k, _, d in old} & {(k, d) for k, _, d in new}
    assert stay <= {(k, d) for k, _, d in found}
    is_committed = found != old or (
        place.format == "parquet" and step >= "table.4.planned" and step.startswith("table")
    )
    receipt = place.load([])
    assert Counter(place.rows()) == (new if is_committed else old)
    assert receipt.completed == (bool(died) and is_committed)
    assert place.leftovers() == []
    errors = [pq.read_metadata(file).num_rows for file in place.ports["errors"].glob("*.parquet")]
    assert errors == [1] * is_committed
    getattr(place, kind)(rows)
    assert Counter(place.rows()) == new
    assert verify(place.config()).is_sound
    of_other_format = {
        "delta": {"table.removed"},
        "parquet": {"table.5.placed", "table.5.committed"},
    }
    assert bool(died) == (step not in of_other_format[place.format])


def test_a_death_while_a_dead_change_is_completed(tmp_path: Path) -> None:
    """Each step of completing is safe to repeat; questions in between see each key."""
    place = Place(tmp_path, "parquet")
    place.load([(key, "a", key % 3) for key in range(9)])
    rows: list[Row] = [(key, "b", key % 3) for key in range(0, 9, 2)]
    with dying("table.placed", 2):
        place.upsert(rows)
    for step in ("table.placed", "table.removed", "table.removed", "table.6.port", "table.7.port"):
        asked = arrow([(key, "", key % 3) for key in range(9)])
        assert set(read(asked, place.config())["k"].to_pylist()) == set(range(9))
        assert tag(asked, place.config())["action"].to_pylist() == ["update"] * 9
        with dying(step):
            place.delete([(0, "", 0)])
    place.load([])
    assert sorted(place.rows()) == sorted((key, "b" if key % 2 == 0 else "a", key % 3) for key in range(9))
    assert place.leftovers() == []


@pytest.mark.parametrize("then", ["delete", "rollback", "load", "load without ports"])
def test_staged_rows_of_ports_go_with_any_next_write(then: str, place: Place) -> None:
    """A death before the plan leaves them in folders that the next write need not have."""
    version = place.load([(1, "a", 0), (2, "a", 1)]).version
    place.upsert([(1, "b", 0)])
    with dying("table.3.staged"):
        place.upsert([(1, "c", 0), (1, "d", 0), (None, "e", 0)])
    staged = {path.parent.parent.name for path in place.root.parent.glob("*/_staging/*")}
    assert staged == {"duplicates", "errors"}
    if then == "delete":
        place.delete([(2, "", 1)])
    elif then == "rollback":
        file = place.root.parent / "without_ports.yaml"
        file.write_text(CONFIG.replace("FORMAT", place.format).partition("duplicates:")[0], encoding="utf-8")
        if place.format == "delta":
            rollback(load_config(file), version)
        else:
            with pytest.raises(ConfigError, match=r"table\.format"):  # folder tables have no versions
                rollback(load_config(file), version)
            place.load([])
    else:
        if then == "load without ports":
            place.ports = {}
        place.load([])
        place.ports = {name: place.root.parent / name for name in ("duplicates", "errors")}
    assert place.leftovers() == []


def test_staged_rows_of_a_moved_table_go_where_the_settings_say(tmp_path: Path) -> None:
    """Beside the place that the dead write had."""
    place = Place(tmp_path / "one", "delta")
    place.load([(1, "a", 0)])
    with dying("table.3.staged"):
        place.load([(1, "b", 0), (None, "c", 0)])
    (tmp_path / "moved").mkdir()
    place.root = place.root.rename(tmp_path / "moved" / "table")
    place.load([])
    assert not list(tmp_path.glob("*/*/_staging/*"))
    assert not list(place.root.glob(f"{PRIVATE}/staging/*"))


def test_a_commit_has_its_bytes() -> None:
    """An array of its fields, a removed file among them."""
    removed = RemovedFile("d=1/b.parquet", 7, 5, (("d", None),))
    commit = Commit(load="1", after=3, schema=b"s", partition_by=("d",), files=(), removed=(removed,))
    bytes_of = ["1", 3, b"s", ["d"], [], [["d=1/b.parquet", 7, 5, [["d", None]], None]]]
    assert msgpack.unpackb(encode(commit)) == bytes_of
    assert decode(Commit, encode(commit)) == commit
    assert (replace(commit, removed=()).is_empty, commit.is_empty) == (True, False)


def test_a_log_of_a_dead_delete_that_was_cleaned_up(tmp_path: Path) -> None:
    """A delete that wrote no file is known by the files that are gone."""
    for step, is_committed in (("table.5.committed", True), ("table.5.placed", False)):
        place = Place(tmp_path / step, "delta")
        place.load([(1, "a", 0), (2, "a", 1)])
        with dying(step):
            place.delete([(1, "", 0), (None, "", 0)])
        foreign(place, 3, 1)
        foreign(place, 4, 1)
        DeltaTable(str(place.root)).create_checkpoint()
        for number in range(2):
            (place.root / f"_delta_log/{number:020d}.json").unlink()
        receipt = place.load([])
        assert receipt.completed == is_committed
        assert ((1, 0) in place.held()) != is_committed
        assert not list(place.root.glob(f"{PRIVATE}/staging/*"))


@pytest.mark.night(but=["parquet-1-stays", "delta-2-partition"])
@pytest.mark.parametrize("scope", ["partition", "stays", "moves"])
@pytest.mark.parametrize("seed", range(5))
def test_random_changes_against_a_list(seed: int, scope: str, place: Place) -> None:
    """Loads, upserts, deletes, deaths, foreign commits, removals and restores, lost indexes: no row lost or twice."""
    rng = random.Random(seed)
    model = Model("partition" if scope == "partition" else "global", moves=scope != "stays")
    more = "" if scope == "partition" else f"scope: global\nupdate_partition_path: {str(scope == 'moves').lower()}\n"
    more += f"small_file_bytes: {rng.choice(['1B', '1000B', '1MiB'])}\n"
    runs = {
        "load": lambda rows: place.load(rows, scope="partition" if scope == "partition" else "global"),
        "upsert": lambda rows: place.upsert(rows, more),
        "delete": lambda rows: place.delete(rows, more),
    }
    deaths: Counter[str] = Counter()
    place.load([(1, "first", 0)], scope="partition" if scope == "partition" else "global")
    model.rows = [(1, "first", 0)]
    for step in range(20):
        kind = rng.random()
        if kind < 0.1:
            # A key again, with scope partition; other scopes have no first file that a model could name.
            key = rng.randrange(40) if scope == "partition" else 1000 + step
            if place.format == "parquet" and any(path.endswith(f"foreign-{key}.parquet") for path in place.files()):
                continue
            foreign(place, key, 2)
            model.rows.append((key, "foreign", 2))
        elif kind < 0.2 and place.format == "delta":
            table = DeltaTable(str(place.root))
            if rng.random() < 0.5:
                table.delete("d = '1970-01-02'")
            elif table.version() > 0:
                table.restore(rng.randrange(table.version()))
            model.rows = place.rows()
        elif kind < 0.2 and len(place.files()) > 1:
            (place.root / rng.choice(place.files())).unlink()
            model.rows = place.rows()
        elif kind < 0.25:
            shutil.rmtree(place.root / PRIVATE / "index", ignore_errors=True)
        elif place.rows():
            batch: list[Row] = [(rng.randrange(40), f"v{step}.{n}", rng.randrange(3)) for n in range(rng.randrange(12))]
            batch += [(None, "x", 0)] * rng.randrange(2)
            name = rng.choice(["load", "upsert", "upsert", "delete"])
            old, new = Counter(model.rows), Counter(getattr(model, name)(batch))
            if rng.random() < 0.6:
                with dying(rng.choice(CHANGE_STEPS), rng.randint(1, 2)) as died:
                    runs[name](batch)
                deaths[name] += len(died)
                found = Counter(place.rows())
                both = {model.id_of(row) for row in old} & {model.id_of(row) for row in new}
                assert both <= {model.id_of(row) for row in found}, f"seed {seed}, step {step}"
                if place.format == "delta":
                    assert found in (old, new), f"seed {seed}, step {step}"
                if found == old and rng.random() < 0.5:
                    place.load([], scope="partition" if scope == "partition" else "global")
                    assert Counter(place.rows()) in (old, new), f"seed {seed}, step {step}"
            receipt = runs[name](batch)
            assert receipt.rows == len(batch)
            model.rows = list(new.elements())
            assert place.leftovers() == [], f"seed {seed}, step {step}"
        if place.files():
            assert Counter(place.rows()) == Counter(model.rows), f"seed {seed}, step {step}"
    if place.files():
        runs["load"]([])  # an index, if the last step has lost it
        report = verify(place.config(more))
        assert (report.missing, report.extra) == (0, 0), f"seed {seed}"
    assert len(deaths) > 1
