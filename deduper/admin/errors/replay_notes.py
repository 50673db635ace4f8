"""Notes of a store on what was sent again from its error topic: they outlive the offsets of the groups.

The cluster drops the offsets of a group that is idle for `offsets.retention.minutes`. So a note, placed before each
transaction that sends, names the offsets that the transaction reaches. `replays/topic-<topic id>-<6 digits>` is a frame
(`bucket_store.framing`) around a JSON object, placed only if absent, never changed; the greatest number counts:

    <group>
      known      {partition: offset}: sent for certain
      reached    {partition: offset}: the end of the transaction that begins at `known`; equal once it is committed
      wall_us    the wall clock of that, µs since the epoch

A damaged note is a CorruptionError: it is never taken for none. A topic that was created again has another id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place
from deduper.kafka.errors import ProducerFencedError, PublicationUnknownError
from deduper.kafka.resend import Offsets
from deduper.sinks.publish_state import OnUnknown

_MAGIC: Final = b"BSRESENT"
_VERSION: Final = 1
_IN_NAMES: Final = str.maketrans("+/", "-_")
"""The client's Base64 of an id as Kafka's own tools write it: without the slash that no name of a file may have."""


@dataclass(frozen=True, slots=True)
class Note:
    """The entry of one group."""

    known: Offsets
    reached: Offsets
    wall_us: int

    @property
    def is_decided(self) -> bool:
        """True once the transaction is known to be committed."""
        return self.known == self.reached


class ReplayNotes:
    """The notes on one error topic. To be read when no earlier producer can commit any more; for one thread.

    `may_have_expired`: whether the cluster may have dropped the offsets of a group that was idle for these seconds.
    `unpublished`: the operator's answer where a transaction is in doubt.
    """

    def __init__(
        self,
        folder: Place,
        topic: str,
        topic_id: str,
        may_have_expired: Callable[[float], bool],
        unpublished: OnUnknown = OnUnknown.REFUSE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._topic = topic
        self._prefix = f"topic-{topic_id.translate(_IN_NAMES)}-"
        self._may_have_expired = may_have_expired
        self._unpublished = unpublished
        self._clock = clock
        self._names = self._listed()
        self._notes = _read(folder / self._names[-1]) if self._names else {}
        self._sent: dict[str, Offsets] = {}

    def position(self, group: str, committed: Offsets) -> Offsets:
        """The next offset of each partition by a group; `committed` are its offsets in the cluster.

        To be called for every group that is noted later.

        Raises:
            PublicationUnknownError: the cluster has forgotten whether the last noted transaction was committed, and the
                operator has not answered.
        """
        note = self._notes.get(group)
        sent = {} if note is None else note.known
        # Of a group that cannot have expired yet, no offset means that the transaction was not committed.
        if note is not None and not committed and not note.is_decided and self._may_have_expired(self._age_s(note)):
            if self._unpublished is OnUnknown.REFUSE:
                raise self._unknown(group, note)
            if self._unpublished is OnUnknown.SKIP:
                sent = note.reached
        self._sent[group] = {
            partition: max(sent.get(partition, 0), committed.get(partition, 0)) for partition in {*sent, *committed}
        }
        return dict(self._sent[group])

    def before(self, reached: Mapping[str, Offsets]) -> None:
        """Note, durably, where the next transaction brings these groups; to be called before its commit.

        Raises:
            ProducerFencedError: another call has placed the note of this number.
        """
        now = self._now_us()
        self._place({group: Note(self._sent[group], dict(offsets), now) for group, offsets in reached.items()})

    def after(self, reached: Mapping[str, Offsets]) -> None:
        """The transaction is committed. Nothing is written: the next note, or `finish`, has it."""
        self._sent.update({group: dict(offsets) for group, offsets in reached.items()})

    def finish(self) -> None:
        """Note that the last transaction is committed. Without it a forgotten group would be in doubt.

        Raises: as `before`.
        """
        now = self._now_us()
        self._place({group: Note(offsets, offsets, now) for group, offsets in self._sent.items()})

    def _place(self, notes: Mapping[str, Note]) -> None:
        changed = {
            group: note for group, note in notes.items() if note.reached and not _says(self._notes.get(group), note)
        }
        if not changed:
            return
        self._notes = self._notes | changed
        number = int(self._names[-1].removeprefix(self._prefix)) + 1 if self._names else 1
        name = f"{self._prefix}{number:06d}"
        body = json.dumps({group: asdict(note) for group, note in self._notes.items()}).encode()
        self._folder.make_directories()
        try:
            (self._folder / name).create(frame(_MAGIC, _VERSION, body))
        except FileExistsError as exc:
            raise ProducerFencedError(
                f"{self._folder / name}: another `replay-errors` has taken over; run it again when that has ended"
            ) from exc
        for old in self._names:
            (self._folder / old).remove()
        self._names = [name]

    def _listed(self) -> list[str]:
        names = self._folder.listed()
        return [name for name in names if name.startswith(self._prefix) and name[len(self._prefix) :].isdecimal()]

    def _unknown(self, group: str, note: Note) -> PublicationUnknownError:
        ranges = ", ".join(
            f"{self._topic}-{partition}, offsets {note.known.get(partition, 0)} to {end - 1}"
            for partition, end in sorted(note.reached.items())
            if end > note.known.get(partition, 0)
        )
        days = self._age_s(note) / 86400
        return PublicationUnknownError(
            f"{ranges}: begun to be sent again {days:.1f} days ago and not noted as committed; group {group} holds no "
            "offset any more, so whether they were sent is unknown. Search the topics of the source for their records "
            "(header dedup-replay, read_committed), then call once with --unpublished publish or --unpublished skip"
        )

    def _age_s(self, note: Note) -> float:
        return self._clock() - note.wall_us / 1_000_000

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)


def _says(old: Note | None, new: Note) -> bool:
    return old is not None and (old.known, old.reached) == (new.known, new.reached)


def _read(file: Place) -> dict[str, Note]:
    body = json.loads(unframe(file.read(), magic=_MAGIC, version=_VERSION, file=str(file)))
    return {
        group: Note(_offsets(note["known"]), _offsets(note["reached"]), note["wall_us"]) for group, note in body.items()
    }


def _offsets(wire: Mapping[str, Any]) -> Offsets:
    return {int(partition): offset for partition, offset in wire.items()}
