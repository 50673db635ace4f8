"""The lock of a table's writers on one machine.

What a write that a signal stops has done, and what the next one does: said in one line before the process ends.

What the steps of a write ask of its kind: the verdicts on a batch, and what becomes of its rows and the table's.

The steps of a write; docs/tables.md has the promises.

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
from typing import Protocol

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, make_directories
from deduper.errors import IntegrityError
from deduper.table.batch import Batch
from deduper.table.columns import KeyColumns, text_of
from deduper.table.errors import ConflictError, IndexServerError, ServerRefusedError, TableChangedError, TableHeldError
from deduper.table.formats.files import removed_file
from deduper.table.formats.plan import (
    LoadPlan,
    PortFiles,
    begin,
    discard,
    finish_all,
    is_planned,
    publish_ports,
    write_plan,
)
from deduper.table.formats.protocol import PRIVATE, Commit, DataFile, NewFile, RemovedFile, Snapshot, Table
from deduper.table.index.protocol import KeyIndex, TableIndex, WrittenFile
from deduper.table.operations.judge import Verdict
from deduper.table.operations.staging import Staging, Work, stage

logger = logging.getLogger(__name__)

_SAY_AFTER_S = 1.0
"""Small loads wait for each other as a rule, and not for as long."""


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


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stage(StrEnum):
    """How far a write is, and what becomes of it if the process ends there."""

    BEFORE = "nothing was committed, the table is as it was; the next write removes what is staged; repeat the command"
    COMMITTING = (
        "it may be committed: the next write completes it, or removes what it has left; "
        "`deduper table status` shows the table's version; repeat the command"
    )
    COMMITTED = "it is committed, the table has all its rows; the next write completes its ports and the index"
    REBUILDING = "the old index counts; repeat the command, which continues"


_STAGE: ContextVar[Stage] = ContextVar("stage", default=Stage.BEFORE)


def reached(stage: Stage) -> None:
    """The write of this thread has come to a stage."""
    _STAGE.set(stage)


@contextmanager
def saying_when_stopped(begins: Stage = Stage.BEFORE) -> Iterator[None]:
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


class Operation(Protocol):
    """A kind of write, for one batch."""

    def require_fit(self, before: Snapshot) -> None:
        """Called for each try before anything is written.

        Raises:
            TableUsageError: batch and table do not fit each other.
        """

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """The batch against a version of the table, up to which the index has been brought. Called for each try.

        Raises:
            IndexDamagedError: the index cannot be asked.
        """


_TRIES = 5


@contextmanager
def completed_without_server(root: Path) -> Iterator[None]:
    """After a commit: the write of the table in a folder succeeds without the server of its index, with a warning."""
    try:
        yield
    except (IndexServerError, ServerRefusedError) as error:
        logger.warning("%s: the write is done; the index lacks it, and the next write reads its files: %s", root, error)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A write that is done, named by `load`. `before` and `version`: those that were judged, and afterwards.

    `read_files` were read to bring the index up to the table before judging; `began_anew` says why it had to be built.
    `completed` earlier writes had died after their commit. `tries`: how often the batch was judged.
    """

    load: str
    before: Snapshot
    version: int
    work: Work
    files: tuple[NewFile, ...]
    read_files: int
    began_anew: str | None
    completed: int
    tries: int
    seconds: float


