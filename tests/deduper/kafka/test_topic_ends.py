"""What commands ask of a topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deduper.kafka import topic_ends


class Admin:
    """Tells the id of one topic, as the client writes it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Of no broker."""

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        """By name."""
        del topics, request_timeout
        described = SimpleNamespace(topic_id="wcqGWUgqT0OsOok/oGd+EA")
        return {"errors": SimpleNamespace(result=lambda timeout: described)}


def test_the_id_of_a_topic_can_be_part_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Base64 of URLs; the client has slashes in one id of three."""
    monkeypatch.setattr(topic_ends, "AdminClient", Admin)
    assert topic_ends.topic_id({}, "errors") == "wcqGWUgqT0OsOok_oGd-EA"
