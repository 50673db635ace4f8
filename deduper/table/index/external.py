"""The external index: each key with its files on a Redis server, the list of the files in the table's folder.

Order of a step: file numbers · entries · the server's token · the state in the table's folder (`external_state`).
Order when files have gone: the state, then the server's token.
docs/tables.md has the layout on the server.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import IndexServerError, ServerRefusedError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.external_state import FORM, ServedFile, ServedState, new_token
from deduper.table.index.keys import (
    FileKeys,
    Int64s,
    SortedKeys,
    UInt64s,
    bucket_of,
    counted_files,
    files_of_buckets,
    in_order,
    joined,
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
from deduper.table.index.pieces import KeysInMemory, find
from deduper.table.index.protocol import ABSENT, AddedKeys, Condition, Differences, Values, WrittenFile
from deduper.table.index.reading import grouped, key_steps, read_keys, rows_of
from deduper.table.index.redis_server import EvictingError, ServedEntries, ServerAddress, server_address

logger = logging.getLogger(__name__)

_STEP_ROWS = 4 << 20
"""About so many keys are read for a step: an interrupted building continues after the last one."""


class WrittenKeys:
    """See `VersionKeys`. For a write, whose claim on the index is looked at after each block."""

    wanted: tuple[KeyColumn, ...] = ()

    def __init__(self, entries: ServedEntries, writer: str, salt: bytes, files: Mapping[int, DataFile]) -> None:
        self.salt = salt
        self.files = files
        self._entries = entries
        self._writer = writer

    def find(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`.

        Raises:
            IndexServerError: the server is away, has lost the index, or another process has taken it.
        """
        place, number, heads = self._entries.find(keys.digests)
        own = self._writer, self._entries.writes
        if any(head is None or (head.writer, head.writes) != own for head in heads):
            what = "the server lost the index, or its last writes, or another process took it"
            what = f"{what}; nothing was committed, repeat the command"
            raise IndexServerError(f"{self._entries.name}: {what}")
        return renumbered(place, number, {number: number for number in self.files})


def renumbered(place: Int64s, number: Int64s, number_of: Mapping[int, int]) -> tuple[Int64s, Int64s]:
    """(places, file numbers) of entries by other numbers, in the order of both; entries of other files are left out."""
    known = np.full(max(number_of, default=-1) + 2, ABSENT, np.int64)
    known[list(number_of)] = list(number_of.values())
    number = known[np.minimum(number, len(known) - 1)]
    place, number = place[number != ABSENT], number[number != ABSENT]
    order = np.lexsort((number, place))
    return place[order], number[order]


