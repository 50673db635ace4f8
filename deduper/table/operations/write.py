"""A write of a table, step by step; docs/tables.md has the promises.

1 the table is locked, dead writes are completed or removed · 2 the table's version is read, the index brought up to it
· 3 rows are judged and staged, those of removed files that stay among them · 4 staged files are durable, the plan names
them · 5 the commit · 6 duplicates and errors get their places · 7 the index reads the new files, staging is removed.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, make_directories
from deduper.errors import IntegrityError
from deduper.table.batch import Batch, Keep
from deduper.table.columns import text_of
from deduper.table.errors import (
    ConflictError,
    FileVanishedError,
    IndexServerError,
    TableChangedError,
    TableHeldError,
    TableUsageError,
    UnsupportedTableError,
)
from deduper.table.formats.files import removed_file, require_one_disk
from deduper.table.formats.plan import (
    LoadPlan,
    PortFiles,
    begin,
    discard,
    finish_all,
    is_planned,
    port_staging,
    publish_ports,
    write_plan,
)
from deduper.table.formats.protocol import PRIVATE, Commit, DataFile, NewFile, RemovedFile, Snapshot
from deduper.table.index.protocol import NO_TARGET, AddedKeys, KeyIndex, VersionKeys, WrittenFile
from deduper.table.operations.judge import TO_DUPLICATES, TO_TABLE, Kind, Verdict, judge
from deduper.table.operations.receipts import WriteReceipt, counts_of, found_in
from deduper.table.operations.rewriting import FileRewrite, Filling, Workload, workload
from deduper.table.operations.staging import Staging, stage
from deduper.table.operations.target import Target
from deduper.table.schema import require_same

logger = logging.getLogger(__name__)

_SAY_AFTER_S = 1.0
"""Small loads wait for each other as a rule, and not for as long."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRIES = 5


@contextmanager
def locked(root: Path, timeout_s: float) -> Iterator[None]:
    """One write, or one rebuilding of the index, at a time on this machine.

    Raises:
        TableHeldError: not in time.
    """
    make_directories(LOCAL, root / PRIVATE)
    began = time.monotonic()
    is_said = False
    with LOCAL.open(root / PRIVATE / "lock", create=True) as lock:
        while not lock.try_lock():
            waited_s = time.monotonic() - began
            if waited_s >= timeout_s:
                held = f"{root}: another write or rebuild has held the table for {timeout_s:g} s"
                raise TableHeldError(f"{held}; repeat the command when it is done")
            if waited_s >= _SAY_AFTER_S and not is_said:
                logger.warning("%s: another write or rebuild holds the table; waiting up to %g s", root, timeout_s)
                is_said = True
            time.sleep(0.05)
        yield


class WriteStage(StrEnum):
    """How far a write is, and what becomes of it if the process ends there."""

    BEFORE = "nothing was committed, the table is as it was; the next write removes what is staged; repeat the command"
    COMMITTING = (
        "it may be committed: the next write completes it, or removes what it has left; "
        "`deduper table status` shows the table's version; repeat the command"
    )
    COMMITTED = "it is committed, the table has all its rows; the next write completes its ports and the index"
    REBUILDING = "the old index counts; repeat the command, which continues"


_STAGE: ContextVar[WriteStage] = ContextVar("stage", default=WriteStage.BEFORE)


def reached(stage: WriteStage) -> None:
    """The write of this thread has come to a stage."""
    _STAGE.set(stage)


@contextmanager
def saying_when_stopped(begins: WriteStage = WriteStage.BEFORE) -> Iterator[None]:
    """SIGTERM and SIGINT end the process at once, as safely as a power cut, with a line. In the main thread only."""
    reached(begins)
    before = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    # A stream may be in use by what the signal has interrupted, so it is left alone.
    os.write(sys.stderr.fileno(), f"{signal.Signals(number).name}: stopped; {_STAGE.get()}\n".encode())
    os._exit(128 + number)


@contextmanager
def completed_without_index(root: Path) -> Iterator[None]:
    """After a commit: the write of the table in a folder succeeds, with a warning, if its index cannot follow now.

    Its server is away, or other writers have changed the table since, so that files went or do not fit.
    """
    try:
        yield
    except (IndexServerError, FileVanishedError, TableChangedError, TableUsageError) as error:
        logger.warning("%s: the write is done; the index lacks it, and the next write reads its files: %s", root, error)


