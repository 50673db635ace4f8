"""`rewind`: the state of an earlier window, exactly or not at all, whatever interrupts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from bucket_store.log.judged_files import JudgedFiles, encode_judged, judged_ref
from bucket_store.log.marks import PUBLISHED_NAME, Published, prepare_published, read_published
from bucket_store.log.records import CommitRecord, CompactionRecord, OutputFile, SourcesFoldRecord
from bucket_store.log.sources_archive import archive_ref, encode_archive, files_of, folded_name, left_files, remove_left
from bucket_store.log.sources_file import FOLDED_DIRECTORY, read_sources, remove_unnamed
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from deduper.admin.move.reshard import reshard
from deduper.admin.move.rewind import ASIDE, plan_rewind, rewind
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import verify_store
from deduper.errors import IntegrityError, UsageError
from deduper.sinks.names import PUBLISHED, STAGING, Attempt, FinalName, final_name
from deduper.window.publishing import mark_published
from deduper.window.recovery import check_ports
from tests.deduper.published_store import WALL_US, Kind, PublishedStore
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die

pytestmark = pytest.mark.slow


def made(directory: Path, backend: str = "file", *, compacted: bool = False) -> PublishedStore:
    """Four windows, published; perhaps the pieces of the first three are merged since."""
    store = PublishedStore(directory, Kind(backend=backend)).make()
    opened = store.open()
    epoch = opened.log.claim_epoch("job:1", WALL_US)
    assert opened.config is not None
    mark_published(opened.config, opened.log, 3)
    if compacted:
        task = CompactionTask(opened.log.state.pieces[0][:3], opened.log.manifest.store_id, epoch, None, None)
        added = compact_pieces(opened.pieces, task)
        assert added is not None
        opened.log.place(CompactionRecord(task.pieces, (added,), WALL_US))
    return store


def files(store: OpenStore) -> set[str]:
    """The published files of the unique port."""
    return {name for name in store.ports["unique"].listed() if name.endswith(".parquet")}


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
@pytest.mark.parametrize("point", ["", "move.claimed", "rewind.copied", "move.recorded", "rewind.moved"])
def test_the_state_is_that_of_the_window_and_no_output_is_newer(tmp_path: Path, backend: str, point: str) -> None:
    """Broken off anywhere, the next run finishes it; between record and marks no job can start."""
    made_store = made(tmp_path, backend, compacted=True)
    before = made_store.open()
    if point:
        with armed(point, 1, _die), contextlib.suppress(DriverKilled):
            rewind(made_store.open(), 1, now_us=WALL_US)
        store = made_store.open()
        is_recorded = point in ("move.recorded", "rewind.moved")
        assert store.log.state.next_window == (2 if is_recorded else 4)
        assert store.config is not None
        if is_recorded:
            with pytest.raises(IntegrityError, match="repeat `deduper rewind --to 1"):
                check_ports(store.config, store.log)
    report = rewind(made_store.open(), 1, now_us=WALL_US)
    assert report.is_executed
    assert report.before == report.after
    store = made_store.open()
    assert store.config is not None
    state = store.log.state
    assert (state.next_window, state.published_through, state.outputs) == (2, 1, {})
    assert sum(state.totals.values()) == sum(len(made_store.rows[window]) for window in (0, 1))
    assert {ref.last_window for refs in state.pieces.values() for ref in refs} <= {0, 1}
    assert not {ref for refs in state.pieces.values() for ref in refs} & {retired.ref for retired in state.retired}
    assert files(store) < files(before) or files(before) == files(store)
    assert len(list((tmp_path / "out" / "unique" / ASIDE).rglob("*.parquet"))) > 0
    mark = read_published(store.ports["unique"] / "_published")
    assert mark is not None
    assert mark.window == 1
    check_ports(store.config, store.log)
    # The sample's windows have neither reasons nor outputs in their records, which verify finds too.
    findings = [found for found in verify_store(store).findings if found.check.value.startswith("pieces.")]
    assert not findings, findings


@pytest.mark.parametrize("wakes", ["", "move.recorded", "stage.discarded", "rewind.moved"])
def test_an_owner_that_slept_publishes_and_marks_nothing_that_is_undone(tmp_path: Path, wakes: str) -> None:
    """It slept before a rename and before a mark's; it wakes inside of the rewind or after it, before any start."""
    made_store = made(tmp_path)
    before = made_store.open()
    store_id, port = before.log.manifest.store_id, before.ports["unique"]
    attempt = Attempt(3, before.log.state.epoch, 0)
    staged = port / STAGING / attempt.folder / "part-0.parquet"
    staged.parent.make_directories()
    staged.create(b"rows of window 3")
    final = port / final_name(store_id, attempt, 7, "parquet")
    places = [before.root / PUBLISHED_NAME, port / PUBLISHED]
    sleeping = [prepare_published(place, Published(store_id, 3, attempt.epoch)) for place in places]

    def wake() -> None:
        for act in (lambda: staged.rename(final), *(mark.put for mark in sleeping)):
            with contextlib.suppress(FileNotFoundError):
                act()

    with armed(wakes, 1, wake) if wakes else contextlib.nullcontext():
        assert rewind(made_store.open(), 1, now_us=WALL_US).is_executed
    wake()
    store = made_store.open()
    epoch = store.log.state.epoch
    assert [read_published(place) for place in places] == [Published(store_id, 1, epoch)] * 2
    assert [name for name in port.listed() if (of := FinalName.of(name)) is not None and of.window > 1] == []
    assert [entry.name for entry in (port / STAGING).entries()] == []


