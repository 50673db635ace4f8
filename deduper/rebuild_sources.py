"""A lost sources file made again from what the source still has: the same bytes, or none.

It lists the files that a window read: path, modification time, size, rows, in the order of the first two. Which files
those were say Spark's checkpoint, if it still has the batch, and the published rows (`_dedup.source`); the rest is read
off the files themselves, when they are still there and unchanged. The log names a sources file by a checksum over all
of it, so what is given back is what was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyarrow import parquet

from bucket_store.errors import StoreError
from bucket_store.log_values import CommitRecord, SourcesRef
from bucket_store.sources_file import SourcePartition, encode_sources, sources_ref
from deduper import checkpoint
from deduper.config import Config, FilesSource
from deduper.errors import IntegrityError
from deduper.file_source import is_text, source_digest
from deduper.open_store import OpenStore
from deduper.output_names import FinalName, file_sinks
from deduper.output_rows import read_rows

_READ_BYTES = 1 << 20


def rebuild_sources(store: OpenStore, config: Config, window: int, ref: SourcesRef) -> tuple[bytes | None, str]:
    """The bytes of a window's sources file, proven by the checksum in the log, or None; and how, or why not."""
    if not isinstance(config.source, FilesSource):
        return None, "it tells ranges of offsets, which nothing else has"
    problem = "neither Spark's checkpoint nor the outputs say which files the window read"
    named = {"Spark's checkpoint": _listed(store, config, window), "the outputs": _shown(store, config, window)}
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


def _listed(store: OpenStore, config: Config, window: int) -> dict[str, int]:
    """Path and modification time (ms) of the files of the window's batch, as Spark's checkpoint has them."""
    newest = checkpoint.newest(config.checkpoint_path)
    batch = next((commit.batch_id for commit in _commits(store) if commit.window == window), None)
    if newest is None or batch is None:
        return {}
    try:
        return {file.path: file.modified_ms for file in checkpoint.files_of_batch(newest, batch)}
    except (IntegrityError, OSError):
        return {}


def _commits(store: OpenStore) -> Iterator[CommitRecord]:
    try:
        for record in store.log.records():
            if isinstance(record.body, CommitRecord):
                yield record.body
    except StoreError:
        return


def _shown(store: OpenStore, config: Config, window: int) -> dict[str, int]:
    """Path and modification time (ms, as of now) of the files that rows of the window came from."""
    own = store.log.manifest.store_id[:8]
    names: set[str] = set()
    for sink in file_sinks(config).values():
        for path in sorted(sink.path.glob(f"{own}-{window:012d}-*")):
            if FinalName.of(path.name) is None:
                continue
            try:
                names.update(read_rows(path, ()).sources)
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
    if not is_text(source):
        return int(parquet.read_metadata(path).num_rows)
    count, last = 0, b"\n"
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_READ_BYTES), b""):
            count += block.count(b"\n")
            last = block[-1:]
    count += last != b"\n"
    return max(0, count - 1) if source.header else count
