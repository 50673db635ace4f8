"""The judged files of a source: queried before a window, updated after its commit.

Most of them are in a table that a fold of sources wrote (`bucket_store.log.judged_files`), those of the windows since
then in a dictionary. A file is identified by its path. A file that changed after it was judged is not read again, since
its new records cannot be distinguished from the old ones; it is counted, and named in a warning.

A source that was moved as a whole (the job's folder, its mount) is recognized: a file whose path is new, but which lay
at the same place below the old folder with this modification time and size, was judged there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.judged_files import Digest, JudgedFiles, read_judged
from bucket_store.log.sources_file import SourcePartition, read_sources
from deduper.config.files import FilesSource
from deduper.sources.files.source_file import shown, stat

logger = logging.getLogger(__name__)

FORGET_AFTER_US = 7 * 86_400_000_000
"""Time until a removed file is forgotten: a file of that path that comes back earlier is not read again."""
FOLDER = "folder"
"""The name of the source's folder in the `extra` of a commit."""

_CHECKED_AT_FIRST, _CHECKED_A_LISTING = 50_000, 1000
"""A listing checks so many judged files for changes, half of them the newest; each takes 10 µs."""
_NAMED_IN_A_WARNING = 5

Words = NDArray[np.uint64]


Judged = dict[Digest, tuple[int, int]]
"""Modification time (ms) and size (bytes) of files when they were judged, by the digest of their path."""


@dataclass(frozen=True, slots=True)
class JudgedSoFar:
    """The table of earlier folds, and files that were moved since. A value, for the thread that folds."""

    table: JudgedFiles
    moved: Judged
    seed: int
    forget_after_us: int

    def folded(
        self, folder: str, windows: Iterable[Iterable[SourcePartition]], paths: Collection[str] | None, now_us: int
    ) -> JudgedFiles:
        """One table of these and of the windows since, without files that are gone for long.

        `paths` are all files that the source has; None when it cannot be listed.
        """
        later = dict(self.moved)
        for partitions in windows:
            later |= judged_of(partitions, self.seed)
        joined = self.table.joined(later, folder)
        if paths is None:
            return joined
        return joined.seen(*_digests(paths, self.seed), now_us=now_us, forget_after_us=self.forget_after_us)


