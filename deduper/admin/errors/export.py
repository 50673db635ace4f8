"""Writes the records of error rows as they came, so that they can be put into the source again.

Of a source of files, a new folder with files of the source's format, in the partition folders of the records:

    json, csv   the line of each record, byte for byte, from `_dedup.raw`
    parquet     the columns of `source.schema`, from an error port that is Parquet

Of a source of topics, key, value, headers and timestamp as the records came, without the headers that the job has
appended, produced to a topic of the source's brokers. Into the topic that a record came from it goes to its own
partition, into another one to that of its key. The producer is idempotent and not transactional: an export that is
broken off has sent some of the records, and is made again.

The store keeps no note of an export: the command demands a choice of windows, so that earlier ones are not sent again
by accident. The folder is written under a hidden name beside its own, synced, and renamed at the end, so a folder under
its own name is whole.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, make_directories, remove_tree
from deduper.admin.errors.report import WindowRange, error_files, error_port, read_records, require_reasons
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.kafka.options import connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.dedup_column import OWN_HEADERS
from deduper.errors import UsageError
from deduper.file_formats import PORT_FORMATS

if TYPE_CHECKING:
    from deduper.kafka.commands import Headers
    from deduper.sources.kafka.fetching import TopicRecord

_PART_BYTES = 256 << 20
_BUFFER_BYTES = 16 << 20
_MOST_OPEN = 64
"""Parquet files that are open at once."""
_NAME_CHARACTERS = 100
"""Of a source's file, taken into the name of a file of the export: a name has 255 bytes at most."""


@dataclass(frozen=True, slots=True)
class ErrorExport(AsJson):
    """The answer of `errors --export`.

    `to` is the folder or the topic, `rows` are the exported ones by reason, `files` those of the folder, 0 for a topic.
    `left_out`: rows whose record is not in the error port, by reason.
    """

    to: str
    rows: dict[str, int]
    files: int
    left_out: dict[str, int]


def export_errors(store: OpenStore, windows: WindowRange, reasons: Collection[str], to: str) -> ErrorExport:
    """Write the records of these windows and reasons, of all reasons if none is given. Changes nothing in the store.

    `to` is a folder that is not there yet, or is empty; of a source of topics, the name of a topic.

    Raises:
        UsageError: the errors of this job cannot be exported, or not to there; the message says why.
        IntegrityError: a file of the error port is damaged.
        BrokerUnavailableError, KafkaDeniedError, TopicMissingError, RecordRefusedError: of a topic.
    """
    if store.config is None:
        raise UsageError("name the job's config file: a store alone does not know its source")
    require_reasons(reasons)
    source, port = store.config.source, store.config.sinks.error
    if isinstance(source, KafkaSource):
        if not isinstance(port, KafkaSink):
            raise UsageError(
                f"the error port is `{port.format}`: errors of topics are exported from an error port that is a topic, "
                "where they have their key and headers"
            )
        return ErrorExport(to, _export_topic(store.config, source, port, windows, reasons, to), 0, {})
    if not isinstance(source, FilesSource):
        raise UsageError("the records are of your own query: read the rows of the error port into it")
    if error_port(store) is None:
        forms = ", ".join(PORT_FORMATS)
        raise UsageError(f"the error port is `{port.format}`: only rows of files ({forms}) can be exported")
    if not source.is_text and port.format != "parquet":
        raise UsageError(
            f"the error port is `{port.format}`: rows of Parquet files are exported from an error port that is "
            "parquet. Put copies of the files into the source under other names: what was judged leaves as duplicates"
        )
    if source.name_pattern is not None:
        raise UsageError(
            "records have columns of their file's name (`source.name_pattern`), and a file of an export has another "
            "one. Put copies of the files into the source under other names that match: what was judged leaves as "
            "duplicates"
        )
    with _NewFolder(Path(to).absolute(), source) as folder:
        return _export(store, windows, reasons, folder)


