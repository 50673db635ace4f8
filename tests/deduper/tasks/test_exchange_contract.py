"""All ways of keys and verdicts between the tasks: the same receipts, pieces of the same bytes, the same rows.

One way is a folder that every task maps. The others are what Spark's partitions run on a cluster, here without Spark.
Of a large window every reading partition leaves its files on a host of its own, and blobs are dealt to shards and
writers in any order. A small one is read and written in the driver, and its tasks get the shards of an executor.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from bucket_store.tables.manager import TableSettings
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.view import ShardView
from deduper.arrow_columns import arrow_type
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.lookups import JudgeRules
from deduper.core.verdict import Admission
from deduper.dedup_column import DedupColumn
from deduper.errors import RowsGoneError
from deduper.sources.frame_places import FramePlaces
from deduper.tasks import exchange, table_room
from deduper.tasks.executors import steps
from deduper.tasks.executors.steps import Expected, HostFolder, ReadPartition, packed, unpacked
from deduper.tasks.found_partitions import FoundPartitions
from deduper.tasks.judge import JudgeTask, Receipt, judge
from deduper.tasks.layout import RecordLayout
from deduper.tasks.origins import WindowSources
from deduper.tasks.read import ReadReceipt, ReadTask, read_function
from deduper.tasks.readers.reading_tasks import PartRead
from deduper.tasks.row_files import RowFormats
from deduper.tasks.table_room import TableRoom
from deduper.tasks.write import WriterReceipt, WriteTask, write
from tests.tiers import is_night

STORE = "ab" * 16
PORTS = ("unique", "duplicate", "expired", "error")
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True)
class Window:
    """Rows by reading task, each (key, expiry key, is an error), and how many reading tasks a partition has.

    `conflicts`: payloads, which follow from key and expiry key, are compared; `error`: a conflict is one; `unique`: it
    is a version. `named`: rows have places that come in any order, and more than once.
    """

    readers: list[list[tuple[int, int, bool]]]
    partition: int
    shards: int
    first_seen: bool
    seed: int
    conflicts: str = ""
    named: bool = False


windows = st.builds(
    Window,
    readers=st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40), st.booleans()), min_size=0, max_size=25),
        max_size=5,
    ),
    partition=st.integers(1, 3),
    shards=st.integers(1, 5),
    first_seen=st.booleans(),
    seed=st.integers(0, 1000),
    conflicts=st.sampled_from(["", "duplicate", "error", "unique"]),
    named=st.booleans(),
)


class Service:
    """A store with its tables below a folder, and the windows that were judged."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file:{root / 'state'}"
        (root / "state" / "pieces").mkdir(parents=True)
        self.pieces: defaultdict[int, list[Any]] = defaultdict(list)
        self.window = 0

    def read_task(self, window: Window, directory: str = "") -> ReadTask:
        clock = ClockRules(False, 20, None, None, now_us=0, latest=None, quiet_us=0)
        layout = RecordLayout.of(pa.int64(), [pa.int64()], has_fingerprint=bool(window.conflicts))
        places = FramePlaces() if window.named else None
        return ReadTask(directory, window.shards, layout, clock, in_order=True, keeps_latest=True, places=places)

    def judge_task(self, window: Window, readers: list[ReadReceipt], directory: str = "") -> JudgeTask:
        compares = bool(window.conflicts)
        tables = TableLayout(
            has_expiry=True,
            float_expiry=False,
            has_origin=window.first_seen,
            one_table=True,
            fingerprints_since=0 if compares else None,
        )
        rules = JudgeRules("ordered", True, False, 20, 10, 1, window.first_seen, None)
        return JudgeTask(
            directory=directory,
            readers=tuple(receipt.name for receipt in readers),
            store_url=self.url,
            store_id=STORE,
            window=self.window,
            epoch=1,
            attempt=0,
            rules=replace(
                rules,
                has_fingerprint=compares,
                refuses_conflicts=window.conflicts == "error",
                most_versions=2 if window.conflicts == "unique" else 0,
            ),
            tables=TableSettings(str(self.root / "tables"), str(self.root / "tables"), 1 << 24, 1 << 24, tables),
            places=None,
            category_ids=(),
            ordinals=FoundPartitions.of([receipt.partitions for receipt in readers]).ordinals,
        )

    def views(self, window: Window) -> list[ShardView]:
        return [
            ShardView(STORE, "tables", ((0, b"nonce"),), shard, self.window, tuple(self.pieces[shard]), None, None)
            for shard in range(window.shards)
        ]

    def write_task(self, window: Window, readers: list[ReadReceipt], directory: str = "") -> WriteTask:
        staging = self.root / f"staging-{self.window}"
        staging.mkdir(exist_ok=True)
        target = local_place(staging)
        column = DedupColumn("bigint", window.first_seen, bool(window.conflicts), window.conflicts == "unique")
        return WriteTask(
            directory=directory,
            shards=window.shards,
            readers=tuple((receipt.name, receipt.rows) for receipt in readers),
            spilled_bytes=0,
            groups=((*range(len(readers)),),) if readers else (),
            targets=dict.fromkeys(PORTS, target),
            topics={},
            columns=("k",),
            formats=RowFormats(),
            sources=WindowSources(str(self.root), self.window, tuple("abcdefgh"), (0,) * 8, {}),
            source_slots=None,
            dedup={port: arrow_type(column.of(port).type) for port in PORTS},
            ordinals=FoundPartitions.of([receipt.partitions for receipt in readers]).ordinals,
        )

    def took(self, receipts: list[Receipt]) -> list[tuple[Any, bytes]]:
        """Commit a window: its receipts as far as they are no matter of time, each with the bytes of its piece."""
        store = open_backend(self.url)
        found = []
        for receipt in sorted(receipts, key=lambda receipt: receipt.shard):
            piece = receipt.piece
            data = b"" if piece is None else store.read(piece)
            of_bytes = None if piece is None else replace(piece, file="", name="", offset=0)
            found.append((replace(receipt, piece=of_bytes, table_counters={}, seconds={}), data))
            if piece is not None:
                self.pieces[receipt.shard].append(piece)
        store.close()
        self.window += 1
        return found

    def rows(self, receipts: Iterable[WriterReceipt]) -> list[Any]:
        """What was staged, by port, in the order of the source."""
        rows = [
            row
            for receipt in receipts
            for file in receipt.files
            for row in parquet.read_table(file.place.local, partitioning=None).to_pylist()
        ]
        return sorted(rows, key=lambda row: (row["_dedup"]["source"], row["_dedup"]["position"], str(row)))


