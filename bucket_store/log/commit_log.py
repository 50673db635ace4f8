"""The commit log on disk, the only truth of a store: one numbered sequence of records, each name taken exactly once.

A record is placed in these steps:

    a  a writer creates only the record after the last it has read (where that number is a multiple of
       `snapshot_every`, it first places the snapshot that has to stand there)
    b  the record's file is created under its number (`Names.create`): of all racers one gets the name. If the storage
       cannot say who, the record in the slot is read back, and its nonce names the writer; then the directory is synced
    c  the record before is looked at. If it has changed, the log is listed and read on: the slot may have been free
       only because another owner's record in it was folded and deleted. The newer snapshot names that owner's claim,
       by its nonce: an epoch has one owner

A look at one number takes the place of a listing, see "Looks at the log" in FORMAT.md. Readers start at the greatest
number that is a multiple of `snapshot_every`, so records below a snapshot never count. Folded records are deleted in
ascending order and after a grace, for readers that listed before the snapshot.
"""

from __future__ import annotations

import errno
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from bucket_store import failpoints
from bucket_store.errors import (
    CorruptionError,
    FencedError,
    MaybeCommittedError,
    NotCommittedError,
    StorageAwayError,
    StoreError,
)
from bucket_store.filesystem import is_temporary
from bucket_store.log.codec import (
    HEADER_BYTES,
    decode_record,
    demand_kind,
    encode_record,
    nonce_of,
    record_name,
    record_number,
)
from bucket_store.log.manifest import FILE_NAME as MANIFEST_NAME
from bucket_store.log.manifest import Manifest, new_manifest, place_manifest, read_manifest
from bucket_store.log.records import (
    Body,
    ClaimRecord,
    CommitRecord,
    LogRecord,
    LogSnapshot,
    LogState,
    OwnersBody,
    RebaseRecord,
)
from bucket_store.log.state import fold, fold_all
from bucket_store.places import steps
from bucket_store.places.outages import not_waiting
from bucket_store.places.place import NotDurableError, NotPlacedError, Place, UnansweredError

DIRECTORY = "log"
TURNS = "copying"
"""The folder with the turns of copies into this place: FORMAT.md, "Moving state"."""
DEFAULT_SNAPSHOT_EVERY = 1000
_READERS, _READ_AHEAD = 16, 64
"""Reads at a time at a start, and records in memory that are not folded yet."""
DEFAULT_GRACE_US = 3_600_000_000


def is_birth(record: LogRecord) -> bool:
    """Whether a record 0 is that of a new store, and not of a copy, whose state has a lineage at least."""
    body = record.body
    return isinstance(body, LogSnapshot) and body.state == LogState(last_wall_us=body.state.last_wall_us)


