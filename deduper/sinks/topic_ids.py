"""The ids of a job's output topics. A topic that was deleted and made again has another id, and lacks rows.

Every commit has the ids as its owner knows them, under `topics` of its `extra`, so that a start can compare them. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """The topic of a port: its name, its id, and the first window of the owner that saw this id first."""

    topic: str
    topic_id: str
    first_window: int


def known_topics(extra: Mapping[str, Any]) -> dict[str, KnownTopic]:
    """By port, as the newest commit has them; none of another form."""
    return {
        port: KnownTopic(*fields)
        for port, fields in extra.get(TOPICS, {}).items()
        if [type(field) for field in fields] == [str, str, int]
    }


def topics_extra(known: Mapping[str, KnownTopic]) -> dict[str, Any]:
    """For the next commit's `extra`."""
    if not known:
        return {}
    return {TOPICS: {port: [one.topic, one.topic_id, one.first_window] for port, one in sorted(known.items())}}


def compared(known: KnownTopic | None, topic: str, topic_id: str, first_own: int) -> tuple[KnownTopic, str | None]:
    """What is known of a port's topic from here on, and the warning if it was made again meanwhile.

    `first_own`: the first window of this owner.
    """
    if known is None or known.topic != topic:
        return KnownTopic(topic, topic_id, first_own), None
    if known.topic_id == topic_id:
        return known, None
    lacks = None
    if known.first_window < first_own:
        lacks = (
            f"topic {topic} was deleted and made again: of the windows {known.first_window} to {first_own - 1} those "
            "that were published before are not in it. If readers need them, judge their records again with a store of "
            "another name: docs/kafka.md"
        )
    return KnownTopic(topic, topic_id, first_own), lacks
