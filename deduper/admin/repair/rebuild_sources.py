"""Rebuilds a lost sources file from the source: the same bytes, or none.

It lists the files that a window read: path, modification time, size, rows, in the order of the first two. The published
rows (`_dedup.source`) name those files, or they are the oldest files of the source that no other window names. The rest
is read off the files themselves, when they are still there and unchanged. The log names a sources file by a checksum
over all of it, which proves the result.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from pyarrow import parquet

from bucket_store.errors import StoreError
from bucket_store.log.records import SourcesRef
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import SourcePartition, encode_sources, sources_ref
from deduper.admin.open_store import OpenStore
from deduper.admin.readback import read_rows
from deduper.admin.storage import inside
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.errors import IntegrityError
from deduper.sinks.names import FinalName
from deduper.sources.files.listing import list_files
from deduper.sources.files.source_file import shown, source_digest, source_order, stat

_READ_BYTES = 1 << 20


def rebuild_sources(store: OpenStore, config: Config, window: int, ref: SourcesRef) -> tuple[bytes | None, str]:
    """The bytes of a window's sources file, proven by the checksum in the log, or None; and how, or why not."""
    if not isinstance(config.source, FilesSource):
        return None, "it holds ranges of offsets, which are nowhere else"
    problem = "neither the outputs nor the source say which files the window read"
    named = {"the outputs": _shown(store, window), "the source": _unnamed(store, config.source, ref.count)}
    for origin, files in named.items():
        if not files:
            continue
        if len(files) != ref.count:
            problem = f"{origin} name {len(files):,} of its {ref.count:,} source files"
            continue
        try:
            partitions = [
                _partition(config.source, path, modified_ms)
                for path, modified_ms in sorted(files.items(), key=lambda item: (item[1], item[0]))
            ]
        except OSError as error:
            problem = f"a source file is gone: {error}"
            continue
        data = encode_sources(window, partitions)
        if sources_ref(ref.name, partitions, data) == ref:
            return data, f"{ref.count:,} source files, as {origin} name them, checksum {ref.checksum:016x}"
        problem = "the source files are not what the window read: they were changed, or could not be read then"
    return None, problem


def _unnamed(store: OpenStore, source: FilesSource, count: int) -> dict[str, int]:
    """Path and modification time (ms) of so many files of the source, the oldest that no other window names.

    A window takes the oldest files that there are, so they are the ones, if nothing came or went meanwhile.
    """
    reader, state = SourcesReader(store.root, store.log.state), store.log.state
    named: set[str] = set()
    windows = [
        *state.sources,
        *(window for ref in state.archives for window in range(ref.first_window, ref.last_window + 1)),
    ]
    for window in windows:
        with contextlib.suppress(StoreError, OSError):
            named.update(partition.name for partition in reader.of(window) or ())
    try:
        found = [file for path in list_files(source) if shown(path) not in named and (file := stat(path)) is not None]
    except OSError:
        return {}
    return {file.path: file.modified_ms for file in sorted(found, key=source_order)[:count]}


def _shown(store: OpenStore, window: int) -> dict[str, int]:
    """Path and modification time (ms, as of now) of the files that rows of the window came from."""
    own = store.log.manifest.store_id[:8]
    names: set[str] = set()
    for folder in store.ports.values():
        for entry in inside(folder):
            said = FinalName.of(entry.name)
            if said is None or (said.store, said.window) != (own, window):
                continue
            try:
                names.update(read_rows(folder / entry.name, ()).sources)
            except (IntegrityError, OSError):
                continue
    found = {}
    for name in names:
        try:
            found[name] = Path(name).stat().st_mtime_ns // 1_000_000
        except OSError:
            found[name] = 0
    return found


def _partition(source: FilesSource, name: str, modified_ms: int) -> SourcePartition:
    path = Path(name)
    return SourcePartition(
        name=name,
        version=modified_ms,
        start=0,
        end=path.stat().st_size,
        rows=_rows(source, path),
        digest=source_digest(name, modified_ms),
    )


def _rows(source: FilesSource, path: Path) -> int:
    """The records of a file: a Parquet footer's count, or its lines, the last one with or without an end."""
    if not source.is_text:
        return int(parquet.read_metadata(path).num_rows)
    count, last = 0, b"\n"
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_READ_BYTES), b""):
            count += block.count(b"\n")
            last = block[-1:]
    count += last != b"\n"
    return max(0, count - 1) if source.header else count
