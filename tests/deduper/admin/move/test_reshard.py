"""`reshard`: the same keys in other shards, the same verdicts afterwards, whatever interrupts it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.pieces.piece import PieceRef, decode_piece
from deduper.admin.move import reshard as resharding
from deduper.admin.move.key_sum import KeySum, sum_of
from deduper.admin.move.reshard import plan_reshard, reshard
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.errors import IntegrityError, OwnerAliveError, UsageError
from deduper.window import policy, recovery
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config
from tests.deduper.window.test_state_machine import _ROWS, MOVE_POINTS, JobMachine, _die
from tests.forked import command
from tests.tiers import examples

pytestmark = pytest.mark.slow
WINDOWS, KEYS = 8, 40
NOW_US = BEGIN_US + HOUR_US


def made(directory: Path, backend: str) -> Path:
    """The config file of a store with some windows over four hours, in 2 shards."""
    config = write_config(directory)
    config.write_text(config.read_text().replace("file:state", f"{backend}:state"))
    windows = []
    for number in range(WINDOWS):
        expiries = [BEGIN_US + (number // 2) * HOUR_US + row for row in range(KEYS)]
        keys = [SeenKey((f"u{number}", row), expiry // HOUR_US, expiry, row) for row, expiry in enumerate(expiries)]
        windows.append(Window(keys, latest_point=expiries[-1]))
    make_store(config, windows, published=WINDOWS - 1)
    return config


def entries(store: OpenStore) -> list[tuple[Any, ...]]:
    """Every entry of every live piece, with its shard, sorted."""
    found = []
    for ref in (ref for refs in store.log.state.pieces.values() for ref in refs):
        for block in decode_piece(store.pieces.read(ref), file=ref.file, offset=ref.offset)[1]:
            window = np.full(len(block.digests), ref.first_window) if block.window is None else block.window
            assert block.expiry is not None
            assert block.origin is not None
            columns = (block.digests[:, 0], block.digests[:, 1], block.expiry, block.origin, window)
            found += [(ref.shard, block.bucket, *row) for row in zip(*(column.tolist() for column in columns))]  # noqa: B905
    return sorted(found, key=lambda entry: entry[1:])


def without_shard(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The entries as any number of shards has them."""
    return [entry[1:] for entry in found]


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_every_key_is_in_its_new_shard_and_none_twice(tmp_path: Path, backend: str) -> None:
    """Bucket, expiry key, origin and window stay; the store is sound, and the config has to follow."""
    config = made(tmp_path, backend)
    before = entries(open_store(str(config)))
    plan = plan_reshard(open_store(str(config)), 7)
    assert (plan.is_executed, plan.keys, plan.parts) == (False, WINDOWS * KEYS, 4)
    report = reshard(open_store(str(config)), 7, now_us=NOW_US)
    assert report.is_sound
    assert report.before == report.after
    assert report.after is not None
    assert report.after.count == WINDOWS * KEYS
    with pytest.raises(Exception, match=r"store\.shards|shards"):
        recovery.open_or_create(open_store(str(config)).config, NOW_US)  # type: ignore[arg-type]
    config.write_text(config.read_text().replace("shards: 2", "shards: 7"))
    store = open_store(str(config))
    after = entries(store)
    assert without_shard(after) == without_shard(before)
    assert all(entry[0] == entry[3] % 7 for entry in after)
    assert not verify_store(store).findings
    assert policy.stored_settings(store.log.manifest, store.log.state)["shards"] == 7
    assert store.log.state.notes[-1]["shards"] == [2, 7]
    assert not (store.root / "moving").exists()
    assert plan_reshard(store, 7).is_needed is False
    assert reshard(store, 7).is_sound is None
    recovery.open_or_create(store.config, NOW_US)  # type: ignore[arg-type]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    by=st.sampled_from(("ordered", "event_time", "category", "never", "processing_time")),
    backend=st.sampled_from(("file", "file", "rocksdb")),
    steps=st.lists(
        st.tuples(_ROWS, st.none() | st.integers(1, 5), st.sampled_from((None, *MOVE_POINTS))), min_size=4, max_size=10
    ),
)
def test_verdicts_are_those_of_a_store_that_was_never_moved(
    data: st.DataObject, by: str, backend: str, steps: list[tuple[bytes, int | None, str | None]]
) -> None:
    """Windows are judged, moved and judged on: answers and first copies are the oracle's, which has no shards."""
    machine = type("Machine", (JobMachine,), {"by": by, "backend": backend})()
    try:
        machine.begin(data=data)
        for rows, shards, point in steps:
            machine._window(rows, 1_000_000)
            machine.same_rows_again(0, 0)
            if shards is not None:
                machine.another_number_of_shards(shards, point, 1)
                machine.same_rows_again(0, 0)
            machine.everything_agrees()
    finally:
        machine.teardown()


