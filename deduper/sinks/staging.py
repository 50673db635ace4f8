"""The rows of a window's ports as staged files, which no reader sees, and their later publication under final names.

The rows of a window are written once, into `<directory>/_staging/<window>-<epoch>-<attempt>/_port=<port>/`, as Parquet.
Ports of another format, or on another file system, are made from the staged rows, in their own `_staging`; nothing is
judged twice. Only files that a writer's receipt names are the window's; others in these folders are ignored.

Readers of Spark, Arrow and most others skip names that begin with an underscore, so a port's directory can be read
while windows are staged below it.

Tasks of Spark write the staged files, with their own I/O. What makes them durable, public or gone goes through a
`FileSystem`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, FileSystem, listed, make_directories, remove_tree
from bucket_store.log.records import OutputFile
from deduper.config.files import FileSink
from deduper.config.kafka import KafkaSink
from deduper.config.model import Config
from deduper.core.verdict import Verdict
from deduper.errors import IntegrityError, telling_where
from deduper.sinks.names import (
    STAGING,
    Attempt,
    TopicPlace,
    final_name,
    is_data_file,
    staging_homes,
    topic_of,
)
from deduper.tasks.dedup_column import DEDUP, dedup_ddl
from deduper.tasks.kafka_rows import SLOT
from deduper.tasks.write import WriteReceipt, port_folder

_READ_BYTES = 1 << 20
_SYNC_THREADS = 8


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged file: its port, path and rows, as its format counts them; `slots` are the writers of rows to send."""

    port: str
    path: Path
    rows: int
    slots: tuple[int, ...] = ()


def staging_home(config: Config) -> Path:
    """The directory whose `_staging` takes the one write: the first file port's, or the store's when there is none."""
    sinks = config.file_ports
    return next((sink.path for sink in sinks.values()), config.store.path)


def make_port_directories(config: Config, *, fs: FileSystem = LOCAL) -> None:
    """Make the directories of the file ports, durably: a port without rows can be read too."""
    for sink in config.file_ports.values():
        make_directories(fs, sink.path)


def staging_target(config: Config, attempt: Attempt) -> Path:
    """The folder of the one write of an attempt."""
    return staging_home(config) / STAGING / attempt.folder


def make_staging(config: Config, attempt: Attempt) -> None:
    """Make the folders of the one write, one a port; tasks that write make none."""
    target = staging_target(config, attempt)
    with telling_where(target):
        for port in (*config.file_ports, *config.topic_ports):
            port_folder(target, port).mkdir(parents=True, exist_ok=True)


def staged_files(
    session: SparkSession, config: Config, attempt: Attempt, written: Iterable[WriteReceipt]
) -> dict[str, list[StagedFile]]:
    """The files of each port in its own format, from the Parquet files that an attempt's writers have written."""
    sinks, topics = config.file_ports, config.topic_ports
    target = staging_target(config, attempt)
    by_port: dict[str, list[Path]] = {}
    for receipt in written:
        for port, name in receipt.files.items():
            by_port.setdefault(port, []).append(port_folder(target, port) / name)
    staged: dict[str, list[StagedFile]] = {}
    for port, files in by_port.items():
        if port in topics:
            staged[port] = [StagedFile(port, file, _rows(file, "parquet"), _slots(file)) for file in files]
            continue
        sink = sinks[port]
        if sink.format == "parquet":
            if not _same_file_system(target, sink.path):
                files = _copied(files, port_folder(sink.path / STAGING / attempt.folder, port))
            staged[port] = [StagedFile(port, file, _rows(file, sink.format)) for file in files]
        else:
            staged[port] = _restage(session, config, port, sink, files, attempt)
            failpoints.hit("stage.restaged")
    return staged


# Spark's defaults drop the microseconds, and the seconds of an offset such as +00:53:28 (Berlin, until 1893).
_LOCAL_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TIMES = {"timestampFormat": f"{_LOCAL_TIME}XXXXX", "timestampNTZFormat": _LOCAL_TIME}