def _export(store: OpenStore, windows: WindowRange, reasons: Collection[str], folder: _NewFolder) -> ErrorExport:
    rows, left_out = Counter[str](), Counter[str]()
    is_text = folder.source.is_text
    without = {one.reason for one in Admission if not (one.has_record if is_text else one.has_all_values)}
    writing = _Lines(folder) if is_text else _Tables(folder)
    for _, path in error_files(store, windows):
        try:
            for errors, records in read_records(path, is_text=is_text):
                by_source: dict[str, list[int]] = {}
                has_record = records.column("raw").is_valid().to_pylist() if is_text else [True] * errors.num_rows
                said = zip(*(errors.column(name).to_pylist() for name in ("reason", "source")), has_record, strict=True)
                for number, (reason, source, is_there) in enumerate(said):
                    if reasons and reason not in reasons:
                        continue
                    if reason in without or not is_there:
                        left_out[reason] += 1
                        continue
                    rows[reason] += 1
                    by_source.setdefault(source, []).append(number)
                for source, numbers in by_source.items():
                    writing.add(source, records.take(pa.array(numbers)))
        except FileNotFoundError:
            continue  # a reader has taken it
    writing.finish()
    if rows:
        folder.place()
    return ErrorExport(str(folder.target), dict(rows), folder.files, dict(left_out))


class _NewFolder:
    """A folder under a hidden name, until `place`. As a context it removes what was not placed."""

    def __init__(self, target: Path, source: FilesSource) -> None:
        self.target = target
        self.source = source
        self.files = 0
        self._token = secrets.token_hex(4)
        self._hidden = target.parent / f".{target.name}.{self._token}.tmp"
        if target.is_relative_to(source.folder):
            raise UsageError(f"{target}: is inside the source: write the export elsewhere, and move its files in")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target}: is there already: name a new folder")

    def __enter__(self) -> _NewFolder:
        make_directories(LOCAL, self._hidden)
        return self

    def __exit__(self, *_: object) -> None:
        if self._hidden.exists():
            remove_tree(LOCAL, self._hidden)

    def folder_of(self, source: str) -> Path:
        """The folder for records of this file: its own below the source's, or that of its partition folders."""
        parent = Path(source).parent
        if parent.is_relative_to(self.source.folder):
            return parent.relative_to(self.source.folder)
        return Path(*[part for part in parent.parts if "=" in part])

    def begin(self, folder: Path, source: str) -> Path:
        """The path of one more file, for records of this file of the source.

        Its name begins and ends as that, without the endings by which readers would take it for a compressed one.
        """
        # It loads the readers' kernels, and other commands import this module too.
        from deduper.tasks.readers.text import packed_ending

        make_directories(LOCAL, self._hidden / folder)
        name = Path(source).name
        while (ending := packed_ending(name)) is not None:
            name = name[: -len(ending)]
        stem, suffix = Path(name).stem, Path(name).suffix
        self.files += 1
        shown = f"{stem[:_NAME_CHARACTERS]}-errors-{self._token}-{self.files:06d}"
        return self._hidden / folder / f"{shown}{suffix or '.' + self.source.file_format}"

    def place(self) -> None:
        """Make all files durable, and the folder's name the last thing."""
        for folder, _, names in os.walk(self._hidden, topdown=False):
            for name in names:
                with LOCAL.open(Path(folder, name), write=True) as file:
                    file.sync()
            LOCAL.fsync_dir(Path(folder))
        failpoints.hit("errors.written")
        self._hidden.rename(self.target)
        LOCAL.fsync_dir(self.target.parent)