def records(reader: int, rows: list[tuple[int, int, bool]]) -> pa.RecordBatch:
    """The rows of a reading task, as its plan gives them."""
    keys = np.array([key for key, _, _ in rows], np.int64)
    return pa.RecordBatch.from_pydict(
        {
            "_hi": pa.array(keys * 7919),
            "_lo": pa.array(keys * 104729 << 20),
            "_order": pa.array([reader << POSITION_BITS | at for at in range(len(rows))], pa.int64()),
            "_admission": pa.array([Admission.NULL_KEY if bad else Admission.ADMITTED for *_, bad in rows], pa.int8()),
            "_expiry": pa.array([expiry for _, expiry, _ in rows], pa.int64()),
            "_raw": pa.array(["raw" if bad else None for *_, bad in rows], pa.string()),
            "_0": pa.array(keys),
            "_fingerprint": pa.array([1 + (key + expiry) % 3 for key, expiry, _ in rows], pa.uint64()),
        }
    )


def spill(task: ReadTask, reader: int, rows: list[tuple[int, int, bool]]) -> ReadReceipt:
    batch = records(reader, rows)
    if task.places is not None:
        batch = named(batch, reader)
    (row,) = read_function(task)(iter([batch.slice(0, 10), batch.slice(10)]))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    return receipt


def named(batch: pa.RecordBatch, reader: int) -> pa.RecordBatch:
    """Three sources, of which every reading task may have rows, and rows that name none."""
    keys = batch.column("_0").to_pylist()
    order = batch.schema.get_field_index("_order")
    numbers = pa.array([(7 * key + at) % 5 for at, key in enumerate(keys)], pa.int64())
    return (
        batch.set_column(order, "_order", numbers)
        .append_column("_topic", pa.array([[None, "x", "y", "z"][key % 4] for key in keys], pa.string()))
        .append_column("_partition", pa.array([reader] * len(keys), pa.int32()))
    )


def by_files(service: Service, window: Window) -> tuple[Any, Any]:
    """The window by one folder."""
    folder = service.root / f"spool-{service.window}"
    folder.mkdir()
    receipts = [spill(service.read_task(window, str(folder)), *each) for each in enumerate(window.readers)]
    judging = service.judge_task(window, receipts, str(folder))
    judged = [judge(judging, view) for view in service.views(window)]
    writing = service.write_task(window, receipts, str(folder))
    written = service.rows([write(writing, number) for number in range(len(writing.groups))])
    return service.took(judged), written


def by_number(pairs: Iterable[tuple[int, _V]], count: int, draw: random.Random) -> list[Any]:
    """What a shuffle brings to each of its partitions, in any order, pickled on the way."""
    arrived: list[list[tuple[int, _V]]] = [[] for _ in range(count)]
    for pair in pairs:
        arrived[pair[0]].append(pickle.loads(pickle.dumps(pair)))
    for of_partition in arrived:
        draw.shuffle(of_partition)
    return [next(steps.as_list(of_partition)) for of_partition in arrived]


