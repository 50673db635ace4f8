"""The commands on a store that is no folder of this machine: log, sources, pieces and a port in an object store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import PieceStore, StoredPiece
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin import status as status_module
from deduper.admin.gc import collect
from deduper.admin.keys.explain import explain
from deduper.admin.keys.stored import stored_key
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.orphans import OrphanKind, orphans
from deduper.admin.status import store_status
from deduper.admin.verify.findings import Check
from deduper.admin.verify.run import Verification, verify_store, verify_target
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.window import table_folder
from deduper.window.policy import fixed_settings
from tests.bucket_store.places.memory_names import MemoryNames, memory_place
from tests.deduper.published_store import PublishedStore

pytestmark = pytest.mark.slow
DAY_US = 86_400_000_000
DAYS_LATER_US = 10**18


@dataclass
class StoreElsewhere(PublishedStore):
    """The store and its port of unique rows are below `base`, a URL."""

    base: str = ""

    def make(self, windows: int = 4) -> StoreElsewhere:
        """As in a folder, and the port's files are moved."""
        super().make(windows)
        port = self.open().ports["unique"]
        port.make_directories()
        for file in (self.directory / "out" / "unique").iterdir():
            (port / file.name).create(file.read_bytes())
            file.unlink()
        return self

    @property
    def url(self) -> str:
        """The store's."""
        return f"{self.base}/state"

    @property
    def root(self) -> Place:
        """The store's folder."""
        return open_place(self.url)

    @property
    def config(self) -> Config:
        """The configuration with that store."""
        config = super().config
        unique = config.sinks.unique.model_copy(update={"url": f"{self.base}/unique"})
        return config.model_copy(
            update={
                "store": config.store.model_copy(update={"url": self.url}),
                "sinks": config.sinks.model_copy(update={"unique": unique}),
            }
        )

    def open(self) -> OpenStore:
        """As a command opens it."""
        return OpenStore(self.url, self.config, CommitLog.open(self.root), open_backend(self.url))

    def flip(self, ref: PieceRef) -> Place:
        """Damage a piece: its file."""
        place = self.root / ref.file
        data = bytearray(place.read())
        data[-1] ^= 1
        place.replace(bytes(data))
        return place


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreElsewhere:
    """Four windows."""
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    return StoreElsewhere(tmp_path, base=f"objects:{tmp_path}/bucket").make()


def test_verify_reads_all_of_it(store: StoreElsewhere) -> None:
    """As much as of the same store in a folder, with the same findings; by its URL alone too."""
    (store.directory / "here").mkdir()
    here = verify_store(PublishedStore(store.directory / "here").make().open())
    report = verify_store(store.open())
    for name in ("records", "pieces", "entries", "sources", "outputs", "ran"):
        assert getattr(report, name) == getattr(here, name), name
    # Of stores with other salts, a bucket may be empty in a shard.
    assert report.size_bytes == sum(ref.length for ref in store.live())
    assert told(report) == told(here), "these stores have no reasons in their records"
    assert verify_target(store.url).pieces == here.pieces


def told(report: Verification) -> Counter[Check]:
    """The findings by check."""
    return Counter(finding.check for finding in report.findings) + Counter(report.unlisted)


def test_damage_is_named_by_its_url(store: StoreElsewhere) -> None:
    """A piece, a sources file, the manifest."""
    before = told(verify_store(store.open()))
    piece = store.flip(store.live()[3])
    sources = store.root / "sources" / store.open().log.state.sources[2].name
    sources.remove()
    report = verify_store(store.open())
    assert told(report) - before == Counter({Check.PIECES_BYTES: 1, Check.SOURCES_BYTES: 1})
    found = {finding.check: finding.file for finding in report.findings}
    assert (found[Check.PIECES_BYTES], found[Check.SOURCES_BYTES]) == (piece.url, sources.url)
    (store.root / "manifest").replace(b"x" * 100)
    report = verify_target(store.url)
    assert report.store == store.root.url
    assert [found.file for found in report.findings] == [(store.root / "manifest").url]