@pytest.mark.night(but=["file"])
@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_killed_at_five_points_it_is_finished_by_the_next_run(tmp_path: Path, backend: str) -> None:
    """SIGKILL after the claim, within a part, after a part, before and after the record; parts are not done twice."""
    config = made(tmp_path, backend)
    before = without_shard(entries(open_store(str(config))))

    def run(point: str = "") -> subprocess.CompletedProcess[str]:
        return command("reshard", str(config), "--shards", "7", "--execute", "--json", armed=point)

    for point in ("move.claimed", "reshard.appended@3", "reshard.moved@2", "reshard.proven"):
        assert run(f"{point}=kill" if "@" not in point else point.replace("@", "=kill@")).returncode == -signal.SIGKILL
        assert without_shard(entries(open_store(str(config)))) == before
        assert open_store(str(config)).settings["shards"] == 2
    assert plan_reshard(open_store(str(config)), 7).parts_finished == 4
    assert run("move.recorded=kill").returncode == -signal.SIGKILL
    after = entries(open_store(str(config)))
    assert without_shard(after) == before
    assert all(entry[0] == entry[3] % 7 for entry in after)
    finished = run()
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["shards_before"] == 7
    assert not (tmp_path / "state" / "moving").exists()
    config.write_text(config.read_text().replace("shards: 2", "shards: 7"))
    assert not verify_store(open_store(str(config))).findings


def test_parts_of_before_another_claim_are_done_again(tmp_path: Path) -> None:
    """A later owner may have deleted pieces that no record names."""
    config = made(tmp_path, "file")
    with armed("reshard.moved", 2, _die), contextlib.suppress(DriverKilled):
        reshard(open_store(str(config)), 7, now_us=NOW_US)
    assert plan_reshard(open_store(str(config)), 7).parts_finished == 2
    CommitLog.open(open_store(str(config)).log.root).claim_epoch("another:1", NOW_US)
    assert plan_reshard(open_store(str(config)), 7).parts_finished == 0
    assert reshard(open_store(str(config)), 7, now_us=NOW_US).parts_finished == 0


def test_a_run_that_is_fenced_changes_nothing(tmp_path: Path) -> None:
    """A job that starts meanwhile has the store."""
    config = made(tmp_path, "file")
    before = entries(open_store(str(config)))

    def claim() -> None:
        CommitLog.open(open_store(str(config)).log.root).claim_epoch("another:1", NOW_US)

    with armed("reshard.proven", 1, claim), pytest.raises(FencedError):
        reshard(open_store(str(config)), 7, now_us=NOW_US)
    assert entries(open_store(str(config))) == before


def test_a_running_job_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does a number that no store can have."""
    config = made(tmp_path, "file")
    store = open_store(str(config))
    with pytest.raises(UsageError, match="4096"):
        plan_reshard(store, 5000)
    monkeypatch.setattr("deduper.admin.move.owning.owner_lives", lambda root: True)
    with HeartBeat(store.log.root, "another:1"), pytest.raises(OwnerAliveError):
        reshard(store, 7)


def test_a_piece_that_loses_a_key_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is of what the store gives back, not of what was written."""
    config = made(tmp_path, "file")
    before = entries(open_store(str(config)))

    def one_less(self: Any, added: list[PieceRef]) -> KeySum:
        return KeySum(WINDOWS * KEYS - 1, 0)

    monkeypatch.setattr(resharding._Resharding, "_read_back", one_less)
    with pytest.raises(IntegrityError, match="nothing was changed"):
        reshard(open_store(str(config)), 7, now_us=NOW_US)
    assert entries(open_store(str(config))) == before
    assert open_store(str(config)).settings["shards"] == 2


def test_the_checksum_sees_every_column_and_no_order(tmp_path: Path) -> None:
    """Another value anywhere, or an entry twice, is another sum; another division is not."""
    store = open_store(str(made(tmp_path, "file")))
    ref = store.log.state.pieces[0][0]
    block = next(decode_piece(store.pieces.read(ref), file=ref.file, offset=ref.offset)[1])
    whole = sum_of(block, 0)
    cut = len(block.digests) // 2
    parts = []
    for part in (slice(cut), slice(cut, None)):
        assert block.expiry is not None
        assert block.origin is not None
        parts.append(type(block)(block.bucket, block.digests[part], block.expiry[part], block.origin[part], None, None))
    assert sum_of(parts[1], 0) + sum_of(parts[0], 0) == whole
    assert sum_of(parts[0], 0) + sum_of(parts[0], 0) != whole
    others = {sum_of(block, 1)}
    for name in ("digests", "expiry", "origin"):
        column = getattr(block, name).copy()
        column.flat[0] += 1
        changed = {each: getattr(block, each) for each in ("digests", "expiry", "origin")} | {name: column}
        others.add(sum_of(type(block)(block.bucket, **changed, window=None, fingerprint=None), 0))
    others.add(sum_of(type(block)(block.bucket + 1, block.digests, block.expiry, block.origin, None, None), 0))
    assert len(others) == 5
    assert whole not in others
