"""An external index that is open for writing: brought up to the files of a version, and asked for keys.

Order of a step: file numbers · entries · the server's token · the state in the table's folder (`kept`).
Order when files have gone: the state, then the server's token; see `state`.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import bucket_of, counted_files, files_of_buckets, in_order
from deduper.table.index.external.asked import WrittenKeys
from deduper.table.index.external.server import EvictingError, ServedEntries
from deduper.table.index.external.settings import ServerAddress
from deduper.table.index.external.state import FORM, ServedFile, ServedState, new_token
from deduper.table.index.kept import REBUILDING, STATE, KeptIndex
from deduper.table.index.protocol import AddedKeys, WrittenFile
from deduper.table.index.reading import grouped, key_steps, rows_of

logger = logging.getLogger(__name__)

_STEP_ROWS = 4 << 20
"""About so many keys are read for a step: an interrupted building continues after the last one."""


class ServedIndex(KeptIndex[ServedState]):
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
        """Whether an index that is begun anew leaves the old one's entries, because another process may use them."""
        self._require_fit(folder)
        super().__init__(folder, columns, state_file)

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """See `KeyIndex`. Nothing is done unless each bucket has one file, and no file is in the place of another."""
        if not added.has_all_new or any(file.replaces is not None for file in files):
            return
        new = [file.file for file in files]
        offsets = files_of_buckets(new, added.keys, self._columns)
        if offsets is not None:
            first = self._served.take_numbers(len(new))
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
        numbered = {one.number: present[one.identity] for one in self._state.files if one.identity in present}
        return WrittenKeys(self._served, self._writer, self._state.salt, numbered)

    def replace_old(self) -> None:
        """As `KeptIndex`; the entries of the old one are deleted."""
        old = self.form.sound(self._folder)
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
            self.form.write(self._folder, state, self._state_file)
            self._served.advance(self._writer, state.token)
        return state

    def _new(self, why: str) -> ServedState:
        state = super()._new(why)
        self._served = ServedEntries(self._address, state.index_id)
        self._served.require_fit()
        self._served.begin(state.token, self._writer, self._root)
        return state

    def _begun(self, index_id: str, salt: bytes) -> ServedState:
        old = self.form.sound(self._folder, self._state_file)
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
        kept = [state for state in (FORM.sound(folder), FORM.sound(folder, REBUILDING)) if state is not None]
        server = ServedEntries(self._address, "")
        try:
            server.require_fit()
        except EvictingError:
            for state in kept:
                ServedEntries(self._address, state.index_id).forget()
            raise
        server.require_rights()

    def _is_ours(self, state: ServedState) -> bool:
        head = ServedEntries(self._address, state.index_id).head()
        return head is None or state.step_of(head.token) is not None

    def _drop(self, gone: Set[int]) -> None:
        self._write(self._state.without(gone))
        failpoints.hit("index.dropped")
        self._served.advance(self._writer, self._state.token)

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        numbered = list(enumerate(files, self._served.take_numbers(len(files))))
        live = self._live(())
        counts: Counter[int] = Counter()
        for keys in key_steps(root, numbered, self._columns, self._state.salt, _STEP_ROWS):
            _, found = in_order(keys.file.astype(np.int64), keys.hi, keys.lo)
            once = found.chosen(~found.again())
            self._served.add(self._writer, once.digests, once.bucket.astype(np.uint32), live)
            counts += counted_files(once.bucket)
            live = self._live(number for number, _ in numbered)
        self._step(numbered, [counts[number] for number, _ in numbered])

    def _step(self, numbered: Iterable[tuple[int, DataFile]], keys: Iterable[int]) -> None:
        """The server has the entries of files: its token, then the state."""
        failpoints.hit("index.piece")
        self._served.advance(self._writer, self._state.announced)
        failpoints.hit("index.served")
        step = self._state.step + 1
        added = [
            ServedFile(number, file.path, file.size, file.stamp, count, bucket_of(file, self._columns), step)
            for (number, file), count in zip(numbered, keys, strict=True)
        ]
        self._write(self._state.with_files(added))
        failpoints.hit("index.state")

    def _live(self, begun: Iterable[int]) -> NDArray[np.bool_]:
        """Whether an entry of each number stays: those of the state's files, and those that are being added."""
        numbers = [*(file.number for file in self._state.files), *begun]
        live = np.zeros(max(numbers, default=-1) + 1, np.bool_)
        live[numbers] = True
        return live