def test_what_no_record_names_is_listed_and_deleted(store: StoreElsewhere) -> None:
    """As for a folder of this machine, in its log, its sources and its pieces."""
    root, before = store.root, told(verify_store(store.open()))
    stray = root / "sources" / f"{99:012d}-000000-000"
    stray.create(b"x" * 10)
    half = root / "log" / ".00000000000000000077.abcdef.tmp"
    half.create(b"x")
    staged = root / "_staging" / f"{0:012d}-000001-000" / "_port=unique" / "part"
    staged.parent.make_directories()
    staged.create(b"x" * 20)
    name = f"{1:012d}-000001-000-0000-deadbeef"
    pieces = open_backend(store.url)
    pieces.append(shard=0, epoch=1, name=name, data=b"x" * 500)
    found = orphans(store.open())
    assert {(orphan.kind, orphan.piece or str(orphan.path)) for orphan in found} == {
        (OrphanKind.PIECE, name),
        (OrphanKind.SOURCES, stray.url),
        (OrphanKind.TEMPORARY, half.url),
        (OrphanKind.STAGING, staged.parent.parent.url),
    }
    assert next(orphan.size_bytes for orphan in found if orphan.kind is OrphanKind.STAGING) == 20
    report = collect(store.open(), grace_us=0, delete=True, now_us=DAYS_LATER_US)
    assert {item.is_deleted for item in report.garbage} == {True}
    assert not any(place.exists() for place in (stray, half, staged))
    assert [orphan for orphan in orphans(store.open()) if orphan.size_bytes] == []
    assert told(verify_store(store.open())) == before


def test_a_living_owner_is_left_alone(store: StoreElsewhere) -> None:
    """Nothing is deleted beside it."""
    (store.root / "sources" / f"{99:012d}-000000-000").create(b"x")
    with HeartBeat(store.root, "elsewhere:1", interval_s=0.05):
        assert collect(store.open(), grace_us=0, delete=True).is_refused
        assert len(orphans(store.open())) == 1


class NoPieces:
    """A backend without a piece."""

    def pieces(self) -> Iterator[StoredPiece]:
        """None."""
        yield from ()

    def delete(self, *_: object, **__: object) -> tuple[()]:
        """Nothing is held."""
        return ()


def test_the_age_of_a_file_is_by_the_clock_that_dated_it(store: StoreElsewhere) -> None:
    """A storage whose clock is a day behind: a file of this minute is no day old; one of yesterday is."""
    now_us = time.time_ns() // 1000
    names = MemoryNames(now_us - 2 * DAY_US)
    root = memory_place(names) / "state"
    log = CommitLog.create(root, fixed_settings(store.config), wall_us=now_us)
    (root / "sources").make_directories()
    old, young = (root / "sources" / f"{number:012d}-000000-000" for number in (98, 99))
    old.create(b"x")
    names.now_us = now_us - DAY_US
    young.create(b"x")
    opened = OpenStore("memory:", None, log, cast(PieceStore, NoPieces()))
    report = collect(opened, grace_us=DAY_US // 2, delete=True)
    assert {(item.path, item.kept) for item in report.garbage} == {(old.url, None), (young.url, "younger than 12h")}
    assert (old.exists(), young.exists()) == (False, True)
    assert report.unknown, "other machines may have tables of it"


def test_its_state_is_shown(store: StoreElsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes come from listings; its disk is not ours to measure, and a beat counts when it moves."""
    shown = store_status(store.open(), last=3)
    assert (shown.url, shown.windows, shown.pieces, shown.is_running) == (store.url, 4, 8, False)
    assert shown.bytes_on_disk["pieces"] > 0 < shown.bytes_on_disk["log"]
    monkeypatch.setattr(status_module, "INTERVAL_S", 0.1)
    with HeartBeat(store.root, "elsewhere:1", interval_s=0.05):
        assert store_status(store.open(), last=0).is_running
    HeartBeat(store.root, "elsewhere:1").beat()
    assert not store_status(store.open(), last=0).is_running


def test_a_key_is_explained_from_its_port(store: StoreElsewhere) -> None:
    """Its first copy is a row of a Parquet file there."""
    key = next(row["k"] for row in store.rows[0] if row["k"])
    (entry, *_) = stored_key(store.open(), (key,), now_us=1).entries
    assert entry.window == 0
    first = explain(store.open(), (key,)).copies[0]
    assert (first.verdict, first.window, first.known_by) == ("unique", 0, "output")
    assert str(first.output).startswith(store.open().ports["unique"].url)


def test_a_name_without_a_storage_is_refused() -> None:
    """A person has mistyped it."""
    with pytest.raises(UsageError, match="no storage has the scheme gopher:"):
        open_store("gopher://somewhere/store")
