"""The rows of Kafka ports as they are staged."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from deduper.config.kafka.values import DEDUP_HEADERS
from deduper.dedup_column import FIELDS, OWN_HEADERS
from deduper.tasks.kafka_rows import headers_of, rows_to_send, with_headers
from deduper.tasks.layout import SENT


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


@pytest.mark.parametrize("wanted", [DEDUP_HEADERS, ("origin", "verdict"), ("first_seen",), ("reason",), ()])
def test_a_port_chooses_its_headers(wanted: tuple[str, ...]) -> None:
    """In our order, whatever the configuration's; those of the record stay, and all else of it."""
    record = [
        pa.array([b"k", None]),
        pa.array([b"v", b"w"]),
        pa.array(['[{"key": "n", "value": "MQ=="}]', None]),
        pa.array([5, 6]),
    ]
    first = pa.array([{"window": 3, "source": "in-0", "position": 7, "expiry": None}, None])
    dedup = {
        "verdict": pa.array(["duplicate", "unique"]),
        "reason": pa.array(["earlier_window", None]),
        "detail": pa.array(["k: null", None]),
        "window": pa.array([4, 4]),
        "source": pa.array(["in-1", "in-1"]),
        "position": pa.array([8, 9]),
        "first_seen": first,
        "fingerprint": pa.array(["0a", None]),
        "first_fingerprint": pa.array(["0b", None]),
    }
    records = pa.RecordBatch.from_arrays(record, schema=SENT)
    sent = rows_to_send(records, dedup, np.zeros(2, np.int32), wanted)
    ours = {
        "verdict": [("dedup-verdict", b"duplicate")],
        "reason": [("dedup-reason", b"earlier_window")],
        "detail": [("dedup-detail", b"k: null")],
        "window": [("dedup-window", b"4")],
        "origin": [("dedup-origin", b"in-1@8")],
        "first_seen": [("dedup-first-seen", b"in-0@7"), ("dedup-first-seen-window", b"3")],
        "fingerprint": [("dedup-fingerprint", b"0a"), ("dedup-first-fingerprint", b"0b")],
    }
    rows = [[(one["key"], one["value"]) for one in row or ()] for row in sent.column("headers").to_pylist()]
    assert rows[0] == [("n", b"1"), *(header for name in ours if name in wanted for header in ours[name])]
    assert [name for name, _ in rows[1]] == [f"dedup-{name}" for name in ours if name in wanted and name in UNIQUE]
    assert sent.column("value").to_pylist() == [b"v", b"w"]


def test_every_header_is_on_the_page() -> None:
    """In the table of docs/kafka.md, in their order."""
    page = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| header \| on \| value \|\n\|[-|]+\|\n((?:\|.*\n)+)", page)
    listed = [name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split(" | ")[0])]
    assert listed == [header for headers in OWN_HEADERS.values() for header in headers]
    assert {
        path.split(".")[0] for of in OWN_HEADERS.values() for value in of.values() for path in value.split("@")
    } <= {field.name for field in FIELDS}


UNIQUE = ("verdict", "window", "origin")
"""The headers of ours on a unique record."""
