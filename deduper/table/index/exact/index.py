"""An index in its folder: brought up to the files of a version, merged, and asked for keys.

    <folder>/pieces/<name>.piece   pieces of the bucket store: a bucket for each partition value, the file number in
                                   the column `window`

Order of a step: the new piece is durable, then the state that names it (`kept`), then what it replaced is deleted.

Young pieces are merged as they grow. Where all keys are in one bucket, each key would be looked up in each piece; so
when young pieces have grown large, they are spread over slices of the digests (`slices`), and what comes into a slice
is merged there. A merge is of one slice, in memory; a call of `catch_up` does few, so no load waits for a rewriting of
the whole index. In the state the pieces of slices stand before the young ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, place_new
from bucket_store.pieces.piece import Entries, PieceRef, decode_header, encode_piece, piece_name
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import FileKeys, files_of_buckets, joined, keys_of, layers
from deduper.table.index.exact.mapped import MappedPiece, mapped_pieces
from deduper.table.index.exact.slices import YOUNG, bounds, by_digests, rows_of_slice, slices_for, to_merge, within
from deduper.table.index.exact.state import FORM, IndexState
from deduper.table.index.exact.version import EntryKeys, telling_damage
from deduper.table.index.kept import STATE, KeptIndex, NumberedFile
from deduper.table.index.protocol import ABSENT, NO_TARGET, AddedKeys, WrittenFile
from deduper.table.index.reading import grouped, key_steps, rows_of

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


class PieceIndex(KeptIndex[IndexState]):
    """See `KeyIndex`. The index of a table's keys; the one process that holds the table's lock has it open."""

    form = FORM
    parts = _PIECES

    def __init__(self, folder: Path, columns: KeyColumns, state_file: str = STATE) -> None:
        self._mapped = mapped_pieces(columns)
        super().__init__(folder, columns, state_file)

    @property
    def salt(self) -> bytes:
        """The salt of its digests."""
        return self._state.salt

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
        """The keys of the version with these files; the index has been brought up to it.

        Raises:
            IndexDamagedError: a piece is damaged or gone.
        """
        present = {file.identity: file for file in files}
        numbered = {one.number: present[one.identity] for one in self._state.files if one.identity in present}
        with telling_damage(self._folder):
            pieces = [self._piece(ref) for ref in self._state.pieces]
        return EntryKeys(self._folder, self.salt, pieces, numbered, self._state.next_number)

    def _begun(self, index_id: str, salt: bytes) -> IndexState:
        return IndexState(index_id, salt, self._columns, 0, (), ())

    def _named(self, state: IndexState) -> Iterable[str]:
        return (Path(ref.file).name for ref in state.pieces)

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        numbered = list(enumerate(files, self._state.next_number))
        steps = key_steps(root, numbered, self._columns, self.salt, _PIECE_ROWS)
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
        numbered = dict(enumerate(files, first)) | dict(heirs or {})
        kept = tuple(file for file in self._state.files if file.number not in numbered)
        added = tuple(NumberedFile(number, file.path, file.size, file.stamp) for number, file in numbered.items())
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
        """Leaves out pieces of which the table has no file any more, as those of files that were rewritten."""
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
            with telling_damage(self._folder):
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
