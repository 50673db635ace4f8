"""Builds the index of a table again, beside the old one, which counts until the new one is whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from deduper.as_json import AsJson
from deduper.table.settings import LoadedLoad
from deduper.table.target import target_of
from deduper.table.write.lock import locked


@dataclass(frozen=True, slots=True)
class RebuildReceipt(AsJson):
    """The new index is of the table's `version`. `is_continued`: an interrupted rebuild had begun it."""

    json_names: ClassVar[tuple[str, ...]] = (
        *("version", "files", "read_files", "keys", "size_bytes", "is_continued", "seconds"),
    )
    version: int
    files: int
    read_files: int
    keys: int
    size_bytes: int
    is_continued: bool
    seconds: float


def rebuild(loaded: LoadedLoad, *, lock_timeout_s: float = 60.0) -> RebuildReceipt:
    """Builds the index of a configuration's table again, in place of any that is there.

    1 the table is locked · 2 the keys of its files are read, step by step, into an index beside the old one · 3 the
    new state replaces the old one, whole · 4 the old one's files are deleted. Interrupted before 3, the old index
    counts, and the next call continues.

    Raises:
        ConfigError: there is no table, or a setting does not fit its columns.
        TableHeldError: a load has held the table for `lock_timeout_s`.
        TableError: a file of the table cannot be read.
    """
    began = time.monotonic()
    target = target_of(loaded)
    with locked(target.table.root, lock_timeout_s):
        found = target.table.snapshot()
        built = loaded.config.table_index.rebuild(target.table.root, target.columns, found.files)
        return RebuildReceipt(
            version=found.version,
            files=len(found.files),
            read_files=built.read_files,
            keys=built.keys,
            size_bytes=built.size_bytes,
            is_continued=built.is_continued,
            seconds=time.monotonic() - began,
        )
