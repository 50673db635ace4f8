"""Delta Lake tables: the log by the package deltalake, the rows in files that the write has staged.

A commit is made without any retry of the library's: it is taken only at exactly the version after the one that was
judged. So the log of that version says afterwards by whom it was taken.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL
from deduper.table.columns import KeyColumn, PartitionValue, other_partitions
from deduper.table.errors import (
    INSTALL_EXTRA,
    CommitRefusedError,
    ConflictError,
    TableError,
    TableUsageError,
    UnsupportedTableError,
    VersionGoneError,
)
from deduper.table.formats.files import data_paths, place, staged_loads, staging_folder, unplace
from deduper.table.formats.plan import read_plan
from deduper.table.formats.protocol import NO_TABLE, Commit, DataFile, Snapshot, declared_lengths, objects_in
from deduper.table.schema import one_form

try:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
    from deltalake.exceptions import DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
except ImportError as error:
    raise TableUsageError(f"Delta tables need the package deltalake: {INSTALL_EXTRA}") from error

_LOG = "_delta_log"
_LOAD = "deduperLoad"
_APP = "deduper"
"""The application of our transactions (`txn`), of which a log that was cleaned up still has the last one."""
_STAMP = (1 << 63) - 1
"""The bits of a stamp, and of the version of a transaction."""
_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "invariants", "timestampNtz"}
"""Features under which a write of ours is right, unless `_require_supported` finds them in use; others are refused."""
_AS_WRITTEN = "!$&'()+,-./:;=@_~"
"""The characters, beside letters and digits, that deltalake does not encode in the path of a file it removes."""
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\\[\]^|\x00-\x1f\x7f]")
"""What deltalake decodes, or refuses, in the path of a table's folder."""
_IN_USE = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableRowTracking")
_NOT_NULL = ("nullable", "containsNull", "valueContainsNull")
_OF_COLUMN = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Rules in the metadata of a column, or of a field at any depth of its type."""


class DeltaFiles:
    """A Delta table in a folder; see `Table`."""

    format = "delta"

    def __init__(self, root: Path, partition_by: Sequence[KeyColumn]) -> None:
        """Raises UnsupportedTableError if deltalake writes and reads other folders under the path, or none."""
        if (odd := _MISREAD.search(str(root))) is not None:
            raise UnsupportedTableError(
                f"{root}: has {odd[0]!r} in its path, which deltalake does not read as it is; rename the folder"
            )
        self._root = root
        self._partition_by = tuple(column.name for column in partition_by)
        self._read: DeltaTable | None = None
        """As `snapshot` has read it last: a commit on top of that version does not read the log again."""
        self._has_committed = False
        """Whether a commit was made on top of it: then what is read next is what came since."""

    @property
    def root(self) -> Path:
        """See `Table`."""
        return self._root

    def snapshot(self) -> Snapshot:
        """See `Table`."""
        self._read = table = self._newest()
        if table is None:
            plans = (read_plan(self._root, load) for load in staged_loads(self._root))
            ours = {file.path for plan in plans if plan is not None for file in plan.commit.files}
            if any(path not in ours and self._is_parquet(path) for path in data_paths(self._root)):
                raise UnsupportedTableError(
                    f"{self._root}: has Parquet files and no Delta log; write `format: parquet`"
                )
            return Snapshot(NO_TABLE, None, (), ())
        return self._snapshot_of(table)

    def reversal(self, before: Snapshot, version: int) -> Reversal:
        """The way from the present version back to an older one; nothing is written.

        Raises:
            VersionGoneError: there is no such version, or it is not whole any more.
            UnsupportedTableError, TableUsageError, TableError: as `snapshot`, of that version.
        """
        if not 0 <= version <= before.version:
            raise VersionGoneError(f"{self._root}: there is no version {version}; the present one is {before.version}")
        now = self._at(before.version)
        then = self._at(version)
        old = self._snapshot_of(then)
        # By paths: within a log a path is one file.
        present, wanted = ({file.path for file in files} for files in (before.files, old.files))
        restored = tuple(file for file in old.files if file.path not in present)
        for file in restored:
            if not (self._root / file.path).is_file():
                raise VersionGoneError(
                    f"{self._root}: version {version} has {file.path}, which is gone from the disk (VACUUM); "
                    "choose a later version"
                )
        removed = tuple(file for file in before.files if file.path not in wanted)
        is_needed = bool(restored or removed) or _properties(now) != _properties(then)
        return Reversal(old, restored, removed, is_needed)

    def _is_parquet(self, path: str) -> bool:
        """Whether a file is one, by its name or its first bytes."""
        if path.endswith(".parquet"):
            return True
        with suppress(FileNotFoundError), (self._root / path).open("rb") as file:
            return file.read(4) == b"PAR1"
        return False  # a link to nothing, or it went

    def _at(self, version: int) -> DeltaTable:
        try:
            return DeltaTable(str(self._root), version=version)
        except DeltaError as error:
            raise VersionGoneError(f"{self._root}: version {version} cannot be read any more: {error}") from error

    def _snapshot_of(self, table: DeltaTable) -> Snapshot:
        _require_supported(table, self._root)
        names = tuple(table.metadata().partition_columns)
        if names != self._partition_by:
            raise TableUsageError(other_partitions(str(self._root), names, self._partition_by))
        required = tuple(field.name for field in table.schema().fields if not field.nullable)
        actions = pa.table(table.get_add_actions())
        rows = actions["num_records"].to_pylist()
        return Snapshot(
            table.version(),
            one_form(pa.schema(table.schema())),
            required,
            self._files(actions, names, str(table.metadata().id)),
            None if None in rows else sum(rows),
            _no_changes(table),
        )

    def commit(self, commit: Commit) -> int:
        """See `Table`."""
        place(self._root, commit.files, staging_folder(self._root, commit.load))
        failpoints.hit("table.5.placed")
        try:
            self._write(commit)
        except DeltaError as error:
            # Its message says neither whether the version was taken, nor by which commit.
            if self.finish(commit):
                return commit.after + 1
            raise self._refusal(commit.after, error) from error
        self._has_committed = True
        self._sync(commit.after)
        failpoints.hit("table.5.committed")
        return commit.after + 1

    def restore(self, load: str, after: int, version: int) -> int:
        """Returns the table to a version by one commit, on top of exactly the version `after`; durable on return.

        Gives the version that it makes.

        It needs no plan: nothing is staged, and after a death there is nothing to complete.

        Raises: as `commit`.
        """
        self._read = None
        try:
            self._at(after).restore(version, **_options(load))
        except DeltaError as error:
            if not self._is_logged(load, after):
                raise self._refusal(after, error) from error
        self._sync(after)
        failpoints.hit("table.5.committed")
        return after + 1

    def finish(self, commit: Commit) -> bool:
        """See `Table`."""
        if self.is_taken(commit):
            self._sync(commit.after)
            return True
        unplace(self._root, commit.files)
        return False

    def is_taken(self, commit: Commit) -> bool:
        """See `Table`."""
        is_logged = self._is_logged(commit.load, commit.after)
        if is_logged is not None:
            return is_logged
        table = self._open()
        if table is None or table.version() <= commit.after:
            return False
        # The last one, since each write of ours begins with those that have died.
        return bool(table.transaction_version(_APP) == _number(commit.load))

    def _is_logged(self, load: str, after: int) -> bool | None:
        """Whether the version after one was made by this write; None: not made, or the log was cleaned up."""
        record = self._record(after)
        try:
            lines = record.read_text(encoding="utf-8").splitlines()
            return any(json.loads(line).get("commitInfo", {}).get(_LOAD) == load for line in lines)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise TableError(f"{record}: the Delta log cannot be read: {error}") from error

    def _refusal(self, after: int, error: DeltaError) -> TableError:
        """Why a commit on top of a version was not taken."""
        found = self._open()
        version = NO_TABLE if found is None else found.version()
        if version > after:
            return ConflictError(f"{self._root}: version {after} was judged, and the table is at {version}")
        return CommitRefusedError(f"{self._root}: {error}")

    def _newest(self) -> DeltaTable | None:
        table, has_committed = self._read, self._has_committed
        self._read, self._has_committed = None, False
        if table is None or not has_committed:
            return self._open()
        with self._as_table_errors():
            table.update_incremental()
        return table

    def _open(self) -> DeltaTable | None:
        if not (self._root / _LOG).is_dir():
            return None
        with self._as_table_errors(), suppress(TableNotFoundError):
            return DeltaTable(str(self._root))
        return None

    @contextmanager
    def _as_table_errors(self) -> Iterator[None]:
        """Errors of reading the log, as ours."""
        try:
            yield
        except DeltaError as error:
            raise TableError(f"{self._root}: the Delta log cannot be read: {error}") from error

    def _record(self, after: int) -> Path:
        """The log file of the only version at which a commit on top of this one can be."""
        return self._root / _LOG / f"{after + 1:020d}.json"

    def _sync(self, after: int) -> None:
        """Makes a commit durable, which deltalake leaves to the system."""
        with suppress(FileNotFoundError), LOCAL.open(self._record(after)) as file:
            file.sync()
        LOCAL.fsync_dir(self._root / _LOG)

    def _write(self, commit: Commit) -> None:
        added = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(file.partition),
                modification_time=LOCAL.modified_us(self._root / file.path) // 1000,
                data_change=True,
                stats=file.statistics,
            )
            for file in commit.files
        ]
        transaction = Transaction(_APP, _number(commit.load))  # without a time it does not expire
        made = {"partition_by": list(commit.partition_by), **_options(commit.load, transaction)}
        if commit.after == NO_TABLE:
            schema = Schema.from_arrow(pa.ipc.read_schema(pa.py_buffer(commit.schema)))
            create_table_with_add_actions(str(self._root), schema, added, mode="error", **made)
        else:
            table = self._read
            if table is None or table.version() != commit.after:
                table = DeltaTable(str(self._root), version=commit.after)
            removed = self._removals(table, commit)
            table.create_write_transaction([*added, *removed], "append", table.schema(), **made)

    def _removals(self, table: DeltaTable, commit: Commit) -> list[RemoveAction]:
        """The actions that remove files; the log tells files apart by their paths exactly as it has them."""
        if not commit.removed:
            return []
        written = {unquote(path): path for path in pa.table(table.get_add_actions())["path"].to_pylist()}
        now = time.time_ns() // 1_000_000
        for file in commit.removed:
            if written[file.path] != quote(file.path, safe=_AS_WRITTEN):
                raise UnsupportedTableError(
                    f"{self._root}: the log spells the path {written[file.path]} in a way in which deltalake cannot "
                    "remove it; rewrite its partition by the engine that wrote it (OPTIMIZE), and try again"
                )
        return [
            RemoveAction(
                path=file.path,
                data_change=True,
                deletion_timestamp=now,
                partition_values=dict(file.partition),
                size=file.size,
            )
            for file in commit.removed
        ]

    def _paths(self, actions: pa.Table) -> list[str]:
        # The log has paths as URLs. Most have nothing to decode: each write looks at all of them twice.
        paths = [unquote(path) if "%" in path else path for path in actions["path"].to_pylist()]
        for path in paths:
            if path.startswith("/") or (":" in path and re.match(r"[a-z0-9]+:", path)):
                raise UnsupportedTableError(f"{self._root}: the table has the file {path} of another folder")
        return paths

    def _files(self, actions: pa.Table, names: Sequence[str], table_id: str) -> tuple[DataFile, ...]:
        """A path is one file within a log; of a table that is made again, the log has another id.

        Their content says less: files of equal statistics have equal footers, and a look at it opens each file.
        """
        of_log = xxhash.xxh3_64_intdigest(table_id.encode())
        columns: list[list[PartitionValue]] = []
        for name in names:
            values: Any = actions["partition"].combine_chunks().field(name)
            columns.append((values.cast(pa.int32()) if pa.types.is_date(values.type) else values).to_pylist())
        paths = self._paths(actions)
        partitions = list(zip(*columns, strict=True)) if columns else [()] * len(paths)
        sizes, times = (actions[name].to_pylist() for name in ("size_bytes", "modification_time"))
        return tuple(
            DataFile(path, size, (of_log ^ time_ms) & _STAMP, partition)
            for path, size, time_ms, partition in zip(paths, sizes, times, partitions, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Reversal:
    """What takes a table back to the version `to`. `is_needed`: False if the table is as it was in that version."""

    to: Snapshot
    restored: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    is_needed: bool


def _number(load: str) -> int:
    """The version of a write's transaction: its name as a number that is not negative."""
    return int(load, 16) & _STAMP