def by_blobs(
    service: Service, window: Window, lose: Callable[[list[ReadPartition]], None] = lambda lefts: None
) -> tuple[Any, Any]:
    """The window by the partitions of a cluster; `lose` may act on what was read, before it is written."""
    draw = random.Random(window.seed)
    numbered = list(enumerate(window.readers))
    groups = [numbered[at : at + window.partition] for at in range(0, len(numbered), window.partition)]
    hosts = [service.root / f"host-{service.window}-{number}" for number in range(len(groups))]
    lefts = []
    for host, group in zip(hosts, groups, strict=True):
        host.mkdir()
        receipts = [spill(service.read_task(window, str(host)), *each) for each in group]
        lefts.append(steps.left_in(str(host), [PartRead(receipt) for receipt in receipts]))
    numbers = itertools.count()
    expected = [[Expected(next(numbers), keys) for keys in left.checksums] for left in lefts]
    keys: list[Any] = []
    for partition, left in enumerate(lefts):
        keys += steps.deal_keys(expected, window.shards, partition, iter([left]))
    receipts = [receipt for left in lefts for receipt in left.receipts]
    judging = service.judge_task(window, receipts)
    room = TableRoom(judging.tables.disk_dir, 1 << 24, 1 << 24, judging.tables.layout)
    judged = [
        steps.judge_arrived(judging, room, (arrived, view))
        for view, arrived in zip(service.views(window), by_number(keys, window.shards, draw), strict=True)
    ]
    partitions = [partition for partition, of in enumerate(expected) for _ in of]
    back = [pair for one in judged for pair in steps.deal_verdicts(partitions, one)]
    writing = service.write_task(window, receipts)
    writing = replace(writing, groups=tuple(tuple(each.reader for each in of) for of in expected))
    lose(lefts)
    written: list[WriterReceipt] = []
    for partition, arrived in enumerate(by_number(back, len(lefts), draw)):
        pair = iter([(arrived, lefts[partition])])
        written += steps.write_arrived(writing, expected, partition, pair)
    return service.took([one.receipt for one in judged]), service.rows(written)


def by_driver(service: Service, window: Window) -> tuple[Any, Any]:
    """A small window of a cluster, on two executors."""
    own = service.root / f"driver-{service.window}"
    own.mkdir()
    receipts = [spill(service.read_task(window, str(own)), *each) for each in enumerate(window.readers)]
    left = steps.left_in(str(own), [PartRead(receipt) for receipt in receipts])
    expected = [[Expected(reader, keys) for reader, keys in enumerate(left.checksums)]]
    keys: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for shard, of_reader in steps.deal_keys(expected, window.shards, 0, iter([left])):
        keys[shard].append(of_reader)
    judging = service.judge_task(window, receipts)
    room = TableRoom(judging.tables.disk_dir, 1 << 24, 1 << 24, judging.tables.layout)
    given_to = [(keys[view.shard], view) for view in service.views(window)]
    earlier = HostFolder(f"{STORE}-0000beef", 1, 0, room).make()
    judged = []
    for of_executor in (given_to[0::2], given_to[1::2]):
        if of_executor:
            task = pickle.loads(pickle.dumps((judging, HostFolder(f"{STORE}-0000beef", 1, 1, room), of_executor)))
            judged += pickle.loads(pickle.dumps(steps.judge_shards(*task)))
    assert not Path(earlier).exists()
    writing = service.write_task(window, receipts)
    verdicts = [blob for one in judged for blob in one.verdicts]
    written = steps.write_arrived(writing, expected, 0, iter([(verdicts, left)]))
    rows = service.rows(written)
    return service.took([one.receipt for one in judged]), rows


@pytest.fixture(autouse=True, scope="module")
def _tables_on_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_room, "SHARED_MEMORY", Path("/nowhere"))
        yield


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@given(window=windows, second=windows)
@settings(max_examples=40 if is_night() else 15)
def test_all_ways_give_the_same_receipts_and_bytes(root: Path, window: Window, second: Window) -> None:
    """Whatever the rows, shards, readers, and the order in which blobs arrive; also when a look-up meets pieces."""
    second = replace(second, shards=window.shards, first_seen=window.first_seen)
    one, other, third = (Service(Path(tempfile.mkdtemp(dir=root))) for _ in range(3))
    for each in (window, second):
        by_one, by_other = by_files(one, each), by_blobs(other, each)
        assert by_one == by_other
        assert by_one == by_driver(third, each)
        rows = sum(map(len, each.readers))
        assert len(by_one[1]) == rows
        assert sum(sum(receipt.counts) for receipt, _ in by_one[0]) == rows
    for service in (one, other, third):
        shutil.rmtree(service.root)


