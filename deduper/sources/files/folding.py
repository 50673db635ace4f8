"""The sources files of many windows folded into two, beside the windows.

Each window writes a file with its source partitions. Once there are enough of them, a fold makes of them

- an archive of the windows whose keys may still live: it says where a first copy was read,
- the table of judged files, for a source of files: a file that is not in it is new. A file that is gone from the source
  for `judged.FORGET_AFTER_US` leaves it.

Both are durable before the record that names them and drops the single files. An interrupted fold leaves files that no
record names, for the next start to remove.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.judged_files import JudgedFiles, encode_judged, judged_ref
from bucket_store.log.records import LogState, SourcesFoldRecord
from bucket_store.log.sources_archive import SourcesReader, archive_ref, encode_archive, folded_name
from bucket_store.log.sources_file import FOLDED_DIRECTORY, INLINE_STATE_BYTES, SourcePartition, inline_bytes
from bucket_store.log.state import first_origin
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place
from bucket_store.threads import on_a_thread
from deduper.config.files import FilesSource
from deduper.sources.files.judged import JudgedSoFar, KnownFiles
from deduper.sources.files.listing import list_files

logger = logging.getLogger(__name__)

FOLD_WINDOWS = 1024
"""When so many sources files lie there, they are folded. Naming them costs a window 60 µs; more of them cost more, and
fewer would write the table of a million files more often."""

_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class FilesToFold:
    """Input for the table of judged files: the known files, and a listing of the source."""

    known: KnownFiles
    folder: str
    list_paths: Callable[[], list[str]]

    @classmethod
    def of(cls, source: FilesSource, known: KnownFiles) -> FilesToFold:
        """The same, of a source."""
        return cls(known, str(source.folder), lambda: list_files(source))


class SourceFolding:
    """Folds sources in the background. For the thread that judges. `files`: of a source of files, else None."""

    def __init__(
        self,
        log: CommitLog,
        files: FilesToFold | None,
        in_background: InBackground = on_a_thread,
        *,
        fold_windows: int | None = None,
    ) -> None:
        self._log = log
        self._files = files
        self._aside = in_background
        self._fold_windows = FOLD_WINDOWS if fold_windows is None else fold_windows
        self._under_way: _Fold | None = None

    def record(self) -> bool:
        """After a window: record the fold that is over. False while one is under way.

        A running fold reads the files that its state names, so none of them may be removed before.

        Raises:
            Exception: why the fold failed.
        """
        fold = self._under_way
        if fold is not None and fold.is_over.is_set():
            self._under_way = None
            self._record(fold)
        return self._under_way is None

    def begin(self) -> None:
        """After `record`: begin a fold that is due, if none is running."""
        if self._under_way is None and self._is_due():
            fold = self._begun()
            if fold is not None:
                self._under_way = fold
                self._aside(fold.run)

    def _is_due(self) -> bool:
        state = self._log.state
        return len(state.sources) >= self._fold_windows or 2 * inline_bytes(state) >= INLINE_STATE_BYTES

    def finish(self) -> None:
        """After the last window: wait for a running fold, and record it.

        Raises:
            Exception: why the fold failed.
        """
        if self._under_way is not None:
            self._under_way.is_over.wait(_CLOSE_S)
            self.record()

    def at_once(self) -> None:
        """Fold all sources before any window, because the folder of the source has moved."""
        self.close()  # it covers older windows only; the fold that follows covers all
        fold = self._begun()
        if fold is not None:
            fold.run()
            self._record(fold)

    def close(self) -> None:
        """Wait for a running fold, and remove its files, which no record names. Safe to repeat."""
        fold, self._under_way = self._under_way, None
        if fold is None:
            return
        if not fold.is_over.wait(_CLOSE_S):
            logger.warning("sources are still being folded after %d s; the next start cleans up", _CLOSE_S)
            return
        # Their names were drawn for this fold alone.
        for path in fold.placed:
            with contextlib.suppress(OSError):  # the next start removes it
                path.remove()

    def _begun(self) -> _Fold | None:
        state = self._log.state
        if self._files is None and any(ref.is_kept for ref in state.sources.values()):
            return None  # of a source that does not count: only its table may take the place of digests
        return _Fold(self._log, state, self._files)

    def _record(self, fold: _Fold) -> None:
        if fold.failure is not None:
            raise fold.failure
        assert fold.record is not None
        self._log.place(replace(fold.record, wall_us=self._log.state.last_wall_us))
        failpoints.hit("sources.folded")
        if fold.so_far is not None and fold.table is not None and self._files is not None:
            self._files.known.folded(fold.table)
        logger.debug("sources through window %d folded in %.3f s", fold.record.through_window, fold.seconds)


class _Fold(BackgroundTask):
    """One fold of what `state` names; the last window may still be under way to its topics."""

    def __init__(self, log: CommitLog, state: LogState, files: FilesToFold | None) -> None:
        super().__init__()
        self._log = log
        self._state = state
        self._files = files
        self.so_far: JudgedSoFar | None = None if files is None else files.known.so_far()
        self.table: JudgedFiles | None = None
        self.record: SourcesFoldRecord | None = None
        self.placed: list[Place] = []

    def _place(self, name: str, data: bytes) -> None:
        path = self._log.root / FOLDED_DIRECTORY / name
        self.placed.append(path)
        create_own(path, data)

    def act(self) -> None:
        log, state = self._log, self._state
        through = state.next_window - 1
        (log.root / FOLDED_DIRECTORY).make_directories()
        archive = judged = None
        # From the store and not from memory: only files that a record names count.
        windows = dict(self._windows())
        first = first_origin(through, state.pieces, state.retired)
        origins = {window: partitions for window, partitions in windows.items() if window >= first}
        if origins:
            data = encode_archive(origins)
            name = folded_name(through, state.epoch, "archive")
            self._place(name, data)
            archive = archive_ref(name, origins, data)
        failpoints.hit("sources.archived")
        if self._files is not None and self.so_far is not None:
            paths = self._paths(self._files)
            # The last record's clock is good enough for days, and the same whenever a fold begins.
            self.table = self.so_far.folded(self._files.folder, windows.values(), paths, state.last_wall_us)
            data = encode_judged(through, self.table)
            name = folded_name(through, state.epoch, "judged")
            self._place(name, data)
            judged = judged_ref(name, through, self.table, data)
        self.record = SourcesFoldRecord(through, archive, judged, state.last_wall_us)

    def _windows(self) -> Iterator[tuple[int, tuple[SourcePartition, ...]]]:
        reader = SourcesReader(self._log.root, self._state)
        for window in self._state.sources:
            partitions = reader.of(window)
            if partitions is not None:
                yield window, partitions

    def _paths(self, files: FilesToFold) -> list[str] | None:
        try:
            return files.list_paths()
        except OSError as exc:
            logger.warning("%s cannot be listed, so no file of it is forgotten: %s", files.folder, exc)
            return None
