"""The input of a seed as a source of windows; the job's own place in its source stays as it is.

Each commit of a seed has, under `seed` in its extra, what was judged of every input so far. So a seed that was
interrupted continues after its last window, and the same input once more has nothing new: judged again, its records
would bring back keys that have expired since. A commit of the job has no `seed`: from there on nothing can be seeded.

Files are known by their order, which is the order of judging: their number, and a chained digest of paths and times.
Of a topic it is the judged end of each partition, and where the seed ends (`topics.SeededOffsets`).
Names of a seed's source partitions begin with `seed:`, so no file or topic of the job has such a name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self

from bucket_store.log.sources_file import GONE
from bucket_store.log.state import LogState
from deduper.config.files import FilesSource
from deduper.errors import SourceAwayError, UsageError
from deduper.sources.files.listing import looked_at
from deduper.sources.files.seen_folders import SeenFolders
from deduper.sources.files.source_file import source_digest
from deduper.sources.protocol import BatchPartition, PlannedSource, Records, SourceBatch
from deduper.tasks.readers.reading_tasks import PartRead
from deduper.window.completeness import OUTPUTS, SEED, SEED_OPEN

PREFIX = "seed:"


@dataclass(frozen=True, slots=True)
class SeedInput:
    """What to read: files below a path or pattern, or a topic. `record_format`, if it is not the job's own.

    Of a topic: `start` as an operator writes it, `earliest`, a time, or offsets; `brokers`, if they are not the job's.
    `is_of_outputs`: the records are what the unique port of an earlier store has written.
    """

    kind: Literal["files", "topic"]
    place: str
    record_format: str | None = None
    start: str = "earliest"
    brokers: str | None = None
    is_of_outputs: bool = False

    @property
    def name(self) -> str:
        """Identifies the input in the store."""
        return f"{OUTPUTS if self.is_of_outputs else ''}{self.kind} {self.place}"

    @property
    def option(self) -> str:
        """The input as it is asked for, for messages."""
        return f"--{self.kind} {self.place}"


def seeds_of(state: LogState) -> dict[str, dict[str, Any]] | None:
    """What was judged of each input, by its name; None after a window of a job."""
    found = state.extra.get(SEED)
    if isinstance(found, dict):
        return dict(found)
    return None if state.next_window else {}


class SeedProgress(Protocol):
    """What was judged of an input."""

    def after(self, batch: SourceBatch) -> Self:
        """The same with a batch more. Called when the window of that batch is made, in their order."""

    def to_wire(self) -> dict[str, Any]:
        """The value for the `extra` of a commit record, from which an interrupted seed continues."""


@dataclass(frozen=True)
class SeedBatch:
    """A batch of a seed. `kept` is what its commit has of the job's own source and of other inputs."""

    inner: SourceBatch
    name: str
    before: SeedProgress
    kept: Mapping[str, Any]

    @cached_property
    def partitions(self) -> tuple[BatchPartition, ...]:
        return tuple(replace(one, name=f"{PREFIX}{one.name}") for one in self.inner.partitions)

    @property
    def is_known_by_digests(self) -> bool:
        return False  # what was judged is in `extra`

    def records(self) -> Records:
        return self.inner.records()

    def as_read(self, found: Sequence[PartRead]) -> SeedBatch:
        return self._of(self.inner.as_read(found))

    def after_failure(self, error: Exception) -> SeedBatch:
        return self._of(self.inner.after_failure(error))

    def confirmed(self, rows: Mapping[int, int]) -> SeedBatch:
        return self._of(self.inner.confirmed(rows))

    def _of(self, inner: SourceBatch) -> SeedBatch:
        """The same object for the same batch: another one would be judged again."""
        return self if inner is self.inner else replace(self, inner=_whole(inner))

    @property
    def after(self) -> SeedProgress:
        """What is judged of the input with this batch."""
        return self.before.after(self.inner)

    def extra(self) -> dict[str, Any]:
        seeds = {**self.kept.get(SEED, {}), self.name: self.after.to_wire()}
        return {**self.kept, SEED: seeds, SEED_OPEN: self.name}


def _whole(batch: SourceBatch) -> SourceBatch:
    """The batch, if all of its files are there: one that is gone would count as judged.

    Raises:
        UsageError: one is gone since it was listed.
    """
    gone = next((one.name for one in batch.partitions if one.version == GONE), None)
    if gone is not None:
        raise UsageError(f"{gone}: is gone since the seed began: put it back, and repeat the command")
    return batch


class SeedSource:
    """A planned source whose windows are a seed's. `judged`: of the input, by earlier runs."""

    def __init__(self, inner: PlannedSource, name: str, kept: Mapping[str, Any], judged: SeedProgress) -> None:
        self._inner = inner
        self._name = name
        self._kept = kept
        self._judged = judged

    @property
    def place(self) -> str:
        """The source of the records, for messages."""
        return self._inner.place

    def begin(self, *, drain: bool) -> None:
        """See `PlannedSource`."""
        self._inner.begin(drain=drain)

    def next_batch(self) -> SourceBatch | None:
        """See `PlannedSource`. Raises UsageError for a file that is gone."""
        batch = self._inner.next_batch()
        return None if batch is None else SeedBatch(_whole(batch), self._name, self._judged, self._kept)

    def newest(self, batch: SourceBatch) -> SourceBatch:
        """The batch itself: a seed has an end."""
        return batch

    def judged(self, batch: SourceBatch) -> None:
        """See `PlannedSource`."""
        assert isinstance(batch, SeedBatch)
        self._inner.judged(batch.inner)
        self._judged = batch.after

    def put_off(self, reason: SourceAwayError) -> None:
        """See `PlannedSource`."""
        self._inner.put_off(reason)


@dataclass(frozen=True, slots=True)
class SeededFiles:
    """The first `count` files of an input, in source order, and the chained digest of their paths and times."""

    count: int = 0
    digest: bytes = b""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any] | None) -> SeededFiles:
        """The value of a commit; none judged without one."""
        return cls() if wire is None else cls(wire["files"], wire["digest"])

    def to_wire(self) -> dict[str, Any]:
        """The value for a commit."""
        return {"files": self.count, "digest": self.digest}

    def after(self, batch: SourceBatch) -> SeededFiles:
        """With the files of a batch."""
        return self.then(one.digest for one in batch.partitions)

    def then(self, digests: Iterable[bytes]) -> SeededFiles:
        """With more files, by their digests. Windows may divide them in any way."""
        count, digest = self.count, self.digest
        for one in digests:
            count, digest = count + 1, hashlib.blake2b(digest + one, digest_size=16).digest()
        return SeededFiles(count, digest)


class KnownByOrder:
    """The judged files of a seed among those that are listed; see `sources.files.batch.Known`."""

    changed = 0

    def __init__(self, judged: SeededFiles, source: FilesSource) -> None:
        self._judged = judged
        self._source = source
        self.folder = str(source.folder)

    def new(self, paths: Sequence[str]) -> list[str]:
        """The files after the judged ones, without those that no window takes yet.

        Raises:
            UsageError: the judged ones are not the oldest of those that are there.
            OSError, SourceAwayError: as `looked_at`.
        """
        files = looked_at(self._source, paths, SeenFolders(self.folder), {}).finished
        oldest = files[: self._judged.count]
        if SeededFiles().then(source_digest(one.path, one.modified_ms) for one in oldest) != self._judged:
            raise UsageError(
                f"{self.folder}: {self._judged.count} files were seeded, and they are not its oldest files any more: "
                "files were removed, changed, or added with an older time. Put them back, or seed newer files from "
                "another folder"
            )
        return [one.path for one in files[self._judged.count :]]