class WriteSteps:
    """A write whose lock is held. `ports` may have `duplicates` and `errors`; `target_bytes` is that of new files."""

    def __init__(
        self,
        batch: Batch,
        table: Table,
        columns: KeyColumns,
        index: TableIndex,
        operation: Operation,
        ports: Mapping[str, Path],
        target_bytes: int,
    ) -> None:
        self._batch = batch
        self._table = table
        self._columns = columns
        self._operation = operation
        self._ports = ports
        self._target_bytes = target_bytes
        self._kind = index
        self._index: KeyIndex

    def run(self) -> Outcome:
        """All steps.

        Raises: as `load.load`.
        """
        began = time.monotonic()
        failpoints.hit("table.1.locked")
        completed = finish_all(self._table, self._ports)
        read = 0
        conflict: ConflictError | None = None
        for number in range(1, _TRIES + 1):
            before = self._table.snapshot()
            self._operation.require_fit(before)
            if number == 1:  # not before: an index of another key or type begins anew, and a refused batch leaves it
                self._index = self._kind.open(self._table.root, self._columns)
            read += self._index.catch_up(self._table.root, before.files)
            failpoints.hit("table.2.index")
            load = secrets.token_hex(8)
            reached(Stage.BEFORE)
            try:
                work, plan, in_place_of = self._staged(load, before)
                if not plan.commit.is_empty:
                    self._table.commit(plan.commit)
                reached(Stage.COMMITTED)
            except ConflictError as error:
                logger.warning("judging again: %s", error)
                conflict = error
                discard(self._table.root, load, self._ports.values())
                continue
            except Exception:
                self._give_up(load)
                raise
            publish_ports(self._table.root, plan, self._ports)
            failpoints.hit("table.6.published")
            after = self._table.snapshot()
            self._enter(after, work, plan.commit.files, in_place_of)
            failpoints.hit("table.7.index")
            discard(self._table.root, load, self._ports.values())
            return Outcome(
                load=load,
                before=before,
                version=after.version,
                work=work,
                files=plan.commit.files,
                read_files=read,
                began_anew=self._index.began_anew,
                completed=completed,
                tries=number,
                seconds=time.monotonic() - began,
            )
        raise TableChangedError(
            f"{self._table.root}: other writers were faster {_TRIES} times; the last time: {conflict}"
        ) from conflict

    def _staged(self, load: str, before: Snapshot) -> tuple[Work, LoadPlan, Mapping[str, int]]:
        """Steps 3 and 4; with the files in the places of others, as `Staged` has them."""
        begin(self._table.root, load, self._ports)
        work = self._operation.judge(self._index, before)
        staging = Staging(load, self._table.root, self._ports, self._target_bytes)
        staged = stage(self._batch, work, self._columns.partition_by, before.required, staging)
        self._require_counts(work, staged.files, staged.ports)
        commit = Commit(
            load=load,
            after=before.version,
            schema=self._batch.schema.serialize().to_pybytes(),
            partition_by=tuple(column.name for column in self._columns.partition_by),
            files=staged.files,
            removed=tuple(map(self._removed, work.removed)),
        )
        plan = LoadPlan(self._table.format, commit, staged.ports)
        reached(Stage.COMMITTING)
        write_plan(self._table.root, plan)
        failpoints.hit("table.4.planned")
        return work, plan, staged.in_place_of

    def _removed(self, file: DataFile) -> RemovedFile:
        values = zip(self._columns.partition_by, file.partition, strict=True)
        partition = tuple((column.name, text_of(value, column)) for column, value in values)
        return removed_file(self._table.root, file, partition)

    def _enter(self, after: Snapshot, work: Work, files: Sequence[NewFile], in_place_of: Mapping[str, int]) -> None:
        """The keys of the new files into the index; if they are not known, they are read. The write is committed."""
        with completed_without_server(self._table.root):
            self._enter_keys(after, work, files, in_place_of)

    def _enter_keys(
        self, after: Snapshot, work: Work, files: Sequence[NewFile], in_place_of: Mapping[str, int]
    ) -> None:
        added = work.added()
        if added is not None:
            placed = {(file.path, file.size) for file in files}
            there = [file for file in after.files if (file.path, file.size) in placed]
            if len(there) == len(placed):  # else another writer was here: whose keys are whose, the files say
                self._index.add_written([WrittenFile(file, in_place_of.get(file.path)) for file in there], added)
        self._index.catch_up(self._table.root, after.files)

    def _give_up(self, load: str) -> None:
        """Removes what is staged; with a plan it stays, for the next write to find out whether it was committed."""
        if not is_planned(self._table.root, load):
            discard(self._table.root, load, self._ports.values())

    def _require_counts(self, work: Work, files: Sequence[NewFile], ports: Sequence[PortFiles]) -> None:
        """Each row that was judged, and each that is carried over, is in a file, and no other."""
        rows = work.rows()
        of_port = {
            "duplicates": sum(rows[verdict] for verdict in work.to_duplicates),
            "errors": sum(rows[verdict] for verdict in Verdict if verdict.is_error),
        }
        carried = 0 if work.rewrite is None else work.rewrite.carried_rows
        wanted = [
            carried + sum(rows[verdict] for verdict in work.to_table),
            *(of_port[name] for name in self._ports),
        ]
        found = [sum(file.rows for file in of) for of in (files, *(port.files for port in ports))]
        if wanted != found:
            raise IntegrityError(
                f"{self._table.root}: {wanted} rows were judged ({', '.join(('for the table', *self._ports))}), and "
                f"{found} are in the files; nothing was committed"
            )
