"""What was sent again from an error topic stays known when the cluster has dropped the groups' offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from bucket_store.errors import CorruptionError
from bucket_store.places.local import local_place
from deduper.admin.errors.replay_notes import ReplayNotes
from deduper.kafka.errors import ProducerFencedError, PublicationUnknownError
from deduper.kafka.resend import Offsets
from deduper.sinks.publish_state import OnUnknown

DAY_S = 86_400.0
GROUP = "deduper-replay-5a5a-malformed"


class KilledError(Exception):
    """The process ends here."""


@dataclass
class Topic:
    """An error topic of one partition, its group's offset, and how often each record was sent."""

    folder: Path
    topic_id: str = "one"
    now_s: float = 1_700_000_000.0
    committed: Offsets = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)

    def notes(self, unpublished: OnUnknown = OnUnknown.REFUSE) -> ReplayNotes:
        """As a new call finds them."""
        return ReplayNotes(
            local_place(self.folder),
            "errors",
            self.topic_id,
            lambda age_s: abs(age_s) > 7 * DAY_S,
            unpublished,
            clock=lambda: self.now_s,
        )

    def replay(self, *ends: int, kill: str = "", unpublished: OnUnknown = OnUnknown.REFUSE) -> None:
        """A call whose transactions end at these offsets; it dies in the last one, at this step."""
        notes = self.notes(unpublished)
        at = notes.position(GROUP, self.committed).get(0, 0)
        for end in ends:
            notes.before({GROUP: {0: end}})
            if kill == "noted" and end == ends[-1]:
                raise KilledError
            self.sent += range(at, end)
            self.committed, at = {0: end}, end
            if kill == "committed" and end == ends[-1]:
                raise KilledError
            notes.after({GROUP: {0: end}})
        notes.finish()

    def forget(self, days: float) -> None:
        """The group stays idle for so long."""
        self.now_s += days * DAY_S
        if days > 7:
            self.committed = {}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """No note, no offset."""
    return Topic(tmp_path / "replays")


def test_a_forgotten_group_continues_from_its_note(topic: Topic) -> None:
    """No record is sent twice, however long the group was idle; one note is there."""
    topic.replay(10, 20)
    topic.forget(30)
    topic.replay(30)
    topic.forget(30)
    topic.replay(30)
    assert topic.sent == list(range(30))
    assert len(list(topic.folder.iterdir())) == 1


@pytest.mark.parametrize(("kill", "days"), list(product(["noted", "committed"], [0.0, 6.0])))
def test_a_killed_call_is_continued_in_time(topic: Topic, kill: str, days: float) -> None:
    """The group's offset says whether the transaction was committed; without one it was not."""
    with pytest.raises(KilledError):
        topic.replay(10, kill=kill)
    topic.forget(days)
    topic.replay(20)
    assert topic.sent == list(range(20))


@pytest.mark.parametrize("kill", ["noted", "committed"])
def test_a_transaction_in_doubt_is_asked_for(topic: Topic, kill: str) -> None:
    """After the retention; the answer is for the one transaction, and is asked for once."""
    with pytest.raises(KilledError):
        topic.replay(10, 20, kill=kill)
    topic.forget(8)
    before = list(topic.sent)
    with pytest.raises(PublicationUnknownError, match=r"errors-0, offsets 10 to 19: begun .* 8\.0 days ago"):
        topic.replay(30)
    assert topic.sent == before
    topic.replay(30, unpublished=OnUnknown.SKIP if kill == "committed" else OnUnknown.PUBLISH)
    assert topic.sent == list(range(30))
    topic.forget(8)
    topic.replay(30)
    assert topic.sent == list(range(30))


def test_a_clock_that_was_ahead_is_no_proof(topic: Topic) -> None:
    """The note is of a time that is yet to come: whether the offsets were dropped is unknown."""
    with pytest.raises(KilledError):
        topic.replay(10, kill="committed")
    topic.committed = {}
    topic.now_s -= 30 * DAY_S
    with pytest.raises(PublicationUnknownError):
        topic.replay(20)


def test_offsets_of_an_earlier_release_are_taken_over(topic: Topic) -> None:
    """They are noted by the first call, even if it sends nothing."""
    topic.committed = {0: 10}
    topic.replay()
    topic.forget(30)
    topic.replay(20)
    assert topic.sent == list(range(10, 20))


def test_a_topic_created_again_has_notes_of_its_own(topic: Topic) -> None:
    """Its records were not sent."""
    topic.replay(10)
    topic.topic_id, topic.committed = "two", {}
    topic.replay(5)
    assert topic.sent == [*range(10), *range(5)]


def test_the_id_of_a_topic_is_part_of_a_name(topic: Topic, tmp_path: Path) -> None:
    """In Base64 of URLs; the client has slashes in one id of three."""
    topic.topic_id = "wcqGWUgqT0OsOok/oGd+EA"
    topic.replay(10)
    assert [path.name for path in tmp_path.rglob("topic-*")] == ["topic-wcqGWUgqT0OsOok_oGd-EA-000002"]


def test_groups_keep_what_is_noted_of_them(topic: Topic) -> None:
    """A call for one reason does not touch the notes of another."""
    topic.replay(10)
    other = topic.notes()
    assert other.position("another", {}) == {}
    other.before({"another": {0: 4, 2: 3}})
    other.after({"another": {0: 4, 2: 3}})
    other.finish()
    assert topic.notes().position(GROUP, {}) == {0: 10}
    assert topic.notes().position("another", {0: 7}) == {0: 7, 2: 3}


def test_nothing_sent_leaves_no_note(topic: Topic) -> None:
    """Of an empty topic."""
    topic.replay()
    assert not topic.folder.exists()


def test_two_calls_at_once(topic: Topic) -> None:
    """The note of a number is one call's; the other stops before its commit."""
    first, second = topic.notes(), topic.notes()
    for notes in (first, second):
        notes.position(GROUP, {})
    first.before({GROUP: {0: 10}})
    with pytest.raises(ProducerFencedError, match="another `replay-errors` has taken over"):
        second.before({GROUP: {0: 5}})


def test_a_damaged_note_is_not_taken_for_none(topic: Topic) -> None:
    """Or all would be sent again."""
    topic.replay(10)
    (file,) = topic.folder.iterdir()
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        topic.notes()