class ServedView:
    """See `IndexView`."""

    def __init__(self, folder: Path, columns: KeyColumns, address: ServerAddress) -> None:
        self.columns = columns
        self._folder = folder
        self._files: tuple[ServedFile, ...] = ()
        self._counts: dict[tuple[int, int], Counter[int]] = {}
        self._state, self.absent = serving(FORM, folder, columns)
        self._entries = ServedEntries(address, "" if self._state is None else self._state.index_id)
        head = self._entries.head()
        if self._state is not None:
            step = None if head is None else self._state.step_of(head.token)
            if step is None:
                self.absent = "the server has none, or another state of it than the table's folder"
                self._state = None
            else:
                self._files = self._state.files_up_to(step)
        self.next_number = max((file.number for file in self._files), default=-1) + 1
        self.salt = bytes(SALT_BYTES) if self._state is None else self._state.salt

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        """See `IndexView`."""
        return numbered(self._files, self.next_number, files)

    def version(self, root: Path, files: Sequence[DataFile]) -> ViewedKeys:
        """See `IndexView`. The keys of files that the index lacks are in memory."""
        return ViewedKeys(self, root, self.numbered(files))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return {file.bucket for file in self._files}

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`. Files that a write has dropped meanwhile are left out."""
        _, found = in_order(read.file.astype(np.int64), read.hi, read.lo)
        once = found.chosen(~found.again())
        place, number, files = self.believed(once.digests)
        held = np.zeros(once.count, np.bool_)
        held[place[number == once.bucket[place]]] = True
        compared = {file.number for file in files if file.number < len(indexed) and indexed[file.number]}
        present = counted_files(once.bucket[held])
        listed = self._listed(among)
        here = {file.number for file in self._files if file.bucket == bucket} & compared
        if any(listed[number] > present[number] for number in here):
            listed = self._listed_once(among, here)  # a key that the server has moved meanwhile is listed twice
        return Differences(
            counted_files(once.bucket[np.isin(once.bucket, list(compared)) & ~held]),
            Counter({number: more for number in here if (more := listed[number] - present[number]) > 0}),
        )

    def believed(self, digests: UInt64s) -> tuple[Int64s, Int64s, Sequence[ServedFile]]:
        """(places among the digests, file numbers, the files whose entries count)."""
        if self._state is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), ()
        place, number, heads = self._entries.find(digests)
        tokens = {head.token for head in heads if head is not None}
        if any(head is None for head in heads):
            return place, number, ()
        state: ServedState | None = self._state
        if any(self._state.step_of(token) is None for token in tokens):
            state = FORM.sound(self._folder / STATE)
        if state is None or state.index_id != self._state.index_id:
            return place, number, ()
        steps = [state.step_of(token) for token in tokens]
        if any(step is None for step in steps):
            return place, number, ()
        self._state = state
        return place, number, state.files_up_to(min(step for step in steps if step is not None))

    def _listed(self, among: tuple[int, int]) -> Counter[int]:
        """The entries of each file with `hi` in a range, as the server lists them."""
        if among not in self._counts:
            counts: Counter[int] = Counter()
            for digests, number in self._entries.listed():
                counts += counted_files(number[_within(digests[:, 0], among)])
            self._counts[among] = counts
        return self._counts[among]

    def _listed_once(self, among: tuple[int, int], files: Set[int]) -> Counter[int]:
        """The same of some files, each entry once."""
        hi, lo, of = [], [], []
        for digests, number in self._entries.listed():
            rows = _within(digests[:, 0], among) & np.isin(number, list(files))
            hi.append(digests[rows, 0])
            lo.append(digests[rows, 1])
            of.append(number[rows])
        if not of:
            return Counter()
        _, found = in_order(np.concatenate(of), np.concatenate(hi), np.concatenate(lo))
        return counted_files(found.bucket[~found.again()])


class ViewedKeys:
    """See `VersionKeys`. Keys of files that the server lacks, or whose entries do not count any more, are read."""

    wanted: tuple[KeyColumn, ...] = ()

    def __init__(self, view: ServedView, root: Path, files: Mapping[int, DataFile]) -> None:
        self.salt = view.salt
        self.files = files
        self._view = view
        self._root = root
        self._number_of = {file.identity: number for number, file in files.items()}
        self._read: dict[int, FileKeys] = {}

    def find(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`."""
        place, number, served = self._view.believed(keys.digests)
        ours = {file.number: self._number_of[file.identity] for file in served if file.identity in self._number_of}
        place, number = renumbered(place, number, ours)
        lacking = sorted(self.files.keys() - ours.values())
        if not lacking:
            return place, number
        in_memory = [*map(KeysInMemory, layers(self._keys_of(lacking)))]
        more_places, more_numbers = find(in_memory, np.ones(max(self.files) + 1, np.bool_), keys)
        place, number = np.append(place, more_places), np.append(number, more_numbers)
        order = np.lexsort((number, place))
        return place[order], number[order]

    def _keys_of(self, numbers: Sequence[int]) -> FileKeys:
        unread = [(number, self.files[number]) for number in numbers if number not in self._read]
        for (number, _), keys in zip(unread, read_keys(self._root, unread, self._view.columns, self.salt), strict=True):
            self._read[number] = keys
        return joined([self._read[number] for number in numbers])


def _within(hi: UInt64s, among: tuple[int, int]) -> NDArray[np.bool_]:
    return (hi >= np.uint64(among[0])) & (hi <= np.uint64(among[1]))


class ServedIndex(PersistentIndex[ServedState]):
    """See `KeyIndex`."""

    form = FORM
    parts = ""
    """None: what a state names lies on the server."""

    def __init__(
        self, root: Path, folder: Path, columns: KeyColumns, address: ServerAddress, state_file: str = STATE
    ) -> None:
        self._root = root
        self._address = address
        self._writer = secrets.token_hex(8)
        self._leaves = False
        """Whether an index that begins empty leaves the old one's entries, because another process may use them."""
        self._require_fit(folder)
        super().__init__(folder, columns, state_file)

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """See `KeyIndex`. Nothing is done unless each bucket has one file, and no file is in the place of another."""
        if not added.has_all_new or any(file.replaces is not None for file in files):
            return
        new = [file.file for file in files]
        offsets = files_of_buckets(new, added.keys, self._columns)
        if offsets is not None:
            first = self._served.take_numbers(self._writer, len(new))
            self._served.put(self._writer, added.keys.digests, (first + offsets).astype(np.uint32))
            self._step(list(enumerate(new, first)), np.bincount(offsets, minlength=len(new)).tolist())

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """See `KeyIndex`. A file that the table has no more loses its number; should it come back, it is read again."""
        present = {file.identity for file in files}
        gone = {file.number for file in self._state.files if file.identity not in present}
        if gone:
            self._drop(gone)
        known = {file.identity for file in self._state.files}
        missing = [file for file in files if file.identity not in known]
        for group in grouped(missing, rows_of(root, missing), _STEP_ROWS):
            self._add(root, group)
        return len(missing)

    def version(self, _root: Path, files: Iterable[DataFile]) -> WrittenKeys:
        """See `KeyIndex`."""
        present = {file.identity: file for file in files}
        of_version = {one.number: present[one.identity] for one in self._state.files if one.identity in present}
        return WrittenKeys(self._served, self._writer, self._state.salt, of_version)

    def replace_old(self) -> None:
        """As `PersistentIndex`; the entries of the old one are deleted."""
        old = self.form.sound(self._folder / STATE)
        if old is not None and self._is_ours(old):
            self._write(replace(self._state, discarded=(*self._state.discarded, *old.discarded, old.index_id)))
        super().replace_old()

    def _opened(self) -> ServedState:
        state = super()._opened()
        if self.began_anew is not None:
            return state
        self._served = ServedEntries(self._address, state.index_id)
        head = self._served.head()
        if head is None:
            return self._new("the server does not have it: it was emptied, has dropped entries, or is another one")
        step = state.step_of(head.token)
        if step is None:
            self._leaves = True
            logger.warning("%s on the server is another process's, or newer; it is left there", self._served.name)
            return self._new("the server has another state of it than the table's folder")
        self._served.claim(head, self._writer)
        if head.token != state.token:
            state = state.without({file.number for file in state.files if file.step > step})
            self.form.replace(self._folder / self._state_file, state)
            self._served.advance(self._writer, state.token)
        return state

    def _new(self, why: str) -> ServedState:
        state = super()._new(why)
        self._served = ServedEntries(self._address, state.index_id)
        self._served.require_fit()
        self._served.begin(state.token, self._writer, self._root)
        return state

    def _begun(self, index_id: str, salt: bytes) -> ServedState:
        old = self.form.sound(self._folder / self._state_file)
        discarded = () if old is None else (*old.discarded, *(() if self._leaves else (old.index_id,)))
        return ServedState(index_id, salt, self._columns, 0, new_token(), new_token(), (), (), discarded)

    def _named(self, _: ServedState) -> Iterable[str]:
        return ()

    def _sweep(self) -> None:
        """Deletes the entries of indexes that this one has replaced."""
        for index_id in self._state.discarded:
            ServedEntries(self._address, index_id).remove()
        if self._state.discarded:
            self._write(replace(self._state, discarded=()))

    def _require_fit(self, folder: Path) -> None:
        """Before anything is written. An index on a server that evicts counts as lost, whatever it is set to later."""
        kept = [state for state in (FORM.sound(folder / STATE), FORM.sound(folder / REBUILDING)) if state is not None]
        server = ServedEntries(self._address, "")
        try:
            server.require_fit()
        except EvictingError:
            for state in kept:
                ServedEntries(self._address, state.index_id).forget()
            raise

    def _is_ours(self, state: ServedState) -> bool:
        head = ServedEntries(self._address, state.index_id).head()
        return head is None or state.step_of(head.token) is not None

    def _drop(self, gone: Set[int]) -> None:
        self._write(self._state.without(gone))
        failpoints.hit("index.dropped")
        self._served.advance(self._writer, self._state.token)

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        new = list(enumerate(files, self._served.take_numbers(self._writer, len(files))))
        live = self._live(())
        counts: Counter[int] = Counter()
        for keys in key_steps(root, new, self._columns, self._state.salt, _STEP_ROWS):
            _, found = in_order(keys.file.astype(np.int64), keys.hi, keys.lo)
            once = found.chosen(~found.again())
            self._served.add(self._writer, once.digests, once.bucket.astype(np.uint32), live)
            counts += counted_files(once.bucket)
            live = self._live(number for number, _ in new)
        self._step(new, [counts[number] for number, _ in new])

    def _step(self, new: Iterable[tuple[int, DataFile]], keys: Iterable[int]) -> None:
        """The server has the entries of files: its token, then the state."""
        failpoints.hit("index.piece")
        self._served.advance(self._writer, self._state.announced)
        failpoints.hit("index.served")
        step = self._state.step + 1
        added = [
            ServedFile(number, file.path, file.size, file.stamp, count, bucket_of(file, self._columns), step)
            for (number, file), count in zip(new, keys, strict=True)
        ]
        self._write(self._state.with_files(added))
        failpoints.hit("index.state")

    def _live(self, begun: Iterable[int]) -> NDArray[np.bool_]:
        """Whether an entry of each number stays: those of the state's files, and those that are being added."""
        numbers = [*(file.number for file in self._state.files), *begun]
        live = np.zeros(max(numbers, default=-1) + 1, np.bool_)
        live[numbers] = True
        return live


