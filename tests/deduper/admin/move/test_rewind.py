"""`rewind`: the state of an earlier window, exactly or not at all, whatever interrupts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from bucket_store.log.marks import read_published
from bucket_store.log.records import CompactionRecord
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from deduper.admin.move.reshard import reshard
from deduper.admin.move.rewind import ASIDE, plan_rewind, rewind
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import verify_store
from deduper.errors import IntegrityError, UsageError
from deduper.window.publishing import mark_published
from deduper.window.recovery import check_ports
from tests.deduper.published_store import WALL_US, Kind, PublishedStore
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die


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
            with pytest.raises(IntegrityError):
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
    for segment in (tmp_path / "b" / "state" / "pieces" / "0000").glob("000001-*.segment"):
        segment.unlink(missing_ok=True)
    with pytest.raises(UsageError, match="bytes are gone"):
        plan_rewind(store.open(), 1)