class KnownFiles:
    """The files of one source that its store has judged. Not for several threads; `so_far` is a value."""

    def __init__(self, source: FilesSource, log: CommitLog) -> None:
        """Reads the files that the log's state names.

        Raises:
            CorruptionError: a file of sources is missing or damaged.
        """
        self._folder = str(source.folder)
        self._forget_after_us = FORGET_AFTER_US
        # Names come from outside: without the salt, nobody can prepare two with one digest.
        self._seed = int.from_bytes(log.manifest.salt[:8], "little")
        state = log.state
        self._table = JudgedFiles.empty(self._folder) if state.judged is None else read_judged(log.root, state.judged)
        through = -1 if state.judged is None else state.judged.through_window
        self._later: Judged = {}
        self._moved: Judged = {}
        for window, ref in state.sources.items():
            if window > through:
                self.add(read_sources(log.root, window, ref))
        recorded = state.extra.get(FOLDER, self._folder if state.judged is None else self._table.folder)
        self._moved_from = None if recorded == self._folder else str(recorded)
        # A job that is started for every window checks others at each start, and in the end all.
        self._checked = state.epoch * (_CHECKED_AT_FIRST // 2)
        self._has_listed = False
        self._changed: dict[str, None] = {}

    @property
    def folder(self) -> str:
        """The folder of the source for the next commit record: the old one until a fold has recorded the move."""
        return self._folder if self._moved_from is None else self._moved_from

    @property
    def has_moved(self) -> bool:
        """Whether the source has moved since the last fold: files may be known by their old paths alone."""
        return self._moved_from is not None

    @property
    def changed(self) -> int:
        """How many files were found to have changed after they were judged, and are still there."""
        return len(self._changed)

    def add(self, partitions: Iterable[SourcePartition]) -> None:
        """The files of a committed window."""
        self._later |= judged_of(partitions, self._seed)

    def new(self, paths: Sequence[str]) -> list[str]:
        """Those of the listed files that were not judged. Checks some of the others for changes.

        The first listing checks many, a later one some: the newest, and others in turn.
        """
        hi, lo = _digests(paths, self._seed)
        rows = self._table.find(hi, lo)
        is_new = rows < 0
        if self._later or self._moved:
            for at in np.flatnonzero(is_new).tolist():
                digest = int(hi[at]), int(lo[at])
                is_new[at] = digest not in self._later and digest not in self._moved
        if self._moved_from is not None:
            for at in np.flatnonzero(is_new).tolist():
                is_new[at] = not self._is_known_elsewhere(paths[at], (int(hi[at]), int(lo[at])))
        self._drop_gone()
        self._look_for_changes(paths, hi, lo, rows, np.flatnonzero(~is_new))
        return [paths[at] for at in np.flatnonzero(is_new).tolist()]

    def so_far(self) -> JudgedSoFar:
        """The state that a fold begins with."""
        return JudgedSoFar(self._table, dict(self._moved), self._seed, self._forget_after_us)

    def folded(self, table: JudgedFiles) -> None:
        """A fold is recorded: this table holds all files that were judged until it began."""
        self._table = table
        rows = table.find(*_words([*self._later]))
        in_table = [digest for digest, row in zip([*self._later], rows.tolist(), strict=True) if row >= 0]
        for digest in in_table:
            del self._later[digest]
        self._moved = {}
        self._moved_from = None

    def _judged_as(self, digest: Digest, row: int) -> tuple[int, int] | None:
        later = self._later.get(digest) or self._moved.get(digest)
        if later is not None or row < 0:
            return later
        return int(self._table.modified_ms[row]), int(self._table.size_bytes[row])

    def _is_known_elsewhere(self, path: str, digest: Digest) -> bool:
        """Whether the file was judged below the old folder; then it is known from here on."""
        old = _digest(f"{self._moved_from}{path.removeprefix(self._folder)}", self._seed)
        row = self._table.find(*_words([old]))
        judged = self._judged_as(old, int(row[0]))
        if judged is None:
            return False
        now = stat(path)  # an error ends the listing: else the move is recorded, and the file is new
        if now is None or (now.modified_ms, now.size_bytes) != judged:
            return False
        self._moved[digest] = judged
        return True

    def _newest(self, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """The newest of some judged files, by their times when they were judged; `rows` are their rows in the table.

        Files since the last fold have no row, and are newer than the others.
        """
        judged_ms = np.full(len(rows), np.iinfo(np.int64).max)
        is_folded = rows >= 0
        judged_ms[is_folded] = self._table.modified_ms[rows[is_folded]]
        return np.argpartition(judged_ms, len(rows) - count)[len(rows) - count :]

    def _drop_gone(self) -> None:
        """Forget changed files that were moved away, which is the remedy; of very many, some at each listing."""
        for path in [*itertools.islice(self._changed, _CHECKED_A_LISTING)]:
            del self._changed[path]
            with contextlib.suppress(OSError):
                if stat(path) is None:
                    continue
            self._changed[path] = None

    def _look_for_changes(
        self, paths: Sequence[str], hi: Words, lo: Words, rows: NDArray[np.int64], known: NDArray[np.int64]
    ) -> None:
        if not known.size:
            return
        count = min(known.size, _CHECKED_A_LISTING if self._has_listed else _CHECKED_AT_FIRST)
        self._has_listed = True
        in_turn = count if count == known.size else (count + 1) // 2
        turn = known[(self._checked + np.arange(in_turn)) % known.size]
        self._checked = (self._checked + in_turn) % known.size
        if in_turn < count:
            turn = np.union1d(turn, known[self._newest(rows[known], count - in_turn)])
        differing = []
        for at in turn.tolist():
            judged = self._judged_as((int(hi[at]), int(lo[at])), int(rows[at]))
            try:
                now = stat(paths[at])
            except OSError:
                continue  # it was judged; a later check may find whether it has changed
            if now is not None and judged is not None and (now.modified_ms, now.size_bytes) != judged:
                differing.append((paths[at], judged, now))
        fresh = [found for found in differing if found[0] not in self._changed]
        self._changed.update((path, None) for path, _, _ in fresh)
        for path, judged, now in fresh[:_NAMED_IN_A_WARNING]:
            logger.warning(
                "%s was changed after it was judged (%d bytes then, %d now): it is not read again, so lines that were "
                "added are in no output. Write them to a new file, and rename files into place when they are whole",
                shown(path),
                judged[1],
                now.size_bytes,
            )
        if len(fresh) > _NAMED_IN_A_WARNING:
            logger.warning("%d more files were changed after they were judged", len(fresh) - _NAMED_IN_A_WARNING)


def judged_of(partitions: Iterable[SourcePartition], seed: int) -> Judged:
    """The files of a window by their digests, without those that were gone; `seed` is the store's."""
    return {_digest(file.name, seed): (file.version, file.end) for file in partitions if isinstance(file.version, int)}


def _words(digests: Sequence[Digest]) -> tuple[Words, Words]:
    words = np.array(digests, np.uint64).reshape(-1, 2)
    return words[:, 0], words[:, 1]


def _digest(path: str, seed: int) -> Digest:
    whole = xxhash.xxh3_128_intdigest(_bytes(path), seed)
    return whole >> 64, whole & ((1 << 64) - 1)


def _digests(paths: Collection[str], seed: int) -> tuple[Words, Words]:
    packed = b"".join([xxhash.xxh3_128_digest(_bytes(path), seed) for path in paths])
    words = np.frombuffer(packed, ">u8").reshape(-1, 2).astype(np.uint64)
    return words[:, 0], words[:, 1]


def _bytes(path: str) -> bytes:
    # As in the store, which has only texts: `source_file.shown`.
    return path.encode("utf-8", "backslashreplace")
