"""`backup` and `restore`: a consistent copy of a store, made beside a running job, and a store made of a copy.

A copy is a store itself: every command reads it. Its log is one record, a snapshot of the state that was copied. Making
it takes these steps; a restore takes the same, from the copy to the place of the store:

a  read the log to its end: the state to copy
b  copy the pieces it names that the copy does not have yet, and the files of sources; where a running job has deleted
   one meanwhile, begin again with a
c  read back all pieces of the copy: count and checksum are those of the store
d  put the snapshot in place, then the manifest, if there is none yet
e  delete pieces that the snapshot does not name

Pieces keep their names, so a copy that was interrupted, or that is made again into the same place, copies only what is
new. Before d the older copy in that place is whole, after it the new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, StoreError, StoreMissingError
from bucket_store.log.codec import encode_record, record_name, record_number
from bucket_store.log.commit_log import DIRECTORY as LOG
from bucket_store.log.manifest import FILE_NAME as MANIFEST
from bucket_store.log.manifest import read_manifest
from bucket_store.log.records import LogRecord, LogSnapshot, LogState
from bucket_store.log.sources_archive import files_of
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef, decode_piece
from bucket_store.pieces.store import StoredPiece
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin.move.key_sum import KeySum, sum_of
from deduper.admin.move.owning import with_pieces
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.errors import IntegrityError, UsageError

OnPiece = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CopyReport(AsJson):
    """What is copied, and the proof.

    `pieces_there`: pieces that the copy had already. `before` and `after` are None in a plan.
    """

    json_names = (
        *("is_executed", "source", "target", "record", "windows", "pieces", "pieces_there", "keys", "size_bytes"),
        *("before", "after"),
    )

    source: str
    target: str
    record: int
    windows: int
    pieces: int
    pieces_there: int
    keys: int
    size_bytes: int
    before: KeySum | None = None
    after: KeySum | None = None

    @property
    def is_executed(self) -> bool:
        """The copy is whole."""
        return self.after is not None


class _DeletedMeanwhileError(Exception):
    """The running job has deleted something that the state which is being copied names."""


class StoreCopy:
    """A copy to be made of a store, at the URL of another. For one process.

    Raises:
        UsageError: there is another store, or one on which a job has run.
    """

    def __init__(self, source: OpenStore, url: str, *, may_exist: bool) -> None:
        self._source = source
        self._url = url
        self._root: Place = open_place(url)
        self._pieces = open_backend(url)
        self._is_there = self._demand_place(may_exist=may_exist)

    def plan(self) -> CopyReport:
        """What `run` is to copy now. Changes nothing."""
        state = self._source.log.refresh()
        refs = _live(state)
        there = self._there()
        return self._report(state, [ref for ref in refs if ref.name in there])

    def run(self, on_piece: OnPiece | None = None) -> CopyReport:
        """Make the copy, in the steps at the top. `on_piece` is called with (copied, all).

        Raises:
            CorruptionError: a piece of the source is damaged.
            IntegrityError: the copy gives back other keys; it is not put in place.
            SpaceError: no room.
        """
        while True:
            state = self._source.log.refresh()
            try:
                return self._copy(state, on_piece or (lambda *_: None))
            except _DeletedMeanwhileError:
                continue

    def _copy(self, state: LogState, on_piece: OnPiece) -> CopyReport:
        there = self._there()
        refs = _live(state)
        copied: dict[PieceRef, PieceRef] = {}
        already = []
        before = KeySum()
        try:
            for number, ref in enumerate(refs):
                on_piece(number, len(refs))
                found = next((kept for kept in map(_moved(ref), there.get(ref.name, ())) if self._holds(kept)), None)
                if found is not None:
                    copied[ref] = found
                    already.append(ref)
                    before += self._sum(found)
                    continue
                data, of_piece = self._read(ref)
                before += of_piece
                place = self._pieces.append(
                    shard=ref.shard, epoch=state.epoch, name=ref.name, data=data, stays_open=True
                )
                copied[ref] = replace(ref, file=place.file, offset=place.offset)
                failpoints.hit("copy.piece")
        finally:
            self._pieces.close_writers()
        on_piece(len(refs), len(refs))
        for path in files_of(state):
            self._copy_file(path)
        after = sum((self._sum(ref) for ref in copied.values()), KeySum())
        if after != before:
            raise IntegrityError(f"{self._url}: the copy holds {after}, the store {before}; it was not put in place")
        failpoints.hit("copy.proven")
        self._put_in_place(state, copied)
        report = replace(self._report(state, already), before=before, after=after)
        named = {(ref.file, ref.name) for ref in copied.values()}
        stray = [piece for piece in self._pieces.pieces() if (piece.file, piece.name) not in named]
        self._pieces.delete(stray, keep={ref.file for ref in copied.values()})
        return report

    def _read(self, ref: PieceRef) -> tuple[bytes, KeySum]:
        """A piece of the store, with its sum."""
        try:
            data = self._source.pieces.read(ref)
            return data, _checked(ref, data)
        except CorruptionError as error:
            if ref in self._source.log.refresh().pieces.get(ref.shard, ()):
                raise
            raise _DeletedMeanwhileError from error

    def _copy_file(self, path: PurePosixPath) -> None:
        """A file of sources; it never changes under its name."""
        target = self._root / str(path)
        if target.exists():
            return
        try:
            data = (self._source.log.root / str(path)).read()
        except FileNotFoundError as error:
            if path in set(files_of(self._source.log.refresh())):
                raise
            raise _DeletedMeanwhileError from error
        target.parent.make_directories()
        target.create(data)

    def _put_in_place(self, state: LogState, copied: dict[PieceRef, PieceRef]) -> None:
        """Step d."""
        pieces = {shard: tuple(copied[ref] for ref in refs) for shard, refs in state.pieces.items()}
        whole = replace(with_pieces(state, pieces), windows=state.windows)
        base = replace(whole, next_number=0, retired=(), purged_through=-1)
        nonce = secrets.token_bytes(16)
        record = encode_record(LogRecord(0, state.epoch, nonce, state.published_through, -1, LogSnapshot(base)))
        directory = self._root / LOG
        directory.make_directories()
        snapshot = directory / record_name(0)
        if snapshot.exists():
            snapshot.replace(record)
            snapshot.sync()
            directory.sync()
        else:
            snapshot.create(record)
        failpoints.hit("copy.recorded")
        if not self._is_there:
            (self._root / MANIFEST).create((self._source.log.root / MANIFEST).read())

    def _holds(self, ref: PieceRef) -> bool:
        """Whether a piece of the copy is whole: an interrupted copy may have left a torn one."""
        try:
            _checked(ref, self._pieces.read(ref))
        except (StoreError, OSError):
            return False
        return True

    def _sum(self, ref: PieceRef) -> KeySum:
        return _checked(ref, self._pieces.read(ref))

    def _there(self) -> dict[str, list[StoredPiece]]:
        """The pieces at the target by name."""
        found: dict[str, list[StoredPiece]] = {}
        for piece in self._pieces.pieces():
            found.setdefault(piece.name, []).append(piece)
        return found

    def _report(self, state: LogState, already: list[PieceRef]) -> CopyReport:
        refs = _live(state)
        return CopyReport(
            source=self._source.url,
            target=self._url,
            record=state.next_number - 1,
            windows=state.next_window,
            pieces=len(refs),
            pieces_there=len(already),
            keys=sum(ref.entries for ref in refs),
            size_bytes=sum(ref.length for ref in refs),
        )

    def _demand_place(self, *, may_exist: bool) -> bool:
        """Whether there is an older copy. Raises UsageError where no copy may be put."""
        numbers = [number for name in (self._root / LOG).listed() if (number := record_number(name)) is not None]
        if self._root == self._source.log.root:
            raise UsageError(f"{self._url}: this is the store itself; name another place")
        try:
            manifest = read_manifest(self._root)
        except StoreMissingError:
            if max(numbers, default=0):
                raise UsageError(f"{self._url}: a log exists there without a manifest; name another place") from None
            return False
        if not may_exist:
            raise UsageError(f"{self._url}: there is a store; move it away first")
        if manifest.store_id != self._source.log.manifest.store_id:
            raise UsageError(f"{self._url}: there is another store (id {manifest.store_id[:8]}); name another place")
        if numbers != [0]:
            raise UsageError(f"{self._url}: a job has run on this copy; name another place")
        return True


def backup(source: OpenStore, url: str) -> StoreCopy:
    """A copy of a store at a URL, where there may be an older copy."""
    return StoreCopy(source, url, may_exist=True)


def restore(copy: OpenStore, url: str) -> StoreCopy:
    """A store at a URL, where there is none, made of a copy."""
    return StoreCopy(copy, url, may_exist=False)


def _live(state: LogState) -> list[PieceRef]:
    return [ref for refs in state.pieces.values() for ref in refs]


def _moved(ref: PieceRef) -> Callable[[StoredPiece], PieceRef]:
    return lambda stored: replace(ref, file=stored.file, offset=stored.offset)


def _checked(ref: PieceRef, data: bytes) -> KeySum:
    """The sum of a piece. Raises CorruptionError when it is not the one that the reference names."""
    header, buckets = decode_piece(data, file=ref.file, offset=ref.offset)
    found = header.to_ref(file=ref.file, name=ref.name, offset=ref.offset)
    if found != ref:
        raise CorruptionError(
            f"identity of piece {ref.name}", file=ref.file, offset=ref.offset, expected=ref, found=found
        )
    return sum((sum_of(block, ref.first_window) for block in buckets), KeySum())
