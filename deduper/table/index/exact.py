"""The exact index: each key with its file, in pieces of the bucket store.

    <folder>/state                 a framed file: magic "BSTABKEY", version 1, `IndexState` as the body (`persistent`)
    <folder>/pieces/<name>.piece   pieces of the bucket store: a bucket for each partition value, the file number in
                                   the column `window`

Order of a step: the new piece is durable, then the state that names it, then what it replaced is deleted. An entry
counts only if the version at hand has its file; `EntryKeys` alone decides it.

Young pieces are merged as they grow. Where all keys are in one bucket, each key would be looked up in each piece; so
when young pieces have grown large, they are spread over slices of the digests (`pieces`), and what comes into a slice
is merged there. A merge is of one slice, in memory; a call of `catch_up` does few, so no load waits for a rewriting of
the whole index. In the state the pieces of slices stand before the young ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, place_new
from bucket_store.pieces.piece import Entries, PieceRef, decode_header, encode_piece, piece_name
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import IndexDamagedError
from deduper.table.formats.files import FramedFile
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import (
    NO_KEYS,
    FileKeys,
    Int64s,
    SortedKeys,
    counted_files,
    files_of_buckets,
    in_order,
    joined,
    keys_of,
    layers,
)
from deduper.table.index.persistent import (
    REBUILDING,
    STATE,
    NumberedFile,
    Part,
    PersistentIndex,
    PersistentKind,
    numbered,
    serving,
)
from deduper.table.index.pieces import (
    YOUNG,
    Keys,
    KeysInMemory,
    MappedPiece,
    bounds,
    by_digests,
    entries_between,
    find,
    mapped_pieces,
    rows_of_slice,
    slices_for,
    to_merge,
    within,
)
from deduper.table.index.protocol import ABSENT, NO_TARGET, AddedKeys, Differences, Values, WrittenFile
from deduper.table.index.reading import grouped, key_steps, read_keys, rows_of

_PIECES = "pieces"
_PIECE_ROWS = 4 << 20
"""About so many keys make a piece. The state is written when it has those of whole files: an interrupted
building continues there."""
_MOST_MERGED = 4 << 20
"""Keys of the largest merge of young pieces, which is in memory as a whole: some 100 bytes each."""
_MOST_YOUNG = 8 << 20
"""With more keys than these in young pieces, and more than a part of all, they are spread over slices."""
_YOUNG_SHARE = 64
"""So in a large index the pieces that come into slices are not tiny."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index. `pieces` are from old to young; `columns` and `salt` are fixed for its life."""

    index_id: str
    salt: bytes
    columns: KeyColumns
    next_number: int
    files: tuple[NumberedFile, ...]
    pieces: tuple[PieceRef, ...]


FORM = FramedFile(IndexState, b"BSTABKEY", 1, "state of an index")


