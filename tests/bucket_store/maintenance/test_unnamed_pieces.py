"""The search for pieces that no record names: which go, which stay, and when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.records import RetiredPiece
from bucket_store.log.state import LogState
from bucket_store.maintenance.unnamed_pieces import EVERY_S, UnnamedPieces, unnamed
from bucket_store.pieces.piece import PieceRef, piece_name, window_of
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.places.local import local_place

EPOCH, NEXT_WINDOW = 3, 10


def ref(file: str, name: str) -> PieceRef:
    """A reference of which only the place counts."""
    checked: Any = PieceRef
    values = dict.fromkeys(checked.__dataclass_fields__, 0)
    return checked(**{**values, "file": file, "name": name, "length": 4})


class Store:
    """Pieces on a disk as they lie in HDFS."""

    def __init__(self, directory: Path) -> None:
        self.root = local_place(directory)
        (directory / "pieces" / "0000").mkdir(parents=True)
        self.pieces = PieceFiles(self.root)

    def append(self, window: int, epoch: int = EPOCH) -> PieceRef:
        """One piece of a window."""
        name = piece_name(window=window, epoch=epoch, attempt=0, shard=0)
        at = self.pieces.append(shard=0, epoch=epoch, name=name, data=b"data")
        return ref(at.file, at.name)

    def names(self) -> set[str]:
        """The pieces that are there."""
        return {piece.name for piece in self.pieces.pieces()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path)


def state_of(live: list[PieceRef], retired: list[PieceRef]) -> LogState:
    """The state whose next window is the tenth."""
    left = tuple(RetiredPiece(one, 1, 0) for one in retired)
    return LogState(epoch=EPOCH, next_window=NEXT_WINDOW, pieces={0: tuple(live)}, retired=left)


def test_only_what_no_record_can_name_is_removed(store: Store) -> None:
    """Live and retired pieces stay, and those of the window at work, of later ones, and of a later owner."""
    live, retired = store.append(4), store.append(2)
    kept = {one.name for one in (live, retired, store.append(NEXT_WINDOW), store.append(NEXT_WINDOW + 1))}
    kept.add(store.append(5, epoch=EPOCH + 1).name)
    twins = {store.append(4).name, store.append(9).name, store.append(1, epoch=1).name}
    # A first try whose answer was lost: the same name in another file.
    (store.root / f"{live.file.partition('~')[0]}~12ab34cd.piece").create(b"dat")
    (store.root / "pieces/0000/000003-something.piece").create(b"?")
    state = state_of([live], [retired])
    found = unnamed(state, store.pieces.pieces())
    assert {piece.name for piece in found} == twins | {live.name}
    assert len(found) == len(twins) + 1
    now = [5.0]
    searches = UnnamedPieces(store.pieces, lambda action: action(), lambda: now[0])
    searches.begin_if_due(state)
    assert store.names() >= twins, "the first search is due an hour after the start"
    now[0] += EVERY_S
    searches.begin_if_due(state)
    assert store.names() == kept | {"something"}
    assert store.pieces.read(live) == b"data"
    assert not searches.is_under_way


def test_a_search_is_one_at_a_time_and_a_failed_one_ends_no_job(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is under way until its thread is through; the next one repeats what failed."""
    twin = store.append(3)
    begun: list[Callable[[], None]] = []
    now = [0.0]
    searches = UnnamedPieces(store.pieces, begun.append, lambda: now[0])
    state = state_of([], [])
    for hours in (0, 1, 3):
        now[0] = hours * EVERY_S
        searches.begin_if_due(state)
    assert (len(begun), searches.is_under_way) == (1, True)

    def away() -> Any:
        raise OSError("the NameNode is away")

    with monkeypatch.context() as patch:
        patch.setattr(store.pieces, "pieces", away)
        begun.pop()()
    assert not searches.is_under_way
    assert "the NameNode is away" in caplog.text
    now[0] += EVERY_S
    searches.begin_if_due(state)
    begun.pop()()
    assert not searches.is_under_way
    assert twin.name not in store.names()


def test_names_tell_the_window() -> None:
    """Of every piece; other files have none."""
    assert window_of(piece_name(window=12, epoch=1, attempt=0, shard=3)) == 12
    assert window_of("something") is None