@pytest.mark.parametrize(
    ("final", "refusal"),
    [
        ("kafka:clicks?job=test&slots=0", "topic clicks"),
        ("function:unique", "the function of port unique: what was handed over cannot be taken back"),
        ("{old}/unique/part.parquet", "in no port"),
        ("{port}/part.parquet", None),
        ("{old}/gone.parquet", None),
    ],
)
def test_outputs_of_other_ports_than_those_of_today_are_refused(
    tmp_path: Path, final: str, refusal: str | None
) -> None:
    """They would stay beside those of the windows that follow; what a reader has taken from there is the reader's."""
    made_store = made(tmp_path)
    store = made_store.open()
    state = store.log.state
    epoch = store.log.claim_epoch("job:2", WALL_US)
    other = tmp_path / "old" / "unique" / "part.parquet"
    other.parent.mkdir(parents=True)
    other.touch()
    name = final.format(old=tmp_path / "old", port=store.ports["unique"])
    store.log.place(
        CommitRecord(
            window=4,
            epoch=epoch,
            attempt=0,
            query_id="",
            batch_id=4,
            wall_us=WALL_US,
            settings_hash="",
            latest_point=state.latest_point,
            latest_moved_us=None,
            counts={},
            reasons={},
            pieces=(),
            outputs=(OutputFile("unique", str(tmp_path / "staged"), name, 1, 1, 1),),
            buckets=(),
            timestamp=None,
            sources=None,
            extra={},
        )
    )
    if refusal is None:
        assert plan_rewind(made_store.open(), 3).windows_undone == 1
        return
    with pytest.raises(UsageError, match=refusal):
        plan_rewind(made_store.open(), 1)


def test_what_is_gone_is_refused(tmp_path: Path) -> None:
    """Bytes of a piece of then, a file of sources, records before another rebase, a window that is not there."""
    store = made(tmp_path / "a", compacted=True) if (tmp_path / "a").mkdir() is None else None
    assert store is not None
    for window in (3, 4):
        with pytest.raises(UsageError, match="from 0 to 2"):
            plan_rewind(store.open(), window)
    opened = store.open()
    reshard(opened, 3, now_us=WALL_US)
    with pytest.raises(UsageError, match="no whole run"):
        plan_rewind(store.open(), 1)
    (tmp_path / "b").mkdir()
    store = made(tmp_path / "b", compacted=True)
    source = min((tmp_path / "b" / "state" / "sources").iterdir())
    data = source.read_bytes()
    source.unlink()
    with pytest.raises(UsageError, match="judged files"):
        plan_rewind(store.open(), 1)
    source.write_bytes(data)
    opened = store.open()
    opened.pieces.delete([retired.ref for retired in opened.log.state.retired])
    with pytest.raises(UsageError, match="bytes are gone"):
        plan_rewind(store.open(), 1)


def test_an_owner_that_slept_removes_no_file_of_sources_that_counts_again(tmp_path: Path) -> None:
    """It recorded a fold, and slept before it removed the files that the fold replaces."""
    made_store = made(tmp_path)
    opened = made_store.open()
    before = opened.log.state
    epoch = opened.log.claim_epoch("job:2", WALL_US)
    partitions = {window: read_sources(opened.root, window, before.sources[window]) for window in (0, 1, 2)}
    archived = encode_archive(partitions)
    judged = JudgedFiles.empty("in")
    names = [folded_name(2, epoch, kind) for kind in ("archive", "judged")]
    (opened.root / FOLDED_DIRECTORY).make_directories()
    for name, data in zip(names, (archived, encode_judged(2, judged)), strict=True):
        (opened.root / FOLDED_DIRECTORY / name).create(data)
    refs = archive_ref(names[0], partitions, archived), judged_ref(names[1], 2, judged, encode_judged(2, judged))
    opened.log.place(SourcesFoldRecord(2, *refs, WALL_US))
    left = left_files(before, opened.log.state)
    assert left

    assert rewind(made_store.open(), 1, now_us=WALL_US).is_executed
    remove_left(opened.root, left)  # it wakes
    store = made_store.open()
    state = store.log.state
    assert [read_sources(store.root, window, state.sources[window]) for window in (0, 1)] == [
        partitions[window] for window in (0, 1)
    ]
    remove_unnamed(store.root, state=state, below_epoch=state.epoch + 1)  # as a start does
    assert all((store.root / path).exists() for path in files_of(state))


def test_what_a_rewind_was_to_undo_is_not_taken_for_the_next_windows_rows(tmp_path: Path) -> None:
    """The newest window was published and not yet marked: no mark shows that the rewind is not over."""
    made_store = made(tmp_path)
    store = made_store.open()
    assert store.config is not None
    store.log.claim_epoch("job:2", WALL_US)
    mark_published(store.config, store.log, 2)
    with armed("move.recorded", 1, _die), contextlib.suppress(DriverKilled):
        rewind(made_store.open(), 2, now_us=WALL_US)
    store = made_store.open()
    assert store.log.state.next_window == 3
    with pytest.raises(IntegrityError, match="repeat `deduper rewind --to 2"):
        check_ports(store.config, store.log)
    reshard(made_store.open(), 3, now_us=WALL_US)  # another record, which does not end the rewind
    store = made_store.open()
    with pytest.raises(IntegrityError, match="repeat `deduper rewind --to 2"):
        check_ports(store.config, store.log)
    assert rewind(made_store.open(), 2, now_us=WALL_US).is_executed
    store = made_store.open()
    check_ports(store.config, store.log)
