"""`forget`: the key is gone at once, all others stay, and what is left of it is an audit of its digest."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import xxhash

from bucket_store.errors import CorruptionError
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from deduper.admin.keys.stored import find_key
from deduper.admin.move.forget import _blocks, forget, plan_forget
from deduper.admin.move.reshard import reshard
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.errors import IntegrityError
from tests.deduper.admin.move.test_reshard import NOW_US, entries, made
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die

pytestmark = pytest.mark.slow
KEY = ("u3", 17)


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_one_key_is_gone_and_all_others_stay(tmp_path: Path, backend: str) -> None:
    """A plan changes nothing; afterwards the store is sound and has a new lineage, so no table has the key."""
    config = str(made(tmp_path, backend))
    before = entries(open_store(config))
    plan = plan_forget(open_store(config), KEY)
    assert (plan.entries, plan.pieces, plan.is_executed) == (1, 1, False)
    assert entries(open_store(config)) == before
    lineage = open_store(config).log.state.lineage
    report = forget(open_store(config), KEY, now_us=NOW_US)
    assert report.before is not None
    assert report.after is not None
    assert report.before.count - report.after.count == 1
    store = open_store(config)
    (hi, lo), _, found = find_key(store, KEY)
    assert found == ()
    assert entries(store) == [entry for entry in before if entry[2:4] != (hi, lo)]
    assert len(entries(store)) == len(before) - 1
    assert not {nonce for _, nonce in lineage} & {nonce for _, nonce in store.log.state.lineage}
    assert not verify_store(store).findings
    audit = json.loads(Path(report.audit or "").read_text())
    assert audit["digest"] == f"{hi:016x}{lo:016x}" == store.log.state.notes[-1]["digest"]
    assert "u3" not in json.dumps(audit) + str(store.log.state.notes)
    assert forget(store, KEY).entries == 0


@pytest.mark.parametrize("point", ["move.claimed", "forget.appended", "forget.audited"])
def test_broken_off_before_its_record_nothing_has_changed(tmp_path: Path, point: str) -> None:
    """And the next run forgets it."""
    config = str(made(tmp_path, "file"))
    before = entries(open_store(config))
    with armed(point, 1, _die), contextlib.suppress(DriverKilled):
        forget(open_store(config), KEY, now_us=NOW_US)
    assert entries(open_store(config)) == before
    assert forget(open_store(config), KEY, now_us=NOW_US).is_executed
    assert len(entries(open_store(config))) == len(before) - 1


def test_a_piece_that_loses_more_than_the_key_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is of what the store gives back."""
    config = str(made(tmp_path, "file"))
    before = entries(open_store(config))
    monkeypatch.setattr("deduper.admin.move.forget._without", lambda block, digest: _shorter(block))
    with pytest.raises(IntegrityError, match="nothing was changed"):
        forget(open_store(config), KEY, now_us=NOW_US)
    assert entries(open_store(config)) == before


def _shorter(block):  # type: ignore[no-untyped-def]
    return type(block)(block.bucket, block.digests[2:], block.expiry[2:], block.origin[2:], None, None)


def of_epoch(epoch: int, data: bytes) -> bytes:
    """A sound piece with the same entries, of another epoch."""
    end = 80 + 64 * int.from_bytes(data[12:16], "little")
    covered = data[:36] + epoch.to_bytes(4, "little") + data[40:end]
    return covered + xxhash.xxh3_64_intdigest(covered).to_bytes(8, "little") + data[end + 8 :]


def test_misdirected_bytes_are_no_piece_of_the_record(tmp_path: Path) -> None:
    """They are sound, of this store, and of the same shard: neither is the key forgotten nor are the shards changed."""
    store = open_store(str(made(tmp_path, "file")))
    one, other = store.log.state.pieces[0][:2]
    file = tmp_path / "state" / one.file
    file.write_bytes(of_epoch(7, file.read_bytes()))
    task = CompactionTask((one, other), store.log.manifest.store_id, 1, None, None)
    for act in (
        lambda: _blocks(store, one),
        lambda: compact_pieces(store.pieces, task),
        lambda: reshard(store, 3, now_us=NOW_US),
    ):
        with pytest.raises(CorruptionError, match="identity of piece"):
            act()
    assert store.log.state.shards == 0
