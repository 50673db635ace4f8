"""The likely cause of many errors, as the warning names it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.core.verdict import Admission
from deduper.tasks.errors.causes import ErrorCounts, ErrorRow, likely_causes, merged
from tests.deduper.tasks.test_error_detail import FILES, HOURLY, TOPIC, details

CANARY = "Zq7xW"


def causes(directory: Path, source: dict[str, Any], reason: str, lines: list[str], **sections: Any) -> tuple[str, ...]:
    """The causes that these lines, all errors for one reason, show."""
    rows = [ErrorRow(int(Admission[reason.upper()]), line, "") for line in lines]
    found = likely_causes(details(directory, source, **sections), rows)
    assert CANARY not in str(found)
    return found


CSV = FILES | {"file_format": "csv"}


@pytest.mark.parametrize(
    ("source", "reason", "line", "cause"),
    [
        ({}, "null_key", {"User": CANARY, "id": 1, "ts": "2024"}, "they lack `user`, but have `User`"),
        ({}, "null_key", {"userid": CANARY, "id": 1, "ts": "2024"}, "they lack `user`, but have `userid`"),
        ({}, "null_key", {"name": CANARY, "id": 1, "ts": "2024"}, "they lack `user`"),
        ({}, "null_expiry", {"user": CANARY, "id": 1, "tss": "2024"}, "they lack `ts`, but have `tss`"),
        (
            {},
            "ahead_of_now",
            {"user": CANARY, "id": 1, "ts": 1_733_011_200_000},
            "ts has milliseconds since 1970, and a timestamp column takes seconds: declare `ts bigint` and set "
            "`expiry.unit: ms`",
        ),
        (
            {},
            "malformed",
            {"user": CANARY, "id": 1, "ts": 1_733_011_200_000_000},
            "ts has microseconds since 1970, and a timestamp column takes seconds: declare `ts bigint` and set "
            "`expiry.unit: us`",
        ),
        (
            {},
            "malformed",
            {"user": CANARY, "id": 1, "ts": "1733011200"},
            "ts has seconds since 1970, and they stand in quotes: declare `ts bigint` and set `expiry.unit: s`",
        ),
        (
            {},
            "malformed",
            {"user": CANARY, "id": 1, "ts": "31/12/2024"},
            'ts has texts like "99/99/9999", and timestamp takes `2024-12-31 23:59:59`',
        ),
        (
            {},
            "ahead_of_now",
            {"user": CANARY, "id": 1, "ts": "2999-01-01"},
            "ts is in the future: this machine's clock is behind, or those of the producers are ahead",
        ),
        (
            {"schema": "user string, id bigint, ts bigint"},
            "ahead_of_now",
            {"user": CANARY, "id": 1, "ts": 1_733_011_200_000},
            "ts has milliseconds since 1970, and `expiry.unit` is s",
        ),
        (
            {"schema": "user string, id bigint, ts bigint"},
            "malformed",
            {"user": CANARY, "id": 1, "ts": "2024-12-31T00:00:00Z"},
            "ts has times as texts: declare it `timestamp`",
        ),
        ({}, "malformed", f"{CANARY},1,2024-01-01", "the lines look like CSV: is the format json?"),
        (
            {},
            "malformed",
            f'\ufeff{{"user":"{CANARY}","id":1,"ts":"2024-01-01"}}',
            "a byte order mark stands before the record: write UTF-8 without it",
        ),
        ({}, "malformed", "[{}]", "a line begins an array: each record must be an object on a line of its own"),
        (
            {},
            "malformed",
            f'  "user": "{CANARY}",',
            "objects reach over several lines: each record must stand on one line",
        ),
        ({"file_format": "csv"}, "malformed", f'{{"user":"{CANARY}"}}', "the lines look like JSON: is the format csv?"),
        ({"file_format": "csv"}, "null_key", f"{CANARY};1;2024", "the delimiter of the lines may be `;`"),
        ({"file_format": "csv"}, "malformed", f"{CANARY};1;2024", "the delimiter of the lines may be `;`"),
        (
            {"file_format": "csv"},
            "malformed",
            f"{CANARY},1,1733011200",
            "ts has seconds since 1970, and a timestamp column takes texts: declare `ts bigint` and set "
            "`expiry.unit: s`",
        ),
    ],
)
def test_each_cause(tmp_path: Path, source: dict[str, Any], reason: str, line: Any, cause: str) -> None:
    """From one kind of line."""
    expiry = {"by": "event_time", "field": "ts", "period": "24h"} | (
        {"unit": "s"} if "ts bigint" in str(source) else {}
    )
    text = line if isinstance(line, str) else json.dumps(line)
    found = causes(tmp_path, FILES | source, reason, [text] * 3, expiry=expiry)
    assert found == (cause,)


@pytest.mark.parametrize(
    ("form", "reason", "line", "cause"),
    [
        ("logfmt", "null_key", f"User={CANARY} id=1 ts=2024", "they lack `user`, but have `User`"),
        ("logfmt", "malformed", f'{{"user":"{CANARY}","id":1}}', "the lines look like JSON: is the format logfmt?"),
        ("common_log", "malformed", '{"user":"a","id":1}', "the lines look like JSON: is the format common_log?"),
    ],
)
def test_causes_of_logs(tmp_path: Path, form: str, reason: str, line: str, cause: str) -> None:
    """Names of pairs are those of a line of JSON."""
    assert causes(tmp_path, FILES | {"file_format": form}, reason, [line] * 3) == (cause,)


def test_one_header_line_is_enough(tmp_path: Path) -> None:
    """Each file has one, among errors of any other kind; a record of such texts is none."""
    lines = ["User, id,ts", *[f"{CANARY},x,2024"] * 9]
    expected = "the files begin with a line of column names: set `source.header: true`"
    assert expected in causes(tmp_path, CSV, "malformed", lines)
    assert expected not in causes(tmp_path, CSV, "malformed", ["user,x,2024"] * 3)


def test_what_few_rows_show_is_no_cause(tmp_path: Path) -> None:
    """Nor is a name that some of the records have, nor a column that the reason is not about."""
    lines = ["[", *["nonsense"] * 9]
    expiry = {"by": "event_time", "field": "ts", "period": "24h"}
    assert not causes(tmp_path, FILES, "null_key", ['{"user":null,"id":1}'] * 3, expiry=expiry)
    assert causes(tmp_path, FILES, "null_expiry", ['{"user":null,"id":1}'] * 3, expiry=expiry) == ("they lack `ts`",)
    assert not causes(tmp_path, FILES, "malformed", lines)
    assert not causes(tmp_path, FILES, "null_key", ['{"user":null,"id":1,"ts":"2024"}', '{"usr":1,"id":1,"ts":"2024"}'])


def invalid(value: bytes, source: str = "") -> ErrorRow:
    """The error row of a record that is no text."""
    return ErrorRow(int(Admission.INVALID_UTF8), base64.b64encode(value).decode(), source)


def test_one_compressed_value_of_a_topic_hides_no_cause(tmp_path: Path) -> None:
    """Each record of a topic shows for itself what it is."""
    late = ErrorRow(int(Admission.MALFORMED), '{"id":1,"ts":"31/12/2024"}', "")
    given = details(tmp_path, TOPIC, expiry=HOURLY)
    found = likely_causes(given, [invalid(b"\x1f\x8b\x08"), *[late] * 3])
    assert found == ('ts has texts like "99/99/9999", and timestamp takes `2024-12-31 23:59:59`',)
    assert likely_causes(given, [*[invalid(b"\x1f\x8b\x08")] * 3, late]) == ("the data is compressed by gzip",)


def test_the_beginning_of_a_file_tells_what_its_other_lines_are(tmp_path: Path) -> None:
    """Of no other file; and a file of few errors among many is no cause."""
    given = details(tmp_path, FILES)
    packed = [invalid(b"PK\x03\x04\xff", "a"), *[invalid(b"\xfe\x00\x01", "a")] * 4]
    other = [invalid(b"\xfe\x00\x01", "b")] * 4
    assert likely_causes(given, packed + other) == ("the data is zip, not json",)
    assert likely_causes(given, packed[:3] + other) == ()


def test_names_of_parquet_files(tmp_path: Path) -> None:
    """Those of the first file."""
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"usr": [CANARY], "id": [1], "ts": [None]}), file)
    given = details(tmp_path, FILES | {"file_format": "parquet"})
    rows = [ErrorRow(int(Admission.NULL_KEY), None, str(file))]
    assert likely_causes(given, rows) == ("they lack `user`, but have `usr`",)


def test_rows_are_counted_by_detail_and_a_missing_file_hurts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond some details only the reason counts; summaries of writers add up."""
    counts = ErrorCounts(details(tmp_path, FILES | {"file_format": "parquet"}))
    for number in range(1001):
        counts.add([int(Admission.NULL_KEY)] * 2, [str(number)] * 2, pa.nulls(2, pa.string()), [f"{tmp_path}/gone"] * 2)
    found = counts.summary()
    assert found is not None
    assert (found.counts["null_key", "5"], found.counts["null_key", None], found.causes) == (2, 2, ())
    assert "FileNotFoundError" in caplog.text
    assert merged([found, None, found]).counts["null_key", "5"] == 4
