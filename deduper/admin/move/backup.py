"""`backup` and `restore`: a consistent copy of a store, made beside a running job, and a store made of a copy.

A copy is a store itself: every command reads it. Its log is one record, a snapshot of the state that was copied. Making
it takes these steps; a restore takes the same, from the copy to the place of the store:

a  hold the place: a heartbeat, which keeps jobs and other copies away, and a *turn*, a file `copying/<number>`: the
   command with the highest one alone may change the place
b  read the log to its end: the state to copy; copy the pieces it names that the copy does not have yet, and the files
   of sources; where a running job has deleted one meanwhile, read the log again
c  read back all pieces and files of the copy: they are those of the store
d  put the snapshot in place, then the manifest, if there is none yet. Where there was no record, it is created. Else
   it replaces the record that a has found, if that is still the only one and the turn is the highest
e  if the place is still as d left it, delete pieces and files of sources that the snapshot does not name

Pieces keep their names, so a copy that was interrupted, or that is made again into the same place, copies only what is
new. Before d the older copy in that place is whole, after it the new one. FORMAT.md, "Moving state", has the cases.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, StoreError, StoreMissingError
from bucket_store.log.codec import decode_record, encode_record, record_name, record_number
from bucket_store.log.commit_log import DIRECTORY as LOG
from bucket_store.log.commit_log import TURNS, is_birth
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.manifest import FILE_NAME as MANIFEST
from bucket_store.log.manifest import read_manifest
from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import ArchiveRef, JudgedRef, LogRecord, LogSnapshot, LogState, SourcesRef
from bucket_store.log.sources_archive import path_of, refs_of
from bucket_store.log.sources_file import read_named, unnamed_files
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.reader import decode_named
from bucket_store.pieces.store import StoredPiece
from bucket_store.places.new_file import create_own
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin.move.key_sum import KeySum, sum_of_all
from deduper.admin.move.owning import with_pieces
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.errors import IntegrityError, OwnerAliveError, UsageError
from deduper.window.owner_alive import own_name, owner_lives

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class _Place:
    """What is at the place of a copy: the bytes of record 0, None without one; whether there is a manifest."""

    record: bytes | None
    has_manifest: bool


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
        self._first = self._root / LOG / record_name(0)
        self._may_exist = may_exist
        self._found = self._look(may_exist=may_exist)
        self._turn = 0

    def plan(self) -> CopyReport:
        """What `run` is to copy now. Changes nothing."""
        state = self._source.log.refresh()
        refs = _live(state)
        there = self._there()
        return self._report(state, [ref for ref in refs if ref.name in there])

    def run(self, on_piece: OnPiece | None = None) -> CopyReport:
        """Make the copy, in the steps at the top. `on_piece` is called with (copied, all).

        Raises:
            OwnerAliveError: a job, or another copy, is at work in that place.
            UsageError: as the constructor, or another command has come between; then the copy is not put in place.
            CorruptionError: a piece of the source is damaged.
            IntegrityError: the copy gives back other keys; it is not put in place.
            SpaceError: no room.
        """
        if owner_lives(self._root):
            raise OwnerAliveError(f"{self._url}: a job or another copy is at work there; wait for it, or stop it")
        self._root.make_directories()
        with HeartBeat(self._root, own_name()):
            self._turn = self._take_turn()
            self._found = self._look(may_exist=self._may_exist)
            while True:
                state = self._source.log.refresh()
                try:
                    return self._copy(state, on_piece or (lambda *_: None))
                except _DeletedMeanwhileError:
                    continue

    def _copy(self, state: LogState, on_piece: OnPiece) -> CopyReport:
        published = self._published(state)
        there = self._there()
        refs = _live(state)
        copied: dict[PieceRef, PieceRef] = {}
        already = []
        before = KeySum()
        try:
            for number, ref in enumerate(refs):
                on_piece(number, len(refs))
                kept = self._kept(ref, there)
                if kept is not None:
                    copied[ref], of_piece = kept
                    already.append(ref)
                    before += of_piece
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
        self._sync(copied[ref] for ref in already)
        on_piece(len(refs), len(refs))
        for source in refs_of(state):
            self._copy_file(source)
        after = sum((self._sum(ref) for ref in copied.values()), KeySum())
        if after != before:
            raise IntegrityError(f"{self._url}: the copy holds {after}, the store {before}; it was not put in place")
        for source in refs_of(state):
            read_named(self._root / path_of(source), source.length, source.checksum)
        failpoints.hit("copy.proven")
        pieces = {shard: tuple(copied[ref] for ref in refs) for shard, refs in state.pieces.items()}
        whole = replace(with_pieces(state, pieces), windows=state.windows)
        base = replace(whole, next_number=0, retired=(), purged_through=-1)
        self._delete_strays(base, self._put_in_place(base, published))
        return replace(self._report(state, already), before=before, after=after)

    def _published(self, state: LogState) -> int:
        """The greatest window of the state whose ports are out. The mark that says so is no part of the copy."""
        mark = read_published(self._source.log.root / PUBLISHED_NAME)
        is_own = mark is not None and mark.store_id == self._source.log.manifest.store_id
        return max(state.published_through, min(mark.window, state.next_window - 1) if mark and is_own else -1)

    def _delete_strays(self, base: LogState, record: bytes) -> None:
        """Step e. What others add from now on is not in the lists."""
        live = _live(base)
        named = {(ref.file, ref.name) for ref in live}
        strays = [piece for piece in self._pieces.pieces() if (piece.file, piece.name) not in named]
        files = unnamed_files(self._root, state=base, below_epoch=base.epoch + 1)
        try:
            self._demand_own(_Place(record, has_manifest=True), may_exist=True)
        except UsageError as error:
            logger.warning("the copy is in place, and older pieces beside it are not deleted: %s", error)
            return
        self._pieces.delete(strays, keep={ref.file for ref in live}, writing_epoch=base.epoch)
        for path in (*files, *(self._root / TURNS / f"{turn:06d}" for turn in self._turns() if turn < self._turn)):
            path.remove()

    def _read(self, ref: PieceRef) -> tuple[bytes, KeySum]:
        """A piece of the store, with its sum."""
        try:
            data = self._source.pieces.read(ref)
            return data, self._checked(ref, data)
        except CorruptionError as error:
            if ref in self._source.log.refresh().pieces.get(ref.shard, ()):
                raise
            raise _DeletedMeanwhileError from error

    def _copy_file(self, ref: SourcesRef | ArchiveRef | JudgedRef) -> None:
        """A file of sources. One of that name may be of a state that a restore has undone, or torn."""
        target = self._root / path_of(ref)
        try:
            read_named(target, ref.length, ref.checksum)
            target.parent.sync()  # the process that placed it may have died before its own sync
            return
        except CorruptionError:
            pass
        try:
            data = read_named(self._source.log.root / path_of(ref), ref.length, ref.checksum)
        except CorruptionError as error:
            if ref in refs_of(self._source.log.refresh()):
                raise
            raise _DeletedMeanwhileError from error
        target.parent.make_directories()
        if target.exists():
            self._demand_own(self._found, may_exist=self._may_exist)
            target.remove()
        create_own(target, data)

    def _put_in_place(self, base: LogState, published: int) -> bytes:
        """Step d; gives the record."""
        nonce = secrets.token_bytes(16)
        record = encode_record(LogRecord(0, base.epoch, nonce, published, -1, LogSnapshot(base)))
        if self._found.record is None:
            self._demand_own(self._found, may_exist=self._may_exist)
            self._first.parent.make_directories()
            self._create(self._first, record)
        else:
            self._replace_record(self._found.record, record)
        failpoints.hit("copy.recorded")
        if not self._found.has_manifest:
            self._create(self._root / MANIFEST, (self._source.log.root / MANIFEST).read())
        return record

    def _create(self, place: Place, data: bytes) -> None:
        try:
            place.create(data)
        except FileExistsError:
            if place.read() != data:  # else it is this call's own, after an outage, or the same of a copy cut short
                raise self._overtaken() from None

    def _replace_record(self, old: bytes, new: bytes) -> None:
        prepared = self._first.prepare(new, epoch=self._turn, is_durable=True)
        try:
            self._demand_own(self._found, may_exist=self._may_exist)
            prepared.put()
        except FileNotFoundError:
            if self._first.read() != new:
                raise self._overtaken() from None
        except BaseException:
            prepared.discard()
            raise
        self._first.parent.sync()
        if self._numbers() != [0]:
            # A claim came after the look: the job has read the old state.
            self._first.prepare(old, epoch=self._turn, is_durable=True).put()
            self._first.parent.sync()
            raise UsageError(f"{self._url}: a job has begun to run on this copy; name another place")

    def _kept(self, ref: PieceRef, there: dict[str, list[StoredPiece]]) -> tuple[PieceRef, KeySum] | None:
        """The piece in the copy, with its sum, if it is there and whole: an interrupted copy may have left it torn."""
        for stored in there.get(ref.name, ()):
            moved = replace(ref, file=stored.file, offset=stored.offset)
            try:
                return moved, self._sum(moved)
            except (StoreError, OSError):
                continue
        return None

    def _sync(self, kept: Iterable[PieceRef]) -> None:
        """Of a copy that was cut short, what was read back may lie in memory alone; what the record names does not."""
        record = self._found.record
        durable: set[tuple[str, str]] = set()
        if record is not None:
            body = decode_record(record, number=0, file=str(self._first)).body
            assert isinstance(body, LogSnapshot)
            durable = {(ref.file, ref.name) for ref in _live(body.state)}
        files = sorted({ref.file for ref in kept if (ref.file, ref.name) not in durable})
        folders = {(self._root / file).parent for file in files}
        above = (self._root / "pieces", self._root) if files else ()
        for place in (*(self._root / file for file in files), *folders, *above):
            place.sync()

    def _sum(self, ref: PieceRef) -> KeySum:
        return self._checked(ref, self._pieces.read(ref))

    def _checked(self, ref: PieceRef, data: bytes) -> KeySum:
        """The sum of a piece. Raises CorruptionError when it is not the one that the reference names."""
        blocks = decode_named(ref, data, self._source.log.manifest.store_id)
        return sum_of_all(blocks, ref.first_window)

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

    def _take_turn(self) -> int:
        """From here on no earlier turn can replace the record, or delete what it has not listed."""
        (self._root / TURNS).make_directories()
        turn = max(self._turns(), default=0) + 1
        try:
            (self._root / TURNS / f"{turn:06d}").create(b"")
        except FileExistsError:
            raise self._overtaken() from None
        self._first.remove_prepared(below_epoch=turn)
        return turn

    def _turns(self) -> list[int]:
        return [int(name) for name in (self._root / TURNS).listed() if name.isdecimal()]

    def _numbers(self) -> list[int]:
        return [number for name in self._first.parent.listed() if (number := record_number(name)) is not None]

    def _overtaken(self) -> UsageError:
        return UsageError(
            f"{self._url}: another backup or restore, or a start, has put a store there meanwhile; nothing was replaced"
        )

    def _demand_own(self, place: _Place, *, may_exist: bool) -> None:
        """This copy's turn is the highest, and the place is as it was, or as this copy made it. Raises UsageError."""
        if max(self._turns(), default=0) != self._turn or self._look(may_exist=may_exist) != place:
            raise self._overtaken()

    def _look(self, *, may_exist: bool) -> _Place:
        """What is at the place. Raises UsageError where no copy may be put."""
        if self._root == self._source.log.root:
            raise UsageError(f"{self._url}: this is the store itself; name another place")
        numbers = self._numbers()
        record = self._first.read() if 0 in numbers else None
        try:
            manifest = read_manifest(self._root)
        except StoreMissingError:
            if max(numbers, default=0):
                raise UsageError(f"{self._url}: a log exists there without a manifest; name another place") from None
            if record is not None and is_birth(decode_record(record, number=0, file=str(self._first))):
                raise UsageError(
                    f"{self._url}: a job is making a store there, or was cut short; remove the folder, or name another "
                    "place"
                ) from None
            return _Place(record, has_manifest=False)
        if not may_exist:
            raise UsageError(f"{self._url}: there is a store; move it away first")
        if manifest.store_id != self._source.log.manifest.store_id:
            raise UsageError(f"{self._url}: there is another store (id {manifest.store_id[:8]}); name another place")
        if numbers != [0]:
            raise UsageError(f"{self._url}: a job has run on this copy; name another place")
        return _Place(record, has_manifest=True)


def backup(source: OpenStore, url: str) -> StoreCopy:
    """A copy of a store at a URL, where there may be an older copy."""
    return StoreCopy(source, url, may_exist=True)


def restore(copy: OpenStore, url: str) -> StoreCopy:
    """A store at a URL, where there is none, made of a copy."""
    return StoreCopy(copy, url, may_exist=False)


def _live(state: LogState) -> list[PieceRef]:
    return [ref for refs in state.pieces.values() for ref in refs]