def _copied(files: Sequence[Path], target: Path) -> list[Path]:
    """Files, byte for byte in another directory."""
    with telling_where(target):
        target.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(file, target / file.name)) for file in files]


def _restage(
    session: SparkSession, config: Config, port: str, sink: FileSink, source: Sequence[Path], attempt: Attempt
) -> list[StagedFile]:
    """A port's rows in its own format, made from the staged ones."""
    scale, first_seen = config.expiry_key_scale, config.store.first_seen
    dedup = dedup_ddl(scale, first_seen=first_seen, detail=port == Verdict.ERROR.port)
    rows = session.read.schema(f"{config.source.columns}, {DEDUP} {dedup}").parquet(*map(str, source))
    if sink.format == "csv":
        rows = rows.withColumn(DEDUP, F.to_json(DEDUP, _TIMES))
    # Another name than that of the staged rows, which may be in the same folder.
    target = sink.path / STAGING / attempt.folder / f"{port}.{sink.format}"
    staged = sum(_rows(file, "parquet") for file in source)
    # Quotes are doubled inside quoted fields (RFC 4180): Spark's own default, a backslash, is read wrongly elsewhere.
    writer = rows.write.format(sink.format).options(**_TIMES, header="true", escape='"')
    # Or blanks at the ends of a text would be lost in CSV.
    writer.options(ignoreLeadingWhiteSpace="false", ignoreTrailingWhiteSpace="false").save(str(target))
    files = _data_files(target)
    if sink.format == "csv":
        # Quoted fields hold line ends, so only a parser can count CSV rows; the frame was read from counted Parquet.
        written = session.read.options(header="true", multiLine="true", escape='"').csv(str(target)).count()
        if written != staged:
            raise IntegrityError(f"port {port}: {staged} rows staged, {written} rows written as CSV")
        return [StagedFile(port, file, written if number == 0 else 0) for number, file in enumerate(files)]
    return [StagedFile(port, file, _rows(file, sink.format)) for file in files]


def make_durable(
    config: Config,
    store_id: str,
    attempt: Attempt,
    staged: Mapping[str, Sequence[StagedFile]],
    *,
    fs: FileSystem = LOCAL,
) -> tuple[OutputFile, ...]:
    """Sync every staged file and its directories, each once, and describe them for the commit record."""
    sinks, topics = config.file_ports, config.topic_ports
    named = [
        (
            file,
            str(_topic_place(config.name, topics[port], file.slots))
            if port in topics
            else str(sinks[port].path / final_name(store_id, attempt, number, sinks[port].format)),
        )
        for port, files in staged.items()
        for number, file in enumerate(sorted(files, key=lambda file: file.path.name))
    ]
    directories = sorted({parent for file, _ in named for parent in _up_to_staging(file.path)})
    with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="sync") as pool:
        outputs = tuple(pool.map(lambda pair: _synced_output(fs, *pair), named))
        for synced in pool.map(fs.fsync_dir, directories):
            assert synced is None
    return outputs


def _topic_place(job: str, sink: KafkaSink, slots: tuple[int, ...]) -> TopicPlace:
    return TopicPlace(sink.topic, slots, job if sink.delivery == "exactly_once" else None)


def publish(outputs: Sequence[OutputFile], *, fs: FileSystem = LOCAL) -> list[OutputFile]:
    """Rename every staged file to its final name and sync the directories. Safe to repeat, and to race.

    A staged file that is gone was published before: it and its directory were synced before the record that names it.
    The process that renamed it may have died before the sync, so the directories are synced in any case. Gives the
    outputs whose published file is gone too: only a consumer can have taken it.

    Raises:
        IntegrityError: a final name is taken while its staged file is still there.
    """
    touched: set[Path] = set()
    taken: list[OutputFile] = []
    for output in outputs:
        staged, final = Path(output.staged), Path(output.final)
        # Never over a file: a rename would replace it silently. In this order, because an owner that is being taken
        # over may rename it at the same moment.
        if fs.exists(final) and fs.exists(staged):
            raise IntegrityError(f"{final}: the name of a committed output is taken by another file; move that away")
        try:
            fs.replace(staged, final)
            failpoints.hit("publish.renamed")
        except FileNotFoundError:
            if fs.exists(staged):
                raise  # The port's directory is gone.
            if not fs.exists(final):
                taken.append(output)
        touched |= {staged.parent, final.parent}
    for directory in sorted(touched):
        # What was published earlier has been discarded, its folder with it.
        with contextlib.suppress(FileNotFoundError):
            fs.fsync_dir(directory)
    return taken