class ExternalIndex(PersistentKind[ServedState]):
    """Every key with its file on a Redis server, the list of files in `_deduper/external` of the table's folder."""

    form = FORM
    folder_name = "external"

    def __init__(
        self,
        url: str = "",
        password: str | None = None,
        *,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
    ) -> None:
        """`url`: `redis://`, `rediss://` or `unix://`; a `password` in it is percent-encoded. Files are of PEM.

        Raises:
            SettingError: they are no server.
        """
        self._address = server_address(
            url,
            password,
            ca_file=ca_file,
            certificate_file=certificate_file,
            key_file=key_file,
            key_password=key_password,
        )

    def open(self, root: Path, columns: KeyColumns) -> ServedIndex:
        """See `TableIndex`.

        Raises:
            ServerRefusedError: the server cannot hold an index, or the package redis is not installed.
            IndexServerError: the server is away.
        """
        return ServedIndex(root, self.folder(root), columns, self._address)

    def view(self, root: Path, columns: KeyColumns) -> ServedView:
        """See `TableIndex`.

        Raises: as `open`.
        """
        return ServedView(self.folder(root), columns, self._address)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> ServedIndex:
        return ServedIndex(root, self.folder(root), columns, self._address, REBUILDING)

    def _parts(self, folder: Path, state: ServedState) -> list[Part]:
        """One: the entries on the server, which takes no room in the folder."""
        return [Part(folder / state.index_id, sum(file.keys for file in state.files), 0)]

    def _checked(
        self,
        folder: Path,  # noqa: ARG002  the base's
        state: ServedState,
    ) -> tuple[Sequence[NumberedFile], tuple[Condition, str] | None]:
        try:
            head = ServedEntries(self._address, state.index_id).head()
        except (IndexServerError, ServerRefusedError) as error:
            return state.files, (Condition.AWAY, str(error))
        step = None if head is None else state.step_of(head.token)
        if step is None:
            why = "the server has none, or another state of it; the next load builds the index from the table"
            return (), (Condition.ABSENT, why)
        return state.files_up_to(step), None
