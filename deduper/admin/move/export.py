"""`export`: the live keys of a store as Parquet files, one a shard. Keys are salted digests, never values.

| column | |
|---|---|
| `digest` | 16 bytes: the key's salted digest, hi before lo, big endian |
| `bucket` | bucket key |
| `expiry` | expiry key, as the store has it: microseconds, an integer or a double; absent where keys have none |
| `window` | window of the first copy |
| `origin` | place of the first copy: ordinal of the window's source partition << 40, position; only with `first_seen` |
| `fingerprint` | salted 64 bits of the first copy's payload, 0 without one; only if `fingerprint` is or was on |

The files are of one state, the newest at the beginning. Dead entries are left out if the config is known. A file gets
its name when it is whole, and says in its metadata of which state it is: the run after an interrupted one leaves out
the shards that are done, if the state is still the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.log.records import LogState
from bucket_store.pieces.piece import BucketEntries
from deduper.admin.move.key_sum import KeySum, live_entries, sum_of_all
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.errors import IntegrityError, UsageError
from deduper.window.policy import FINGERPRINT

METADATA = b"deduper"
_SUFFIX = ".parquet"

OnShard = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExportReport(AsJson):
    """What is exported, and the proof: the sum over the store's live keys, and over the rows of the files.

    `entries` are those of all live pieces, dead ones with them. `store` and `files` are None in a plan.
    """

    json_names = (
        *("is_executed", "directory", "record", "windows", "shards", "shards_there", "entries"),
        *("store", "files"),
    )

    directory: str
    record: int
    windows: int
    shards: int
    shards_there: int
    entries: int
    store: KeySum | None = None
    files: KeySum | None = None

    @property
    def is_executed(self) -> bool:
        """The files are whole."""
        return self.files is not None


def plan_export(store: OpenStore, directory: Path) -> ExportReport:
    """What `export` is to write. Changes nothing.

    Raises:
        UsageError: the directory holds other files.
    """
    return _Export(store, directory).report()


def export(store: OpenStore, directory: Path, on_shard: OnShard | None = None) -> ExportReport:
    """Write the live keys. `on_shard` is called with (finished, all). Safe beside a running job, within its grace.

    Raises:
        UsageError: the directory holds other files.
        CorruptionError: a piece is damaged, or a running job has deleted it meanwhile: repeat the command.
        IntegrityError: the files give back other keys than were read.
    """
    return _Export(store, directory).run(on_shard or (lambda *_: None))


class _Export:
    """One export, of the newest state."""

    def __init__(self, store: OpenStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._state: LogState = store.log.refresh()
        self._shards: int = store.settings["shards"]  # after the log was read
        self._mark = json.dumps(
            {
                "store": store.log.manifest.store_id,
                "record": self._state.next_number - 1,
                "dead_left_out": store.config is not None,
            }
        ).encode()
        there = sorted(directory.iterdir()) if directory.is_dir() else []
        other = next((path.name for path in there if not path.name.startswith("keys-")), None)
        if other is not None:
            raise UsageError(f"{directory}: holds other files, such as {other}; name an empty folder")

    def report(self) -> ExportReport:
        return ExportReport(
            directory=str(self._directory),
            record=self._state.next_number - 1,
            windows=self._state.next_window,
            shards=self._shards,
            shards_there=sum(self._is_done(shard) for shard in range(self._shards)),
            entries=sum(ref.entries for refs in self._state.pieces.values() for ref in refs),
        )

    def run(self, on_shard: OnShard) -> ExportReport:
        report = self.report()
        self._directory.mkdir(parents=True, exist_ok=True)
        read, written = KeySum(), KeySum()
        for shard in range(self._shards):
            on_shard(shard, self._shards)
            if not self._is_done(shard):
                self._write(shard)
                failpoints.hit("export.shard")
            read += sum_of_all(self._blocks(shard), 0)
            written += self._sum_of_file(shard)
        on_shard(self._shards, self._shards)
        for path in self._directory.glob(f"keys-*{_SUFFIX}"):
            if path not in {self._path(shard) for shard in range(self._shards)}:
                path.unlink()  # of a state with more shards
        if read != written:
            raise IntegrityError(f"{self._directory}: the files hold {written}, the store {read}")
        return replace(report, store=read, files=written)

    def _path(self, shard: int) -> Path:
        return self._directory / f"keys-{shard:04d}{_SUFFIX}"

    def _is_done(self, shard: int) -> bool:
        try:
            metadata = parquet.read_schema(self._path(shard)).metadata or {}
        except (OSError, pa.ArrowInvalid):
            return False
        return bool(metadata.get(METADATA) == self._mark)

    def _write(self, shard: int) -> None:
        temporary = self._path(shard).with_suffix(".unfinished")
        with parquet.ParquetWriter(temporary, self._schema()) as file:
            for block in self._blocks(shard):
                file.write_batch(self._batch(block))
        temporary.replace(self._path(shard))

    def _blocks(self, shard: int) -> Iterator[BucketEntries]:
        """The live entries of a shard."""
        store = self._store
        return live_entries(store.config, self._state, store.pieces, store.log.manifest.store_id, shard)

    def _schema(self) -> pa.Schema:
        settings = self._store.settings
        by, is_float = settings["expiry.by"], self._store.scale.is_float
        fields = [pa.field("digest", pa.binary(16)), pa.field("bucket", pa.int64())]
        if by in ("event_time", "processing_time", "ordered"):
            fields.append(pa.field("expiry", pa.float64() if is_float else pa.int64()))
        fields.append(pa.field("window", pa.int64()))
        if settings["first_seen"]:
            fields.append(pa.field("origin", pa.int64()))
        if FINGERPRINT in self._state.extra:
            fields.append(pa.field("fingerprint", pa.uint64()))
        return pa.schema(fields, metadata={METADATA: self._mark})

    def _batch(self, block: BucketEntries) -> pa.RecordBatch:
        count = len(block.digests)
        raw = pa.py_buffer(np.ascontiguousarray(block.digests).astype(">u8").tobytes())
        nothing = pa.nulls(count)
        columns = {
            "digest": pa.Array.from_buffers(pa.binary(16), count, [None, raw]),
            "bucket": pa.array(np.full(count, block.bucket, np.int64)),
            "expiry": nothing if block.expiry is None else pa.array(block.expiry),
            "window": pa.array(np.asarray(block.window, np.int64)),
            "origin": nothing if block.origin is None else pa.array(block.origin),
        }
        schema = self._schema()
        if "fingerprint" in schema.names:
            columns["fingerprint"] = pa.array(block.fingerprints_since(0, 0))
        arrays = [columns[name].cast(schema.field(name).type) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _sum_of_file(self, shard: int) -> KeySum:
        """The sum over the rows of a file, as over the entries they came from."""
        found = KeySum()
        with parquet.ParquetFile(self._path(shard)) as file:
            for batch in file.iter_batches(batch_size=1 << 18):
                found += sum_of_all(_entries(batch), 0)
        return found


def _entries(batch: pa.RecordBatch) -> Iterator[BucketEntries]:
    """The rows of a file as entries, by bucket; nulls stand where entries have no such column."""
    numbers = {
        name: column.to_numpy(zero_copy_only=False)
        for name in batch.schema.names
        if name != "digest" and not (column := batch.column(name)).null_count
    }
    digest = batch.column("digest")
    words = np.frombuffer(digest.buffers()[1], ">u8", 2 * len(digest), 16 * digest.offset)
    digests = words.astype(np.uint64).reshape(-1, 2)
    for bucket in np.unique(numbers["bucket"]).tolist():
        is_here = numbers["bucket"] == bucket
        yield BucketEntries(
            bucket=bucket,
            digests=digests[is_here],
            expiry=numbers["expiry"][is_here] if "expiry" in numbers else None,
            origin=numbers["origin"][is_here] if "origin" in numbers else None,
            window=numbers["window"][is_here].astype(np.uint32),
            fingerprint=numbers["fingerprint"][is_here] if "fingerprint" in numbers else None,
        )
