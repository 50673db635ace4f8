"""`export`: the files hold every live key and no dead one, of one state."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from deduper.admin.move import export as exporting
from deduper.admin.move.export import export, plan_export
from deduper.admin.open_store import open_store
from deduper.errors import IntegrityError, UsageError
from tests.deduper.admin.move.test_reshard import KEYS, NOW_US, WINDOWS, entries, made
from tests.deduper.published_store import Kind, PublishedStore
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_the_rows_are_the_live_keys(tmp_path: Path, backend: str) -> None:
    """Digest, bucket, expiry key, window and origin of each; a plan writes nothing."""
    store = open_store(str(made(tmp_path, backend)))
    out = tmp_path / "keys"
    assert plan_export(store, out).entries == WINDOWS * KEYS
    assert not out.exists()
    report = export(store, out)
    assert report.store == report.files
    assert report.files is not None
    assert report.files.count == WINDOWS * KEYS
    found = []
    for shard in range(2):
        for row in parquet.read_table(out / f"keys-{shard:04d}.parquet").to_pylist():
            hi, lo = np.frombuffer(row["digest"], ">u8").tolist()
            found.append((shard, row["bucket"], hi, lo, row["expiry"], row["origin"], row["window"]))
    assert sorted(found, key=lambda entry: entry[1:]) == entries(store)


@pytest.mark.parametrize(
    ("expiry", "kind"),
    [
        ("{by: never}", "long"),
        ("{by: ordered, field: t, period: 200, span: 50, lookup: all_live}", "double"),
        ("{by: category, field: t, live_categories: 2}", "string"),
    ],
)
@pytest.mark.parametrize("first_seen", [True, False])
def test_every_kind_of_key_is_exported(tmp_path: Path, expiry: str, kind: str, first_seen: bool) -> None:
    """Doubles, categories, keys without expiry; the dead ones are left out."""
    made = PublishedStore(tmp_path, Kind(expiry=expiry, type=kind, first_seen=first_seen)).make()
    report = export(made.open(), tmp_path / "keys")
    assert report.store == report.files
    assert report.files is not None
    assert 0 < report.files.count <= report.entries
    names = parquet.read_schema(tmp_path / "keys" / "keys-0000.parquet").names
    assert ("origin" in names) == first_seen
    assert ("expiry" in names) == (kind == "double")


def test_an_interrupted_export_goes_on_while_the_state_is_the_same(tmp_path: Path) -> None:
    """A shard that is done is not written again; after another record all are."""
    config = made(tmp_path, "file")
    out = tmp_path / "keys"
    with armed("export.shard", 1, _die), contextlib.suppress(DriverKilled):
        export(open_store(str(config)), out)
    assert plan_export(open_store(str(config)), out).shards_there == 1
    first = (out / "keys-0000.parquet").stat().st_mtime_ns
    assert export(open_store(str(config)), out).shards_there == 1
    assert (out / "keys-0000.parquet").stat().st_mtime_ns == first
    open_store(str(config)).log.claim_epoch("job:1", NOW_US)
    assert plan_export(open_store(str(config)), out).shards_there == 0


def test_other_files_and_other_keys_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in use is not written to; a file with another key is noticed."""
    store = open_store(str(made(tmp_path, "file")))
    with pytest.raises(UsageError, match="other files"):
        plan_export(store, tmp_path)
    taken = exporting._Export._batch
    monkeypatch.setattr(exporting._Export, "_batch", lambda self, block: taken(self, block).slice(1))
    with pytest.raises(IntegrityError, match="the files hold"):
        export(store, tmp_path / "keys")