def where_they_lie(config: Config, outputs: Sequence[OutputFile], *, fs: FileSystem = LOCAL) -> list[OutputFile]:
    """Committed outputs with the paths of today: a store that was moved or copied still publishes its own.

    The record names the folders of the place in which the window was judged. Those of a copy's original may still be
    there, and hold what the original has to publish.
    """
    sinks, homes = config.file_ports, staging_homes(config)
    found = []
    for output in outputs:
        home, _, inside = output.staged.rpartition(f"/{STAGING}/")
        final = output.final
        if output.port in sinks and topic_of(output) is None:
            final = str(sinks[output.port].path / Path(final).name)
        for own in () if Path(home) in homes else homes:
            staged = own / STAGING / inside
            if fs.exists(staged) or (final != output.final and fs.exists(Path(final))):
                output = replace(output, staged=str(staged), final=final)
                break
        found.append(output)
    return found


def discard_window(config: Config, window: int, epoch: int, *, fs: FileSystem = LOCAL) -> None:
    """Remove all folders that an epoch has staged for a window, once it is published."""
    for attempt, folder in _staged_folders(fs, config):
        if (attempt.window, attempt.epoch) == (window, epoch):
            remove_tree(fs, folder)


def discard_abandoned(config: Config, below_epoch: int, *, fs: FileSystem = LOCAL) -> int:
    """Remove the folders staged by lower epochs, when their committed windows are published; gives their number.

    Never those of a higher epoch: this may be a process that slept while another took over.
    """
    abandoned = [folder for attempt, folder in _staged_folders(fs, config) if attempt.epoch < below_epoch]
    for folder in abandoned:
        remove_tree(fs, folder)
        failpoints.hit("stage.discarded")
    return len(abandoned)


def _staged_folders(fs: FileSystem, config: Config) -> list[tuple[Attempt, Path]]:
    homes = (home / STAGING for home in staging_homes(config))
    return [
        (attempt, home / name)
        for home in homes
        for name in listed(fs, home)
        if (attempt := Attempt.of_folder(name)) is not None
    ]


def _synced_output(fs: FileSystem, file: StagedFile, final: str) -> OutputFile:
    """Read a file through its checksum and sync it."""
    digest = xxhash.xxh3_64()
    size_bytes = 0
    with fs.open(file.path) as stream:
        while block := stream.pread(_READ_BYTES, size_bytes):
            digest.update(block)
            size_bytes += len(block)
        stream.sync()
    return OutputFile(
        port=file.port,
        staged=str(file.path),
        final=final,
        size_bytes=size_bytes,
        checksum=digest.intdigest(),
        rows=file.rows,
    )


def _up_to_staging(path: Path) -> Iterator[Path]:
    """The directories that hold a staged file, up to the port's own."""
    for parent in path.parents:
        yield parent
        if parent.name == STAGING:
            yield parent.parent
            return


def _data_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file() and is_data_file(path.name))


def _slots(file: Path) -> tuple[int, ...]:
    """The writers of the rows in a staged file."""
    return tuple(sorted(parquet.read_table(file, columns=[SLOT]).column(SLOT).unique().to_pylist()))


def _rows(file: Path, file_format: str) -> int:
    """Rows of a staged file: a Parquet footer's count, or the lines of a JSON file, which are its rows."""
    if file_format == "parquet":
        return int(parquet.read_metadata(file).num_rows)
    with file.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(_READ_BYTES), b""))


def _same_file_system(one: Path, other: Path) -> bool:
    other.mkdir(parents=True, exist_ok=True)
    return one.stat().st_dev == other.stat().st_dev