@pytest.mark.slow
@given(window=windows, second=windows)
@settings(max_examples=20 if is_night() else 8)
def test_places_change_no_verdict(root: Path, window: Window, second: Window) -> None:
    """Names of rows alone: each leaves by its port with its reason, and its first copy is the same row."""
    second = replace(second, shards=window.shards, first_seen=window.first_seen)
    found = []
    for is_named in (False, True):
        service = Service(Path(tempfile.mkdtemp(dir=root)))
        rows = [row for each in (window, second) for row in by_files(service, replace(each, named=is_named))[1]]
        shutil.rmtree(service.root)
        found.append(sorted(map(without_place, rows)))
    assert found[0] == found[1]


def without_place(row: dict[str, Any]) -> str:
    dedup = dict(row["_dedup"])
    del dedup["source"], dedup["position"]
    first = dedup.get("first_seen")
    return str((row["k"], {**dedup, "first_seen": first and (first["window"], first["expiry"])}))


SOME = Window([[(1, 5, False), (2, 6, False)], [(1, 7, False)]], 1, 2, True, 0)


def test_rows_that_are_gone_from_a_living_host_end_the_attempt(tmp_path: Path) -> None:
    """Their writer says so; it stages nothing of that partition."""

    def lose(lefts: list[ReadPartition]) -> None:
        Path(exchange.rows_file(lefts[1].directory, lefts[1].receipts[0].name)).unlink()

    with pytest.raises(RowsGoneError, match="rows are gone from this host"):
        by_blobs(Service(tmp_path), SOME, lose)


def test_a_reading_that_gives_others_the_second_time_ends_the_attempt(tmp_path: Path) -> None:
    """A lost partition is read again, and the source has other records by then: no row gets another's verdict."""
    service = Service(tmp_path)

    def lose(lefts: list[ReadPartition]) -> None:
        again = tmp_path / "again"
        again.mkdir()
        receipt = spill(service.read_task(SOME, str(again)), 1, [(9, 7, False)])
        lefts[1] = steps.left_in(str(again), [PartRead(receipt)])

    with pytest.raises(RowsGoneError, match="was read again, and gave others"):
        by_blobs(service, SOME, lose)


def test_a_reading_that_is_repeated_elsewhere_is_as_good(tmp_path: Path) -> None:
    """The files have other names, and lie on another host."""
    service = Service(tmp_path / "lost")

    def lose(lefts: list[ReadPartition]) -> None:
        again = tmp_path / "again"
        again.mkdir()
        receipt = spill(service.read_task(SOME, str(again)), 1, SOME.readers[1])
        shutil.rmtree(lefts[1].directory)
        lefts[1] = steps.left_in(str(again), [PartRead(receipt)])

    assert by_blobs(service, SOME, lose) == by_blobs(Service(tmp_path / "whole"), SOME)


def test_a_blob_holds_its_batch() -> None:
    """Nulls, slices and no rows at all."""
    batch = pa.record_batch({"a": pa.array([1, None, 3]), "b": pa.array([0.5, 1.5, None])})
    for given_batch in (batch, batch.slice(1), batch.slice(1, 0)):
        assert unpacked(packed(given_batch)).equals(given_batch)


def folders(home: Path) -> set[str]:
    return {folder.name for folder in home.glob("*/records/*")}


def test_a_reading_task_removes_what_no_task_needs(tmp_path: Path) -> None:
    """Earlier attempts of its store, and folders of others that are old; nothing else, so none of a copy that runs."""
    room = TableRoom(str(tmp_path / "tables"), 1, 1, TableLayout(False, False, False, one_table=False))
    store, copy, other = f"{STORE}-0000beef", f"{STORE}-12345678", f"{'cd' * 16}-0000beef"
    earlier_release = "cd" * 16
    for one, epoch, attempt in [(store, 1, 7), (store, 2, 3), (copy, 1, 1), (other, 1, 1), (earlier_release, 1, 1)]:
        HostFolder(one, epoch, attempt, room).make()
    others = {f"{one}-1-1" for one in (copy, other, earlier_release)}
    assert folders(tmp_path) == {f"{store}-2-3", *others}
    HostFolder(store, 2, 4, room).make()
    assert folders(tmp_path) == {f"{store}-2-4", *others}
    HostFolder(store, 2, 4, room).remove_all()
    assert folders(tmp_path) == others
    for old in tmp_path.glob(f"*/records/{'cd' * 16}-*"):
        os.utime(old, (time.time() - 7 * 3600,) * 2)
    HostFolder(store, 2, 4, room).make()
    assert folders(tmp_path) == {f"{store}-2-4", f"{copy}-1-1"}