class _Lines:
    """Records that are lines, in files of up to 256 MB, one a folder."""

    def __init__(self, folder: _NewFolder) -> None:
        self._folder = folder
        self._paths: dict[Path, Path] = {}
        self._buffers: dict[Path, bytearray] = {}
        self._waiting_bytes = 0

    def add(self, source: str, errors: pa.RecordBatch) -> None:
        """Error rows of one file of the source, with `raw`."""
        folder = self._folder.folder_of(source)
        if folder not in self._paths:
            self._paths[folder] = self._folder.begin(folder, source)
            self._buffers[folder] = bytearray(self._head(folder))
        buffer = self._buffers[folder]
        before = len(buffer)
        for row in errors.to_pylist():
            buffer += _line(row) + b"\n"
        self._waiting_bytes += len(buffer) - before
        if self._waiting_bytes > _BUFFER_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write what waits; a file that has 256 MB gets no more."""
        for folder, buffer in self._buffers.items():
            with self._paths[folder].open("ab") as file:
                file.write(buffer)
                is_full = file.tell() >= _PART_BYTES
            if is_full:
                del self._paths[folder]
            buffer.clear()
        self._buffers = {folder: buffer for folder, buffer in self._buffers.items() if folder in self._paths}
        self._waiting_bytes = 0

    def _head(self, folder: Path) -> bytes:
        """The header that the job expects in this folder: without the columns that its name gives."""
        source = self._folder.source
        if not source.header:
            return b""
        # It loads the readers, and other commands import this module too.
        from deduper.sources.declared_columns import path_rule

        in_path = path_rule(source).texts(str(source.folder / folder / "file"), source.parsed_columns)
        names = (one.name.replace('"', '""') for one in source.parsed_columns if one.name not in in_path)
        return source.delimiter.join(f'"{name}"' for name in names).encode() + b"\n"


def _line(row: dict[str, Any]) -> bytes:
    """The line of a record as it was read, without its end."""
    is_text = row["reason"] != Admission.INVALID_UTF8.reason
    return row["raw"].encode() if is_text else base64.b64decode(row["raw"])


class _Tables:
    """Rows in Parquet files of up to 256 MB, one a folder and schema."""

    def __init__(self, folder: _NewFolder) -> None:
        self._folder = folder
        self._open: dict[tuple[Path, bytes], tuple[parquet.ParquetWriter, pa.NativeFile]] = {}

    def add(self, source: str, columns: pa.RecordBatch) -> None:
        """Rows of one file of the source."""
        folder = self._folder.folder_of(source)
        key = folder, columns.schema.serialize().to_pybytes()
        if key not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self.finish()
            sink = pa.OSFile(os.fsencode(self._folder.begin(folder, source)), "w")
            self._open[key] = parquet.ParquetWriter(sink, columns.schema, store_schema=False), sink
        writer, sink = self._open[key]
        writer.write_batch(columns)
        if sink.tell() >= _PART_BYTES:
            self._close(key)

    def finish(self) -> None:
        """Close all files."""
        for key in list(self._open):
            self._close(key)

    def _close(self, key: tuple[Path, bytes]) -> None:
        writer, sink = self._open.pop(key)
        writer.close()
        sink.close()


_NEEDED = ("reason", "window", "origin")
_ORIGIN = re.compile(r"(.+)-(\d+)@\d+")


def _export_topic(
    config: Config, source: KafkaSource, port: KafkaSink, windows: WindowRange, reasons: Collection[str], topic: str
) -> dict[str, int]:
    """Send the error records of these windows and reasons to a topic; how many by reason. Raises as `export_errors`."""
    # Kafka's client is an extra.
    from deduper.kafka.commands import Sending, committed_ranges
    from deduper.sources.kafka.fetching import records_of, whole_topic

    missing = [name for name in _NEEDED if name not in port.dedup_headers]
    if missing:
        raise UsageError(
            f"the error port adds no header `dedup-{missing[0]}`: take `{missing[0]}` into sinks.error.dedup_headers; "
            "records that are there already cannot be exported"
        )
    if any(sink.topic == topic for sink in config.topic_ports.values()):
        raise UsageError(f"{topic}: is a port of the job: name a topic of the source, or another one")
    is_same = port.bootstrap_servers == source.bootstrap_servers
    options = port.options if is_same else connection_options(source.options)
    writer = librdkafka_options(source.bootstrap_servers, options)
    reader = librdkafka_options(port.bootstrap_servers, connection_options(port.options))
    committed_ranges(writer, topic)  # a name with a typing error makes no topic
    sent, sending = Counter[str](), Sending(writer, topic)
    for part, batch in whole_topic(reader, port.topic):
        for record in records_of(part, batch):
            reason, window = record.header("dedup-reason"), int(record.header("dedup-window") or -1)
            if reason is not None and (not reasons or reason in reasons) and window in windows:
                sending.send(
                    record.key, record.value, _own_headers(record, port), _partition(record, topic), record.timestamp_ms
                )
                sent[reason] += 1
    sending.finish()
    return dict(sent)


def _partition(record: TopicRecord, topic: str) -> int | None:
    """The partition of the topic that the record came from; None if it came from another topic."""
    origin = _ORIGIN.fullmatch(record.header("dedup-origin") or "")
    return int(origin[2]) if origin and origin[1] == topic else None


def _own_headers(record: TopicRecord, sink: KafkaSink) -> Headers:
    """The headers without those that this job has appended: the last ones, in the order of `OWN_HEADERS`."""
    ours = [header for name, of_name in OWN_HEADERS.items() if name in sink.dedup_headers for header in of_name]
    headers: Headers = list(record.headers)
    while headers and headers[-1][0] in ours:
        ours = ours[: ours.index(headers.pop()[0])]
    return headers