@dataclass(frozen=True, slots=True)
class Write:
    """A load, an upsert or a delete of one batch. The batch of a delete has keys, and may lack all other columns.

    `ports`: the folders of `duplicates` and `errors`, or of one. `target_bytes`: of new files. `moves`: a key that lies
    in another partition moves to that of the batch's row. `filling`: None if no small file takes new rows.
    """

    kind: Kind
    batch: Batch
    target: Target
    keep: Keep
    ports: Mapping[str, Path]
    target_bytes: int
    moves: bool = True
    filling: Filling | None = None

    @property
    def root(self) -> Path:
        """The table's folder."""
        return self.target.table.root

    def require_fit(self, before: Snapshot) -> None:
        """Called for each try before anything is written.

        Raises:
            TableUsageError: batch and table do not fit each other.
        """
        if self.kind != "load" and before.no_changes is not None:
            raise UnsupportedTableError(f"{self.root}: {before.no_changes}; nothing was written")
        self.target.require_partitions(before)
        if self.kind != "delete":
            if before.schema is not None:
                require_same(self.root, before.schema, self.batch.schema)
            return
        if before.schema is None:
            raise TableUsageError(f"{self.root}: there is no table any more")
        wanted = pa.schema([before.schema.field(column.name) for column in self.target.columns.digested])
        require_same(self.root, wanted, pa.schema([self.batch.schema.field(name) for name in wanted.names]))

    def work(self, version: VersionKeys) -> Workload:
        """The batch against a version of the table. Called for each try.

        Raises:
            IndexDamagedError: the index cannot be read.
        """
        columns = self.target.columns
        required = columns.digested if self.kind == "delete" else columns.all
        replaces = self.kind != "load"
        verdicts = judge(self.batch, columns, self.keep, version, replaces=replaces, required=required)
        return workload(self.kind, self.root, self.batch, columns, verdicts, version, self.filling)


