"""An index against its table: each key of a file is entered with that file, nothing else is, no key is there twice.

Buckets are compared one by one, and those of many rows in parts by digest, each of which reads the bucket's files
again: so the keys of one part are in memory, whatever the size of the table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from deduper.as_json import AsJson
from deduper.errors import ExitCode
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile, Snapshot
from deduper.table.index.keys import FileKeys, counted_files, in_order, joined
from deduper.table.index.protocol import TableIndex
from deduper.table.index.reading import read_keys, rows_of
from deduper.table.operations.target import Target, of_one_version, target_of
from deduper.table.settings import LoadedLoad

_PART_ROWS = 16 << 20
"""About so many keys of the table are in memory at once."""
_MOST_FILES = 20


@dataclass(frozen=True, slots=True)
class FileFinding(AsJson):
    """A file of the table with findings: keys that are `missing` in the index, `extra` entries, `repeated` rows."""

    path: str
    missing: int
    extra: int
    repeated: int


@dataclass(frozen=True, slots=True)
class TableVerification(AsJson):
    """A table and its index. An entry with a wrong file is `missing` of one file and `extra` of another.

    `keys` of the table, each once in its scope; `repeated` rows whose key another row has before. `not_compared`: why
    there was no index to compare. `unindexed` files are those that the index lacks. `found_in`: the files with the
    most findings.
    """

    json_names: ClassVar[tuple[str, ...]] = (
        *("version", "files", "rows", "keys", "not_compared", "unindexed", "missing", "extra", "repeated"),
        *("found_in", "is_sound"),
    )
    version: int
    files: int
    rows: int
    keys: int
    not_compared: str | None
    unindexed: int
    missing: int
    extra: int
    repeated: int
    found_in: tuple[FileFinding, ...]

    @property
    def is_sound(self) -> bool:
        """True without findings."""
        return self.exit_code is ExitCode.OK

    @property
    def exit_code(self) -> ExitCode:
        """INTEGRITY for an index that is wrong, UNHEALTHY for repeated keys alone."""
        if self.missing or self.extra:
            return ExitCode.INTEGRITY
        return ExitCode.UNHEALTHY if self.repeated else ExitCode.OK


def verify(loaded: LoadedLoad) -> TableVerification:
    """Reads the key columns of a whole table, and its index; safe beside a running load.

    Raises:
        ConfigError: there is no table, or a setting does not fit its columns.
        IndexDamagedError: a piece of the index is damaged or gone.
        FileVanishedError: a file of the table is not there.
        TableChangedError: other writers removed files each time while they were read.
    """
    target = target_of(loaded)
    return of_one_version(target.table, lambda found: _verified(target, found, loaded.config.table_index))


def _verified(target: Target, found: Snapshot, kind: TableIndex) -> TableVerification:
    root = target.table.root
    index = kind.view(root, target.columns)
    numbered = index.numbered(found.files)
    rows = rows_of(root, [*numbered.values()])
    indexed = np.zeros(index.next_number, np.bool_)
    indexed[[number for number in numbered if number < index.next_number]] = True
    counts = _Counts()
    for bucket, group in _by_bucket(numbered, rows, target.columns, index.buckets()).items():
        files = [(number, file) for number, file, _ in group]
        for least, greatest in _parts(sum(count for _, _, count in group)):
            read = joined([*read_keys(root, files, target.columns, index.salt, (least, greatest))])
            counts.add_repeated(read)
            known = read.chosen(read.file < index.next_number)
            found_here = index.differences(bucket, (least, greatest), known, indexed)
            counts.missing += found_here.missing
            counts.extra += found_here.extra
    return TableVerification(
        version=found.version,
        files=len(found.files),
        rows=sum(rows),
        keys=counts.keys,
        not_compared=index.absent,
        unindexed=0 if index.absent else sum(number >= index.next_number for number in numbered),
        missing=counts.missing.total(),
        extra=counts.extra.total(),
        repeated=counts.repeated.total(),
        found_in=counts.files({number: file.path for number, file in numbered.items()}),
    )


@dataclass(slots=True)
class _Counts:
    """Findings by file number."""

    keys: int = 0
    missing: Counter[int] = field(default_factory=Counter)
    extra: Counter[int] = field(default_factory=Counter)
    repeated: Counter[int] = field(default_factory=Counter)

    def add_repeated(self, read: FileKeys) -> None:
        """Counts the keys of a part of a bucket; of rows with one key all but one of the first file are repeated."""
        _, found = in_order(read.bucket, read.hi, read.lo)
        again = found.again()
        self.keys += found.count - int(again.sum())
        if again.any():
            self.repeated += counted_files(read.file[np.lexsort((read.file, read.lo, read.hi))][again])

    def files(self, paths: Mapping[int, str]) -> tuple[FileFinding, ...]:
        """The files with the most findings."""
        most = (self.missing + self.extra + self.repeated).most_common(_MOST_FILES)
        return tuple(
            FileFinding(paths[number], self.missing[number], self.extra[number], self.repeated[number])
            for number, _ in most
        )


def _by_bucket(
    numbered: Mapping[int, DataFile], rows: Sequence[int], columns: KeyColumns, buckets: Iterable[int]
) -> dict[int, list[tuple[int, DataFile, int]]]:
    """(number, file, rows) by the bucket of the files' keys; buckets that only the index has are there, and empty."""
    by = columns.bucket_column
    found: defaultdict[int, list[tuple[int, DataFile, int]]] = defaultdict(list)
    for (number, file), count in zip(numbered.items(), rows, strict=True):
        bucket = 0 if by is None else file.partition[columns.partition_by.index(by)]
        if isinstance(bucket, int):  # rows of the partition null have no key
            found[bucket].append((number, file, count))
    return {key: found[key] for key in sorted({*found, *buckets})}


def _parts(rows: int) -> list[tuple[int, int]]:
    """The least and the greatest `hi` of each part of a bucket of so many rows."""
    parts = max(1, -(-rows // _PART_ROWS))
    edges = [(part << 64) // parts for part in range(parts + 1)]
    return [(begin, end - 1) for begin, end in pairwise(edges)]
