"""The rows of Kafka ports as they are staged."""

from __future__ import annotations

import base64
import json

import pyarrow as pa

from deduper.tasks.kafka_rows import headers_of, with_headers


def test_headers_come_back_from_their_text() -> None:
    """In their order, of one name twice, with any bytes, empty or null; none is null."""
    every_byte = bytes(range(256))
    text = json.dumps(
        [
            {"key": "é", "value": base64.b64encode(every_byte).decode()},
            {"key": "again", "value": ""},
            {"key": "again"},
        ]
    )
    headers = headers_of(pa.array([None, text, None], pa.string()))
    assert headers.to_pylist() == [
        None,
        [{"key": "é", "value": every_byte}, {"key": "again", "value": b""}, {"key": "again", "value": None}],
        None,
    ]
    nothing = headers_of(pa.nulls(2, pa.string()))
    assert nothing.type == headers.type
    assert nothing.to_pylist() == [None, None]


def test_our_headers_follow_those_of_the_record() -> None:
    """Rows without headers of their own get ours alone; what is null is not told."""
    own = headers_of(pa.array([None, '[{"key": "n", "value": "MQ=="}]'], pa.string()))
    told = {"dedup-verdict": pa.array(["unique", "error"]), "dedup-reason": pa.array([None, "malformed"])}
    rows = [[(one["key"], one["value"]) for one in row] for row in with_headers(own, told).to_pylist()]
    assert rows == [
        [("dedup-verdict", b"unique")],
        [("n", b"1"), ("dedup-verdict", b"error"), ("dedup-reason", b"malformed")],
    ]