def _options(load: str, *transactions: Transaction) -> dict[str, Any]:
    return {
        "commit_properties": CommitProperties({_LOAD: load}, 0, list(transactions)),
        "post_commithook_properties": PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    }


def _properties(table: DeltaTable) -> tuple[str, dict[str, str]]:
    return table.schema().to_json(), table.metadata().configuration


def _no_changes(table: DeltaTable) -> str | None:
    configuration = {name: value.lower() for name, value in table.metadata().configuration.items()}
    if configuration.get("delta.appendOnly") == "true":
        return "delta.appendOnly is true"
    if configuration.get("delta.enableChangeDataFeed") == "true":
        return "its change data feed is on (delta.enableChangeDataFeed), and an upsert or delete does not write one"
    return None


def _require_supported(table: DeltaTable, root: Path) -> None:
    protocol = table.protocol()
    refused = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _FEATURES)
    configuration = table.metadata().configuration
    refused += sorted(
        name
        for name, value in configuration.items()
        if name.startswith(_IN_USE) and value.lower() not in ("none", "false")
    )
    for column in json.loads(table.schema().to_json())["fields"]:
        inner = [part for part in objects_in(column) if part is not column]
        rules = sorted({name for part in inner for name in _OF_COLUMN if name in part})
        refused += [f"{rule} of column {column['name']}" for rule in [*rules, *declared_lengths(column)]]
        if any(part.get(name) is False for part in inner for name in _NOT_NULL):
            refused.append(f"values that must not be null within column {column['name']}")
    if refused:
        raise UnsupportedTableError(
            f"{root}: the Delta table has {', '.join(refused)}, which a write does not honour; "
            "change it by a MERGE of your engine, or make a table without"
        )
    if "deletionVectors" in (protocol.reader_features or ()) and pa.table(table.deletion_vectors()).num_rows:
        raise UnsupportedTableError(
            f"{root}: files of the Delta table have deletion vectors; "
            "purge them (REORG TABLE … APPLY (PURGE)), then load"
        )