class WriteSteps:
    """A write whose lock is held."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._table = write.target.table
        self._columns = write.target.columns
        self._index: KeyIndex

    def run(self) -> WriteReceipt:
        """All steps.

        Raises: as `changes.load`.
        """
        began = time.monotonic()
        failpoints.hit("table.1.locked")
        ports = self._write.ports
        completed = finish_all(self._table, ports)
        read = 0
        conflict: ConflictError | None = None
        for number in range(1, _TRIES + 1):
            before = self._table.snapshot()
            self._write.require_fit(before)
            if number == 1:  # not before: an index of another key or type is emptied, and a refused batch leaves it
                self._index = self._write.target.index.open(self._table.root, self._columns)
            load = secrets.token_hex(8)
            reached(WriteStage.BEFORE)
            try:
                with self._of_version(before):
                    read += self._index.catch_up(self._table.root, before.files)
                    failpoints.hit("table.2.index")
                    work, rewrite, plan, in_place_of = self._staged(load, before)
                version = before.version if plan.commit.is_empty else self._table.commit(plan.commit)
                reached(WriteStage.COMMITTED)
            except ConflictError as error:
                logger.warning("judging again: %s", error)
                conflict = error
                discard(self._table.root, load, ports.values())
                continue
            except Exception:
                self._give_up(load)
                raise
            publish_ports(self._table.root, plan, ports)
            failpoints.hit("table.6.published")
            with completed_without_index(self._table.root):
                self._enter(self._table.snapshot(), _added(work, rewrite), plan.commit.files, in_place_of)
            failpoints.hit("table.7.index")
            discard(self._table.root, load, ports.values())
            return WriteReceipt(
                operation=work.kind,
                load=load,
                version=version,
                **counts_of(work),
                found_in=found_in(work),
                files=len(plan.commit.files),
                removed_files=len(work.removed),
                removed_bytes=sum(file.size for file in work.removed.values()),
                removed_rows=0 if rewrite is None else rewrite.replaced_rows,
                carried_rows=0 if rewrite is None else rewrite.carried_rows,
                read_files=read,
                began_anew=self._index.began_anew,
                completed=completed,
                tries=number,
                seconds=time.monotonic() - began,
            )
        raise TableChangedError(
            f"{self._table.root}: other writers were faster {_TRIES} times; the last time: {conflict}"
        ) from conflict

    @contextmanager
    def _of_version(self, before: Snapshot) -> Iterator[None]:
        """A file that goes while it is read is a conflict, if the table does not have it any more."""
        try:
            yield
        except FileVanishedError as error:
            if self._table.snapshot().files == before.files:
                raise
            raise ConflictError(f"{error}; another writer has removed it meanwhile") from error

    def _staged(self, load: str, before: Snapshot) -> tuple[Workload, FileRewrite | None, LoadPlan, Mapping[str, int]]:
        """Steps 3 and 4; with the files in the places of others, as `Staged` has them."""
        write, root, columns = self._write, self._table.root, self._columns
        begin(root, load, write.ports)
        version = self._index.version(root, before.files)
        work = write.work(version)
        rewrite = None
        if work.removed:
            assert before.schema is not None
            rewrite = FileRewrite(root, before.schema, columns, work, version.salt, moves=write.moves)
        staging = Staging(load, root, write.ports, write.target_bytes)
        staged = stage(write.batch, work, rewrite, columns.partition_by, before.required, staging)
        require_one_disk(root, staged.files, staging.folder)
        for port in staged.ports:
            if port.files:
                require_one_disk(write.ports[port.name], port.files, port_staging(write.ports[port.name], load))
        self._require_counts(work, rewrite, staged.files, staged.ports)
        commit = Commit(
            load=load,
            after=before.version,
            schema=write.batch.schema.serialize().to_pybytes(),
            partition_by=tuple(column.name for column in columns.partition_by),
            files=staged.files,
            removed=tuple(map(self._removed, work.removed.values())),
        )
        plan = LoadPlan(self._table.format, commit, staged.ports)
        reached(WriteStage.COMMITTING)
        write_plan(root, plan)
        failpoints.hit("table.4.planned")
        return work, rewrite, plan, staged.in_place_of

    def _removed(self, file: DataFile) -> RemovedFile:
        values = zip(self._columns.partition_by, file.partition, strict=True)
        partition = tuple((column.name, text_of(value, column)) for column, value in values)
        return removed_file(self._table.root, file, partition)

    def _enter(
        self, after: Snapshot, added: AddedKeys | None, files: Sequence[NewFile], in_place_of: Mapping[str, int]
    ) -> None:
        """The keys of the new files into the index; if they are not known, they are read. The write is committed."""
        if added is not None:
            placed = {(file.path, file.size) for file in files}
            there = [file for file in after.files if (file.path, file.size) in placed]
            if len(there) == len(placed):  # else another writer was here: whose keys are whose, the files say
                self._index.add_written([WrittenFile(file, in_place_of.get(file.path)) for file in there], added)
        self._index.catch_up(self._table.root, after.files)

    def _give_up(self, load: str) -> None:
        """Removes what is staged; with a plan it stays, for the next write to find out whether it was committed."""
        if not is_planned(self._table.root, load):
            discard(self._table.root, load, self._write.ports.values())

    def _require_counts(
        self, work: Workload, rewrite: FileRewrite | None, files: Sequence[NewFile], ports: Sequence[PortFiles]
    ) -> None:
        """Each row that was judged, and each that is carried over, is in a file, and no other."""
        rows = work.rows()
        of_port = {
            "duplicates": sum(rows[verdict] for verdict in TO_DUPLICATES[work.kind]),
            "errors": sum(rows[verdict] for verdict in Verdict if verdict.is_error),
        }
        of_table = sum(rows[verdict] for verdict in TO_TABLE[work.kind])
        carried = 0 if rewrite is None else rewrite.carried_rows
        names = self._write.ports
        wanted = [carried + of_table, *(of_port[name] for name in names)]
        found = [sum(file.rows for file in of) for of in (files, *(port.files for port in ports))]
        if wanted != found:
            raise IntegrityError(
                f"{self._table.root}: {wanted} rows were judged ({', '.join(('for the table', *names))}), and "
                f"{found} are in the files; nothing was committed"
            )


def _added(work: Workload, rewrite: FileRewrite | None) -> AddedKeys | None:
    """The keys that are new in the table, once all rows are written; None: the files say which."""
    if rewrite is not None:
        return rewrite.added()
    if work.kind == "delete":
        return None
    new = work.verdicts.keys.chosen(~work.verdicts.is_found)
    return AddedKeys(new, np.full(new.count, NO_TARGET))
