"""Reading the files of a window by Spark, so that one that cannot be read harms no other.

A job of Spark's fails as a whole, for whatever reason, and need not name a file. Files that failed together are read
again in halves, and alone the one that the message names. A file that fails alone, twice, is an error tuple. Files that
were read are not read again. So a bad file costs some small jobs, and the others nothing.

An error that has nothing to do with files must not make error tuples of them. Raised are faults of the machine
(`spark.failures.is_passing`), errors of a plan, which Spark refuses before it opens a file, and errors that a file of
our own meets too, which nothing is wrong with. That file is read by the layout of the one that failed: each layout is
a plan of its own. Before a file is written off, it is looked for, and opened: its folder may be away (`seen_folders`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow import parquet
from pyspark.errors import AnalysisException, PySparkException

from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.sources.files.plan import Layout, Misread, layout_of
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.files.window_files import WindowFiles
from deduper.spark.failures import innermost_cause, is_passing

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Files = TypeVar("_Files", bound=WindowFiles)
_Read = Callable[[WindowFiles, Sequence[int]], _T]
_FileOnHosts = Callable[[bytes], AbstractContextManager[Path]]

_OF_READING = (PySparkException, Py4JJavaError, FileNotFoundError, PermissionError)
"""Spark's failures, and what the driver meets when it looks into a file before."""
_ODD_NAME = "its name is no UTF-8, so Spark cannot open it: rename it"


def read_apart(
    batch: _Files, ordinals: Sequence[int], file_on_hosts: _FileOnHosts, read: _Read[_T]
) -> tuple[_Files, list[_T]]:
    """What `read` gives for these files of a batch, in some groups; and the batch, the unreadable ones as error tuples.

    `file_on_hosts` makes a file of our own, see `ReadingRun`.

    Raises:
        PySparkException, Py4JJavaError: Spark failed, and not over a file.
        SourceAwayError: it cannot be told whether a file is to blame, or its folder is away.
    """
    results: list[_T] = []
    odd = [ordinal for ordinal in ordinals if not batch.files[ordinal].is_name_text]
    batch = batch.with_errors(Admission.FILE_UNREADABLE, dict.fromkeys(odd, _ODD_NAME))
    group = tuple(ordinal for ordinal in ordinals if ordinal not in odd)
    waiting, failed_alone = [group] if group else [], set()
    sound: set[Layout | None] = set()
    while waiting:
        group = waiting.pop()
        try:
            results.append(read(batch, group))
        except _OF_READING as exc:
            if is_passing(exc, [text for ordinal in group for text in batch.files[ordinal].spellings]):
                raise
            gone = [ordinal for ordinal in group if batch.seen.is_gone(batch.files[ordinal].path)]
            if gone:
                batch = batch.with_errors(Admission.FILE_MISSING, dict.fromkeys(gone, "vanished before it was read"))
                waiting += [left] if (left := tuple(ordinal for ordinal in group if ordinal not in gone)) else []
                continue
            if _is_of_plan(exc):
                raise
            # Of several files any one will do at first: where Spark reads nothing at all, no halves are tried.
            layout = _layout(batch, group[0])
            if layout not in sound and (not sound or len(group) == 1):
                _read_sound_file(batch, group[0], file_on_hosts, read, exc)
                sound.add(layout)
            logger.info("%d files failed to be read: %s", len(group), innermost_cause(exc))
            if len(group) > 1:
                waiting += _parts(group, batch.named_by(exc))
            elif group in failed_alone:
                batch.seen.require_readable(batch.files[group[0]].path)
                batch = batch.with_errors(Admission.FILE_UNREADABLE, {group[0]: innermost_cause(exc)})
            else:
                failed_alone.add(group)
                waiting.append(group)
    return batch, results


def _parts(group: tuple[int, ...], named: int | None) -> list[tuple[int, ...]]:
    """The halves of a group, and alone the file that an error has named."""
    rest = tuple(ordinal for ordinal in group if ordinal != named)
    half = len(rest) // 2
    alone = (named,) if named is not None and len(rest) < len(group) else ()
    return [part for part in (rest[half:], rest[:half], alone) if part]


def _is_of_plan(error: Exception) -> bool:
    """Whether Spark has refused a plan, which no file has a part in; that a file is not there is found then too."""
    return isinstance(error, AnalysisException) and "PATH_NOT_FOUND" not in str(error)


def _layout(batch: WindowFiles, ordinal: int) -> Layout | None:
    """The layout of a file; None of one that Spark is kept from."""
    try:
        return layout_of(batch.source, batch.files[ordinal])
    except (Misread, OSError):
        return None


def _read_sound_file(
    batch: WindowFiles, failed: int, file_on_hosts: _FileOnHosts, read: _Read[_T], error: Exception
) -> None:
    """Raises `error` when Spark fails over a file too that nothing is wrong with, of the layout of one that failed."""
    try:
        with file_on_hosts(_sound_bytes(batch.source)) as path:
            listed = ListedFile(str(path), path.stat().st_mtime_ns // 1_000_000)
            (file,) = stat_files([listed])
            like = replace(file, laid_out_as=batch.files[failed].path)
            read(WindowFiles(batch.source, (like,), expiry=batch.expiry), (0,))
    except _OF_READING as exc:
        raise error from exc


def _sound_bytes(source: FilesSource) -> bytes:
    """A file with one record of nulls."""
    if source.is_text:
        return b"\n"
    # A column that no schema of this source has: all that are declared are null.
    other = "_" * (1 + max(len(column.name) for column in source.parsed_columns))
    made = pa.BufferOutputStream()
    parquet.write_table(pa.table({other: [0]}), made)
    return bytes(made.getvalue())