class CommitLog:
    """One process's access to the log of a store: reads it, and after `claim_epoch` places records.

    `place`, `refresh` and `check_owner` of several threads run one after another; all else is for one thread. The
    `state` is a value and may go anywhere.
    """

    def __init__(self, root: Place, manifest: Manifest) -> None:
        """Used by `create` and `open`: a log not yet read."""
        self.root = root
        self.manifest = manifest
        self._directory = root / DIRECTORY
        self._every = manifest.snapshot_every
        self._state = LogState()
        self._nonce = b""
        """Of the last record of the state."""
        self._epoch: int | None = None
        self._published_through = -1
        self._purged_through = -1
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls,
        root: Place,
        settings: dict[str, Any],
        *,
        wall_us: int,
        snapshot_every: int = DEFAULT_SNAPSHOT_EVERY,
    ) -> CommitLog:
        """Make a store: the directories, record 0 (the snapshot of the empty state), the manifest last.

        A creation cut short leaves a whole store, or none; then it can be repeated.

        Raises:
            StoreError: there is a store, or another process made one at the same moment; or a copy that is not whole.
            ValueError: as `new_manifest`.
        """
        log = cls(root, new_manifest(settings, snapshot_every=snapshot_every, created_us=wall_us))
        if (root / MANIFEST_NAME).exists():
            raise StoreError(f"{root} is a store already")
        log._directory.make_directories()
        if log._numbers() not in ([], [0]):
            raise StoreError(f"{root}: a log exists without a manifest; restore the manifest")
        if (root / TURNS).listed():
            raise _cut_short(root)
        birth = LogRecord(0, 0, secrets.token_bytes(16), -1, -1, LogSnapshot(LogState(last_wall_us=wall_us)))
        try:
            log._path(0).create(encode_record(birth))
        except FileExistsError:
            # From a creation cut short or from a racer: a birth as good as ours, whose name may not be durable yet.
            if not is_birth(log._read(0)):
                raise _cut_short(root) from None
            log._directory.sync()
        place_manifest(root, log.manifest)
        log._catch_up()
        return log

    @classmethod
    def open(cls, root: Place) -> CommitLog:
        """The log of the store at `root`, read to its end.

        Raises:
            StoreMissingError: no store there.
            CorruptionError, UnknownFormatError: a manifest or record that cannot be read, or one that is missing.
        """
        log = cls(root, read_manifest(root))
        log._catch_up()
        return log

    @property
    def state(self) -> LogState:
        """The state when the log was last read or written here."""
        return self._state

    @property
    def epoch(self) -> int | None:
        """The epoch claimed through this object; None before."""
        return self._epoch

    def refresh(self) -> LogState:
        """Read the records placed since. Without any, two numbers are looked at, and nothing is listed.

        Raises:
            CorruptionError, UnknownFormatError: as `open`.
        """
        with self._lock:
            self._read_on()
            return self._state

    def claim_epoch(self, owner: str, wall_us: int) -> int:
        """Take the store over: the new epoch, above every earlier one. Safe to call while an old owner runs.

        Raises:
            FencedError: another process claimed at the same moment and was first.
            NotCommittedError, MaybeCommittedError: as `place`; the claim may be repeated.
        """
        self._epoch = None
        try:
            # The creator of the store may have died before the manifest's name was durable.
            self.root.sync()
        except OSError as exc:
            raise NotCommittedError(f"{self.root} could not be synced: {exc}") from exc
        self._catch_up()
        epoch = self._state.epoch + 1
        while True:
            self._place_due_snapshot()
            if self._state.epoch >= epoch:
                raise FencedError(f"{self.root}: another process claimed epoch {self._state.epoch} at the same moment")
            record = self._envelope(epoch, ClaimRecord(epoch, owner, wall_us, str(self.root.resolved())))
            after = fold(self._state, record)
            if self._write(record).nonce == record.nonce:
                break
            # The old owner was faster into this slot. A claim takes the very slot it commits in, so this cannot last.
            self._catch_up()
        self._settle(record, after, lists=True)
        # By the claim's nonce: its slot may have been free only because the claim that had it was folded and deleted.
        if self._state.lineage[-1][1] != record.nonce:
            raise FencedError(f"{self.root}: another claim of epoch {self._state.epoch} has taken over from this one")
        self._epoch = epoch
        return epoch

    def place(self, body: OwnersBody) -> LogState:
        """Add a record to the log, after the snapshot if one is due: the state after it. Durable on return.

        Raises:
            FencedError: a higher epoch has claimed the store, and the record does not count. After a claim above the
                record nothing is raised here: the new owner sees it, and `check_owner` sees the claim.
            NotCommittedError: the record is certainly not in the log: it does not follow the state, could not be
                written, or its slot holds another record.
            MaybeCommittedError: only a fresh reading shows it.
            ValueError: no epoch was claimed through this object, or the commit is of another one.
        """
        with self._lock:
            return self._place(body)

    def _place(self, body: OwnersBody) -> LogState:
        epoch = self._own_epoch()
        if isinstance(body, CommitRecord) and body.epoch != epoch:
            raise ValueError(f"a commit of epoch {body.epoch} through a log that claimed epoch {epoch}")
        self._demand_ownership()
        try:
            self._place_due_snapshot()
        except MaybeCommittedError as exc:
            raise NotCommittedError(f"{self.root}: the snapshot before the record: {exc}") from exc
        path = self._path(self._state.next_number)
        if isinstance(body, RebaseRecord):  # a snapshot may have taken the number
            body = replace(body, state=replace(body.state, next_number=self._state.next_number))
        # Decoded again, so that the writer's state is the readers': msgpack turns tuples in `extra` into lists.
        record = self._decode(self._state.next_number, encode_record(self._envelope(epoch, body)))
        try:
            after = fold(self._state, record)
        except CorruptionError as exc:
            raise NotCommittedError(f"the record does not follow the log: {exc}") from exc
        if self._write(record).nonce != record.nonce:
            try:
                self._catch_up()
            except OSError as exc:
                raise NotCommittedError(f"{path} holds another record: {exc}") from exc
            self._demand_ownership()
            raise NotCommittedError(f"{path} holds another record of epoch {epoch}")
        self._settle(record, after)
        return self._state

    def check_owner(self) -> None:
        """Look for a later claim: two looks.

        Raises:
            FencedError: a higher epoch has claimed the store.
            ValueError: no epoch was claimed through this object.
        """
        with self._lock:
            self._own_epoch()
            self._read_on()
            self._demand_ownership()

    def forget_outputs(self, through_window: int) -> None:
        """Every window up to this one is published: the next record says so, and the state drops their outputs.

        Raises:
            ValueError: a window that is not committed.
        """
        if through_window >= self._state.next_window:
            raise ValueError(f"window {through_window} is not committed, the next one is {self._state.next_window}")
        self._published_through = max(self._published_through, through_window)

    def forget_retired(self, through_number: int) -> None:
        """The bytes of every piece that left the store in a record up to this one are gone: the next record says so.

        Raises:
            ValueError: a number that no record has.
        """
        if through_number >= self._state.next_number:
            raise ValueError(f"there is no record {through_number}, the next one is {self._state.next_number}")
        self._purged_through = max(self._purged_through, through_number)

    @property
    def has_forgotten_retired(self) -> bool:
        """Whether a record says all that `forget_retired` was called with."""
        return self._purged_through <= self._state.purged_through

    def records(self, from_number: int = 0) -> Iterator[LogRecord]:
        """The records still in the log from this number on, ascending; those below a snapshot may be gone."""
        for number in self._numbers():
            if number < from_number:
                continue
            try:
                record = self._read(number)
            except FileNotFoundError:
                continue  # Folded, and deleted since the listing.
            yield record

    def folded(self, *, grace_us: int = DEFAULT_GRACE_US) -> list[Place]:
        """The files of the records and snapshots that `delete_folded` may delete, ascending."""
        return self._past(grace_us)[0]

    def last_commits(self, count: int) -> list[CommitRecord]:
        """The newest commit records, ascending by window.

        Reads backwards from the end of the log in growing steps, because a store of years has millions of records.
        """
        if not count:
            return []
        reach = count
        while True:
            start = max(0, self.state.next_number - reach)
            bodies = [record.body for record in self.records(start)]
            commits = [body for body in bodies if isinstance(body, CommitRecord)]
            if len(commits) >= count or start == 0:
                return commits[-count:]
            reach *= 4

    def delete_folded(self, *, grace_us: int = DEFAULT_GRACE_US) -> int:
        """Delete the records below the newest snapshot that is older by `grace_us` than the last record: how many.

        Both times are the storage's own; no machine's clock counts. Temporary files as old as that go too. For the
        owner; safe to repeat.
        """
        folded, litter = self._past(grace_us)
        # A listing that lasts may name a record without the one before it. All were there when the second one begins.
        for number in self._numbers() if folded else ():
            if record_name(number) <= folded[-1].name:
                self._path(number).remove()
                failpoints.hit("log.folded")
        for path in litter:
            path.remove()
        return len(folded)

    def _past(self, grace_us: int) -> tuple[list[Place], list[Place]]:
        """The records below the newest snapshot whose grace is over, ascending; the temporary files that are as old."""
        entries = self._directory.entries()
        records = sorted((number, entry) for entry in entries if (number := record_number(entry.name)) is not None)
        if not records:
            return [], []
        latest_us = records[-1][1].modified_us - grace_us
        aged = [n for n, entry in records if n % self._every == 0 and entry.modified_us <= latest_us]
        litter = [entry.name for entry in entries if is_temporary(entry.name) and entry.modified_us <= latest_us]
        return (
            [self._path(number) for number, _ in records if aged and number < aged[-1]],
            [self._directory / name for name in litter],
        )

    def _path(self, number: int) -> Place:
        return self._directory / record_name(number)

    def _nonce_at(self, number: int) -> bytes | None:
        """The nonce of the record at a number; None where none is, empty where it cannot be read: then a listing tells.

        A damaged one is another one, or cannot be read where the storage has checksums of its own. For one that is away
        nothing waits: the storage may still be able to list.
        """
        try:
            with not_waiting():
                return nonce_of(self._path(number).read_range(0, HEADER_BYTES))
        except FileNotFoundError:
            return None
        except (CorruptionError, StorageAwayError):
            return b""

    def _read_on(self) -> None:
        """Fold what is beyond the state; two looks if there is nothing."""
        number = self._state.next_number
        # In this order: while the first record at a number is there, none was ever deleted at the next one.
        if self._nonce_at(number) is not None or self._nonce_at(number - 1) != self._nonce:
            self._catch_up()

    def _numbers(self, start: int = 0) -> list[int]:
        """The numbers from `start` on in the log's directory, ascending."""
        names = self._directory.listed(after=record_name(start - 1) if start else "")
        numbers = (record_number(name) for name in names)
        return sorted(number for number in numbers if number is not None)

    def _newest_number(self) -> int:
        """The greatest number in the log, which holds the last record that was read here, or a newer snapshot.

        Raises:
            FileNotFoundError: it holds neither: the directory is gone, or is another one.
        """
        start = max(0, self._state.next_number - 1)
        numbers = self._numbers(start)
        if start and not numbers:
            missing = f"neither record {start} nor a later one is there"
            raise FileNotFoundError(errno.ENOENT, missing, str(self._directory))
        return max(numbers, default=0)

    def _read(self, number: int) -> LogRecord:
        return self._decode(number, self._path(number).read())

    def _decode(self, number: int, data: bytes) -> LogRecord:
        file = str(self._path(number))
        record = decode_record(data, number=number, file=file)
        demand_kind(record, self._every, file)
        return record

    def _catch_up(self) -> None:
        """List the log and fold what is beyond the state: from the newest snapshot on, where there is a newer one.

        What was read counts only if the log, listed again, has no snapshot above the first record read: below one, a
        number may have been deleted since the first listing, and taken again by a writer that slept.
        """
        newest = self._newest_number()
        while True:
            begun = self._state
            first = max(begun.next_number, self._snapshot_at(newest))
            if first > newest:
                if newest or self._epoch is not None or self._nonce_at(0) == self._nonce:
                    return
                begun, first = LogState(), 0  # a backup has renewed this copy: it has replaced the only record
            state, fault, nonces = begun, None, deque([self._nonce], maxlen=1)
            try:
                state = fold_all(begun, self._read_all(range(first, newest + 1), nonces))
            except FileNotFoundError as exc:
                where = str(self._directory)
                fault = CorruptionError("missing record", file=where, offset=0, expected="every number", found=str(exc))
            except CorruptionError as exc:
                fault = exc
            newest = self._newest_number()
            if self._snapshot_at(newest) > first:
                continue
            if fault is not None:
                raise fault
            self._state, self._nonce = state, nonces[0]
            return

    def _read_all(self, numbers: range, nonces: deque[bytes]) -> Iterator[LogRecord]:
        """Records in their order, and their nonces."""
        for record in self._read_each(numbers):
            nonces.append(record.nonce)
            yield record

    def _read_each(self, numbers: range) -> Iterator[LogRecord]:
        """Of a store elsewhere many are read at a time, since each read waits for a network."""
        if self.root.is_local or len(numbers) < 2:
            yield from map(self._read, numbers)
            return
        with ThreadPoolExecutor(_READERS, "log") as pool:
            for begin in range(0, len(numbers), _READ_AHEAD):
                ahead = numbers[begin : begin + _READ_AHEAD]
                given = pool.map(lambda number: self._path(number).read(), ahead)
                yield from (self._decode(number, data) for number, data in zip(ahead, given, strict=True))

    def _snapshot_at(self, number: int) -> int:
        """The number of the newest snapshot up to this number."""
        return number - number % self._every

    def _own_epoch(self) -> int:
        if self._epoch is None:
            raise ValueError(f"{self.root}: no epoch was claimed here")
        return self._epoch

    def _demand_ownership(self) -> None:
        if self._state.epoch != self._own_epoch():
            raise FencedError(f"{self.root}: epoch {self._state.epoch} has taken over from epoch {self._epoch}")

    def _envelope(self, epoch: int, body: Body) -> LogRecord:
        return LogRecord(
            number=self._state.next_number,
            epoch=epoch,
            nonce=secrets.token_bytes(16),
            published_through=max(self._published_through, self._state.published_through),
            purged_through=max(self._purged_through, self._state.purged_through),
            body=body,
        )

    def _place_due_snapshot(self) -> None:
        # In a loop, since others may have reached the next such number meanwhile.
        while self._state.next_number % self._every == 0:
            record = self._envelope(self._state.epoch, LogSnapshot(self._state))
            # Another writer's snapshot is as good: it folds the same records. The next record shows the owner.
            record = self._write(record)
            self._settle(record, fold(self._state, record))
            failpoints.hit("log.snapshot")

    def _write(self, record: LogRecord) -> LogRecord:
        """The record in the slot afterwards: this one, durable, or another writer's.

        Raises:
            NotCommittedError: the slot is empty, and this record will never be in it.
            MaybeCommittedError: it cannot be determined.
        """
        path = self._path(record.number)
        try:
            path.create(encode_record(record), failpoint=steps.LOG)
            return record
        except NotPlacedError as exc:
            raise NotCommittedError(f"{path} could not be written: {exc}") from exc
        except NotDurableError as exc:
            raise MaybeCommittedError(f"{path} was placed, but may not be durable: {exc}") from exc
        except OSError as exc:
            occupant = self._read_back(record, exc)
        if occupant.nonce == record.nonce:
            try:
                self._directory.sync()
            except OSError as exc:
                raise MaybeCommittedError(f"{path} was placed, but may not be durable: {exc}") from exc
        return occupant

    def _read_back(self, record: LogRecord, cause: OSError) -> LogRecord:
        path = self._path(record.number)
        try:
            return self._read(record.number)
        except FileNotFoundError as exc:
            # A claim that slept beyond the grace finds its slot folded away, and its temporary file too.
            if isinstance(cause, FileExistsError) or self._is_beyond(record.number):
                raise FencedError(f"{path} was there and is gone: the log is beyond it") from exc
            if isinstance(cause, UnansweredError):
                raise MaybeCommittedError(f"{path} is absent, and may still be put in place: {cause}") from cause
            raise NotCommittedError(f"{path} could not be placed: {cause}") from cause
        except (OSError, StoreError) as exc:
            raise MaybeCommittedError(f"{path}: placing it gave {cause}, reading it back {exc}") from exc

    def _is_beyond(self, number: int) -> bool:
        try:
            return bool(self._numbers(number + 1))
        except OSError:
            return False  # The first error is the one to report.

    def _settle(self, record: LogRecord, after: LogState, *, lists: bool = False) -> None:
        """With the record in its slot, take the state `after` it, if the slot was free because nobody had taken it.

        Else, and with `lists`, take all that follows too.

        Raises:
            FencedError: a higher claim stands above it, or the log has gone on without it.
            MaybeCommittedError: the log could not be looked at, listed or read.
        """
        # A nonce that no record has, until it is proven that this one is the first at its number.
        before, self._nonce, self._state = self._nonce, secrets.token_bytes(len(record.nonce)), after
        try:
            if lists or self._nonce_at(record.number - 1) != before:
                self._catch_up()
            if self._state is after:
                self._nonce = record.nonce
        except OSError as exc:
            where = self._path(record.number)
            raise MaybeCommittedError(f"{where} is placed, but the log cannot be read: {exc}") from exc
        if self._epoch is not None:
            self._demand_ownership()


def _cut_short(root: Place) -> StoreError:
    return StoreError(
        f"{root}: a restore or a backup into this place is running or was cut short: repeat it, or remove the folder"
    )
