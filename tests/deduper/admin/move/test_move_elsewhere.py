"""State is moved on a store that is no folder of this machine, by the same code."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.admin.move.backup import backup, restore
from deduper.admin.move.export import export
from deduper.admin.move.forget import AUDIT, forget
from deduper.admin.move.reshard import plan_reshard, reshard
from deduper.admin.move.rewind import plan_rewind
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.errors import UsageError
from tests.deduper.admin.test_elsewhere import StoreElsewhere, told
from tests.deduper.published_store import WALL_US

pytestmark = pytest.mark.slow
pytest.importorskip("obstore")


@pytest.fixture
def store(tmp_path: Path) -> StoreElsewhere:
    """Four windows."""
    return StoreElsewhere(tmp_path, base=f"objects:{tmp_path}/bucket").make()


def test_its_keys_are_divided_copied_and_put_back(store: StoreElsewhere, tmp_path: Path) -> None:
    """Other shards, a copy in a folder, a store in the bucket made of that; every sum is the same."""
    keys = plan_reshard(store.open(), 5).keys
    findings = told(verify_store(store.open()))
    report = reshard(store.open(), 5, now_us=WALL_US)
    assert report.is_sound
    opened = open_store(store.url)
    assert opened.settings["shards"] == 5
    assert not list((store.root / "moving").walk())
    copied = backup(opened, f"file:{tmp_path}/copy").run()
    assert copied.before == copied.after == report.after
    again = restore(open_store(f"file:{tmp_path}/copy"), f"{store.base}/again").run()
    assert again.after == report.after
    assert backup(open_store(store.url), f"{store.base}/again").run().pieces_there == again.pieces
    exported = export(open_store(f"{store.base}/again"), tmp_path / "keys")
    assert exported.files is not None
    assert exported.files.count == keys == report.keys
    assert told(verify_store(open_store(f"{store.base}/again"))) <= findings


def test_a_key_is_forgotten(store: StoreElsewhere) -> None:
    """The audit lies in the store."""
    key = next((row["k"],) for row in store.rows[0] if row["k"] is not None)
    assert forget(store.open(), key, now_us=WALL_US).entries
    assert forget(store.open(), key).entries == 0
    assert len(list((store.root / AUDIT).entries())) == 1


def test_outputs_that_cannot_be_renamed_refuse_a_rewind(store: StoreElsewhere) -> None:
    """Before anything is changed."""
    with pytest.raises(UsageError, match="renaming"):
        plan_rewind(store.open(), 1)
