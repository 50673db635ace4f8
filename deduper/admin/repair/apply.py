"""Damaged pieces and sources files, and their repair: rebuilt and proven, or deleted on request.

A damaged piece stops the job with exit code 4. `admin.repair.plan.plan` finds all of them and says for each what can be
done; `apply` does it.

A segment or database that has lost bytes is not written to again. It is left as a whole, once every damaged piece in it
can be repaired: rebuilt pieces and copies of the sound ones go into files of a new epoch, and the old file moves to
`<store>/quarantine/`, with a note beside it. The steps of `apply`:

a  claim an epoch, as a start does: from here on no older owner can commit anything
b  append rebuilt and copied pieces under new names; until a record names them they are remains of an attempt
c  write the note of every file that is to be left
d  one compaction record: the new pieces take the place of the old ones
e  a deletion record for pieces that hold only dead keys, and for those that the caller named to be forgotten: with
   these a new lineage of the store begins, so that no machine judges by tables that still hold them
f  move the files that were left into the quarantine
g  put rebuilt sources files in place of the damaged ones, which go into the quarantine too

Broken off at any step, the store is whole, and `apply` can be run again: before d nothing has changed, after it the
rest is finished by the notes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from bucket_store import failpoints
from bucket_store.log.copies import warn_of_original
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.records import CompactionRecord, DeletionRecord
from bucket_store.log.sources_file import DIRECTORY as SOURCES
from bucket_store.pieces.piece import PieceRef, decode_piece, piece_name
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.admin.repair.plan import NOTE, QUARANTINE, Note, Rebuilders, plan, rebuilt_sources, unfinished
from deduper.admin.repair.report import PieceRepair, RepairReport, SourcesRepair, Way, damage_json
from deduper.errors import OwnerAliveError, UsageError
from deduper.units import format_time
from deduper.window.owner_alive import own_name, owner_lives
from deduper.window.present_clock import present_wall_us

logger = logging.getLogger(__name__)


def apply(
    store: OpenStore, *, more_outputs: Sequence[Place] = (), forget: Sequence[str] = (), now_us: int | None = None
) -> RepairReport:
    """Make every possible repair, in the steps at the top, and report it.

    Raises:
        OwnerAliveError: a job runs on the store.
        UsageError: the store was opened without its config, or `forget` names a piece that is not damaged.
        FencedError: a job has taken the store meanwhile; what was recorded before stays.
    """
    if store.config is None:
        raise UsageError("repair changes the store, and needs the job's config file for that")
    if owner_lives(store.root):
        raise OwnerAliveError(f"{store.root}: a job runs on this store; stop it, then repair")
    before = plan(store, more_outputs=more_outputs, forget=forget)
    can_mend = any(item.way is Way.REBUILD for item in before.sources)
    if not before.left_files and not before.unfinished and not can_mend:
        return replace(before, is_applied=True)
    owner = own_name()
    wall_us = present_wall_us(store.log, time.time_ns() // 1000 if now_us is None else now_us)
    warn_of_original(store.log)
    epoch = store.log.claim_epoch(owner, wall_us)
    logger.info("%s: repairing as epoch %d", store.root, epoch)
    failpoints.hit("repair.claimed")
    with HeartBeat(store.root, owner):
        return _Applying(store, epoch, wall_us, more_outputs).run(before)


class _Applying:
    """Steps b to f of one repair."""

    def __init__(self, store: OpenStore, epoch: int, wall_us: int, more_outputs: Sequence[Place]) -> None:
        self._store = store
        self._epoch = epoch
        self._wall_us = wall_us
        self._rebuilders = Rebuilders(store, more_outputs)

    def run(self, before: RepairReport) -> RepairReport:
        store = self._store
        live = {ref for refs in store.log.state.pieces.values() for ref in refs}
        left = set(before.left_files)
        # An owner that was still at work during the plan may have deleted some.
        repairs = [repair for repair in before.repairs if repair.piece.file in left and repair.piece in live]
        added: dict[PieceRef, PieceRef] = {}
        for repair in repairs:
            if repair.way is Way.REBUILD:
                rebuilt = self._rebuilders.of(repair.piece).rebuild(repair.piece)
                if rebuilt.data is None:
                    raise UsageError(f"piece {repair.piece.name}: the outputs changed meanwhile: {rebuilt.why}")
                added[repair.piece] = self._append(repair.piece, rebuilt.data)
        damaged = {repair.piece for repair in repairs}
        sound = [ref for ref in live if ref.file in left and ref not in damaged]
        for ref in sorted(sound, key=lambda ref: ref.name):
            data = store.pieces.read(ref)
            for _ in decode_piece(data, file=ref.file, offset=ref.offset)[1]:
                pass
            added[ref] = self._append(ref, data)
        notes = [self._note(file, repairs, added) for file in sorted(left)]
        failpoints.hit("repair.noted")
        if added:
            merged = tuple(sorted(added, key=lambda ref: (ref.shard, ref.first_window)))
            store.log.place(
                CompactionRecord(merged=merged, added=tuple(added[ref] for ref in merged), wall_us=self._wall_us)
            )
            failpoints.hit("repair.recorded")
        forgotten = [repair.piece for repair in repairs if repair.way is Way.FORGET]
        leaving = tuple(repair.piece for repair in repairs if repair.way in (Way.DROP, Way.FORGET))
        if leaving:
            through = max(piece.last_window for piece in leaving)
            store.log.place(DeletionRecord(leaving, self._wall_us, through, is_forgetting=bool(forgotten)))
            failpoints.hit("repair.forgotten")
        for piece in forgotten:
            logger.warning(
                "piece %s (window %d, shard %d) is forgotten: up to %d keys count as new when they come again",
                piece.name,
                piece.first_window,
                piece.shard,
                piece.entries,
            )
        for note in unfinished(store, notes):
            self._move(note)
        for item in before.sources:
            if item.way is Way.REBUILD:
                self._mend_sources(item)
        return replace(before, is_applied=True, copied=len(sound))

    def _append(self, piece: PieceRef, data: bytes) -> PieceRef:
        """The same piece under a new name; the epoch of its making stays in the name, for the next repair."""
        window, made_in, attempt, shard, _ = piece.name.split("-")
        name = piece_name(window=int(window), epoch=int(made_in), attempt=int(attempt), shard=int(shard))
        location = self._store.pieces.append(shard=piece.shard, epoch=self._epoch, name=name, data=data)
        failpoints.hit("repair.appended")
        return replace(piece, file=location.file, name=name, offset=location.offset)

    def _note(self, file: str, repairs: Sequence[PieceRepair], added: dict[PieceRef, PieceRef]) -> Note:
        """Step c for one file."""
        directory = self._store.root / QUARANTINE
        directory.make_directories()
        shard, _, base = file.removeprefix("pieces/").partition("/")
        note = Note(file, directory / f"{self._epoch:06d}-{shard}-{base}{NOTE}")
        damaged = [repair for repair in repairs if repair.piece.file == file]
        text = {
            "file": file,
            "store": self._store.log.manifest.store_id,
            "left_at": format_time(self._wall_us),
            "epoch": self._epoch,
            "damaged": [
                {**damage_json(repair), "now_in": added[repair.piece].file if repair.piece in added else None}
                for repair in damaged
            ],
            "copied": [ref.name for ref in added if ref.file == file and ref not in {r.piece for r in damaged}],
        }
        note.path.create(json.dumps(text, indent=2).encode() + b"\n")
        return note

    def _move(self, note: Note) -> None:
        """Step f for one file: a rename, so that not a byte of it is read or changed."""
        source = self._store.root / note.file
        self._store.log.check_owner()
        with contextlib.suppress(FileNotFoundError):  # it was lost as a whole
            _move(source, note.target)
        failpoints.hit("repair.quarantined")

    def _mend_sources(self, item: SourcesRepair) -> None:
        """Step g for one file. Broken off in between the file is missing, which is damage of the same kind."""
        ref = self._store.log.state.sources[item.window]
        data, why = rebuilt_sources(self._store, item.window, ref)
        if data is None:
            raise UsageError(f"sources of window {item.window}: the source changed meanwhile: {why}")
        directory = self._store.root / QUARANTINE
        directory.make_directories()
        (self._store.root / SOURCES).make_directories()
        path = self._store.root / SOURCES / item.name
        self._store.log.check_owner()
        with contextlib.suppress(FileNotFoundError):
            _move(path, directory / f"{self._epoch:06d}-{SOURCES}-{item.name}")
        failpoints.hit("repair.sources")
        path.create(data)


def _move(source: Place, target: Place) -> None:
    """A rename, durable on return, of a file or of a database, which is a folder of this machine.

    Broken off in between, a file has both names, or, on a storage without renames, a copy: then the old one goes.
    """
    if source.stat().is_directory:
        source.local.rename(target.local)
    elif target.exists():
        source.remove()
    else:
        try:
            source.rename(target)
        except NotImplementedError:
            target.create(source.read())
            source.remove()
    source.parent.sync()
    target.parent.sync()