class EntryKeys:
    """See `VersionKeys`. Which of a version's `files`, by their numbers, hold a key; `salt` is that of the digests.

    `keys` from old to young may have entries of any file below the number `numbers`; those of other files than `files`
    are not believed. `folder` is the index's, for errors.
    """

    def __init__(
        self, folder: Path, salt: bytes, keys: Sequence[Keys], files: Mapping[int, DataFile], numbers: int
    ) -> None:
        self.salt = salt
        self.wanted: tuple[KeyColumn, ...] = ()
        self.files = files
        self._folder = folder
        self._keys = keys
        self._live = np.zeros(numbers, np.bool_)
        self._live[list(files)] = True

    def find(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`."""
        with naming_damage(self._folder):
            return find(self._keys, self._live, keys)


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Errors of reading pieces of the index in a folder, as ours."""
    try:
        yield
    except (CorruptionError, UnknownFormatError, FileNotFoundError) as error:
        raise IndexDamagedError(
            f"{error}; delete {folder}: the next load builds the index anew from the table"
        ) from error


class PieceView:
    """See `IndexView`.

    Its pieces are mapped, so they stay readable when a load deletes them.

    Raises:
        IndexDamagedError: a piece is gone or cut.
    """

    def __init__(self, folder: Path, columns: KeyColumns) -> None:
        self.absent: str | None = None
        self._folder = folder
        self._columns = columns
        self.state = self._state_of(folder, columns)
        self.pieces: list[MappedPiece] = []
        mapped = mapped_pieces(columns)
        with naming_damage(folder):
            while self.state is not None:
                try:
                    self.pieces = [mapped.piece(folder, ref) for ref in self.state.pieces]
                    mapped.keep(folder, self.state.pieces)
                    break
                except FileNotFoundError:
                    # Gone, or merged by a load since the state was read: then there is another state.
                    before, self.state = self.state, self._state_of(folder, columns)
                    if self.state == before:
                        raise
        self.next_number = 0 if self.state is None else self.state.next_number
        """Files that the index lacks have numbers from here on."""
        self.salt = bytes(SALT_BYTES) if self.state is None else self.state.salt

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        """See `IndexView`."""
        return numbered(() if self.state is None else self.state.files, self.next_number, files)

    def version(self, root: Path, files: Sequence[DataFile]) -> EntryKeys:
        """See `IndexView`. The keys of files that the index lacks are in memory."""
        of_version = self.numbered(files)
        lacking = [(number, file) for number, file in of_version.items() if number >= self.next_number]
        read = joined([*read_keys(root, lacking, self._columns, self.salt)])
        keys: list[Keys] = [*self.pieces, *map(KeysInMemory, layers(read))]
        return EntryKeys(self._folder, self.salt, keys, of_version, self.next_number + len(files))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return (key for piece in self.pieces for key in piece.buckets)

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`."""
        with naming_damage(self._folder):
            stored = joined([_stored(piece, bucket, *among) for piece in self.pieces])
        both = joined([read, stored.chosen(indexed[stored.file])])
        if not both.count:
            return Differences()
        order, found = in_order(both.file.astype(np.int64), both.hi, both.lo)
        starts = np.flatnonzero(~found.again())
        is_read = np.logical_or.reduceat(order < read.count, starts)
        is_stored = np.logical_or.reduceat(order >= read.count, starts)
        file = found.bucket[starts]
        return Differences(counted_files(file[is_read & ~is_stored]), counted_files(file[is_stored & ~is_read]))

    def _state_of(self, folder: Path, columns: KeyColumns) -> IndexState | None:
        found, self.absent = serving(FORM, folder, columns)
        return found


def _stored(piece: MappedPiece, bucket: int, least: int, greatest: int) -> FileKeys:
    """The entries of a bucket of a piece between two digests, which are sorted."""
    entries = piece.bucket(bucket)
    if entries is None:
        return NO_KEYS
    return keys_of(entries_between(entries, least, greatest))


class PieceIndex(PersistentIndex[IndexState]):
    """See `KeyIndex`. The index of a table's keys; the one process that holds the table's lock has it open."""

    form = FORM
    parts = _PIECES

    def __init__(self, folder: Path, columns: KeyColumns, state_file: str = STATE) -> None:
        self._mapped = mapped_pieces(columns)
        super().__init__(folder, columns, state_file)

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """See `KeyIndex`. Enters the keys that are new, without reading a file.

        A file in the place of a whole one takes over its number, and so its entries. Files in no other's place are
        entered if each bucket has one.
        """
        heirs = {file.replaces: file.file for file in files if file.replaces in added.whole}
        number = np.where(np.isin(added.target, list(heirs)), added.target, ABSENT)
        new = [file.file for file in files if file.replaces is None]
        is_new = added.target == NO_TARGET
        offsets = files_of_buckets(new, added.keys.chosen(is_new), self._columns) if added.has_all_new else None
        if offsets is None:
            new = []
        else:
            number[is_new] = self._state.next_number + offsets
        if not heirs and not new:
            return
        keys, number = added.keys.chosen(number != ABSENT), number[number != ABSENT].astype(np.uint32)
        pieces = (slice(begin, begin + _PIECE_ROWS) for begin in range(0, keys.count, _PIECE_ROWS))
        self._enter(new, (keys.between(rows).entries(number[rows]) for rows in pieces), heirs)

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """Reads the keys of the files that the index lacks, and merges pieces; gives the number of files read.

        `files` are those of the table's present version. Interrupted, a later call continues: the state is written with
        each piece.

        Raises:
            FileVanishedError, SchemaDriftError, TableError: a file cannot be read.
            IndexDamagedError: a piece that is to be merged is damaged.
        """
        known = {file.identity for file in self._state.files}
        missing = [file for file in files if file.identity not in known]
        if missing:
            for group in grouped(missing, rows_of(root, missing), _PIECE_ROWS):
                self._add(root, group)
        before = {ref.file for ref in self._state.pieces}
        self._drop(files)
        self._merge(files)
        if self._columns.bucket_column is None:
            self._spread(files)
            self._merge_slices(files)
        gone = before.difference(ref.file for ref in self._state.pieces)
        if gone:
            self._mapped.keep(self._folder, self._state.pieces)
            self._sweep()
        return len(missing)

    def version(self, _root: Path, files: Iterable[DataFile]) -> EntryKeys:
        """See `KeyIndex`."""
        of_version = numbered(self._state.files, self._state.next_number, files)
        with naming_damage(self._folder):
            pieces = [self._piece(ref) for ref in self._state.pieces]
        return EntryKeys(self._folder, self._state.salt, pieces, of_version, self._state.next_number)

    def _begun(self, index_id: str, salt: bytes) -> IndexState:
        return IndexState(index_id, salt, self._columns, 0, (), ())

    def _named(self, state: IndexState) -> Iterable[str]:
        return (Path(ref.file).name for ref in state.pieces)

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        steps = key_steps(
            root, list(enumerate(files, self._state.next_number)), self._columns, self._state.salt, _PIECE_ROWS
        )
        self._enter(files, chain.from_iterable(map(layers, steps)))

    def _enter(
        self, files: Sequence[DataFile], entries: Iterable[Entries], heirs: Mapping[int, DataFile] | None = None
    ) -> None:
        """Adds pieces with the keys of all of these files, which take the next numbers in their order.

        `heirs` take the numbers of files that go; the pieces have what keys they have more.
        """
        first = self._state.next_number
        pieces = tuple(map(self._place, entries))
        failpoints.hit("index.piece")
        entered = dict(enumerate(files, first)) | dict(heirs or {})
        kept = tuple(file for file in self._state.files if file.number not in entered)
        added = tuple(NumberedFile(number, file.path, file.size, file.stamp) for number, file in entered.items())
        self._write(
            replace(
                self._state,
                next_number=first + len(files),
                files=kept + added,
                pieces=self._state.pieces + pieces,
            )
        )
        failpoints.hit("index.state")

    def _place(self, entries: Entries, number: int = YOUNG) -> PieceRef:
        assert entries.window is not None
        first, last = int(entries.window.min()), int(entries.window.max())
        data = encode_piece(
            entries,
            store_id=bytes.fromhex(self._state.index_id),
            shard=number,
            first_window=first,
            last_window=last,
            epoch=0,
            attempt=0,
        )
        name = piece_name(window=first, epoch=0, attempt=0, shard=number)
        file = f"{_PIECES}/{name}.piece"
        place_new(LOCAL, self._folder / file, data)
        return decode_header(data, file=file, offset=0).to_ref(file=file, name=name, offset=0)

    def _present(self, files: Iterable[DataFile]) -> tuple[tuple[NumberedFile, ...], NDArray[np.bool_]]:
        """(the files of the index that the table has, whether each number is one of theirs)."""
        present = {file.identity for file in files}
        kept = tuple(file for file in self._state.files if file.identity in present)
        live = np.zeros(self._state.next_number, np.bool_)
        live[[file.number for file in kept]] = True
        return kept, live

    def _drop(self, files: Iterable[DataFile]) -> None:
        """Drops pieces whose files have all left the table, as rewritten files have."""
        kept, live = self._present(files)
        pieces = tuple(ref for ref in self._state.pieces if live[ref.first_window : ref.last_window + 1].any())
        if len(pieces) < len(self._state.pieces):
            self._write(replace(self._state, files=kept, pieces=pieces))

    def _merge(self, files: Iterable[DataFile]) -> None:
        """Merges young pieces into one as they grow, without the entries of files that the table has no more."""
        while chosen := to_merge([piece.entries for piece in self._young()], _MOST_MERGED):
            pieces = self._merged(files, self._young()[-chosen:], [YOUNG])
            if len(pieces) >= chosen:
                return  # as many layers as pieces: nothing is gained by another turn

    def _spread(self, files: Iterable[DataFile]) -> None:
        """Spreads the young pieces over slices when they are many; interrupted, it begins again with the next call."""
        keys = self._keys()
        young = self._young()
        if sum(piece.entries for piece in young) > max(_MOST_YOUNG, keys // _YOUNG_SHARE):
            self._merged(files, young, slices_for(keys))

    def _merge_slices(self, files: Iterable[DataFile]) -> None:
        """Merges the pieces of slices as they grow: of some slices with each call, so that no load waits for all."""
        slices, most = slices_for(self._keys()), 2 * rows_of_slice(self._keys())
        merged = 0
        for group in by_digests(piece for piece in self._state.pieces if piece.shard != YOUNG):
            sizes = [piece.entries for piece in group]
            if chosen := to_merge(sizes, most):
                self._merged(files, group[-chosen:], within(min(piece.shard for piece in group), slices))
                merged += sum(sizes[-chosen:])
                if merged >= _PIECE_ROWS:
                    return

    def _keys(self) -> int:
        return sum(piece.entries for piece in self._state.pieces)

    def _young(self) -> tuple[PieceRef, ...]:
        return tuple(piece for piece in self._state.pieces if piece.shard == YOUNG)

    def _merged(
        self, files: Iterable[DataFile], refs: Sequence[PieceRef], slices: Iterable[int]
    ) -> tuple[PieceRef, ...]:
        """Puts new pieces in the place of these, which are the youngest of their digests and have them in these slices.

        One slice after another is in memory.
        """
        kept, live = self._present(files)
        pieces: list[PieceRef] = []
        for number in slices:
            with naming_damage(self._folder):
                keys = joined([self._kept(ref, live, bounds(number)) for ref in refs])
            pieces += [self._place(entries, number) for entries in layers(keys)]
            failpoints.hit("index.slice")
        failpoints.hit("index.merged")
        rest = [ref for ref in self._state.pieces if ref not in refs]
        ordered = tuple(sorted((*rest, *pieces), key=lambda ref: ref.shard == YOUNG))  # stable: from old to young
        # Files that lost entries lose their numbers: should they come back, they are read again.
        self._write(replace(self._state, files=kept, pieces=ordered))
        return tuple(pieces)

    def _kept(self, ref: PieceRef, live: NDArray[np.bool_], among: tuple[int, int]) -> FileKeys:
        keys = joined([keys_of(block) for block in self._piece(ref).between(*among)])
        kept = live[keys.file]
        return keys if kept.all() else keys.chosen(kept)

    def _piece(self, ref: PieceRef) -> MappedPiece:
        return self._mapped.piece(self._folder, ref)


class ExactIndex(PersistentKind[IndexState]):
    """Every key with its file, in `_deduper/index` of the table's folder."""

    form = FORM
    folder_name = "index"

    def open(self, root: Path, columns: KeyColumns) -> PieceIndex:
        """See `TableIndex`."""
        return PieceIndex(self.folder(root), columns)

    def view(self, root: Path, columns: KeyColumns) -> PieceView:
        """See `TableIndex`."""
        return PieceView(self.folder(root), columns)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> PieceIndex:
        return PieceIndex(self.folder(root), columns, REBUILDING)

    def _parts(self, folder: Path, state: IndexState) -> list[Part]:
        return [Part(folder / ref.file, ref.entries, ref.length) for ref in state.pieces]
