"""`_dedup.detail`, reason by reason, as SEMANTICS.md has it, for files and for topics."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.config.model import Config
from deduper.core.verdict import Admission, TupleVerdict
from deduper.sources.error_details import error_details
from deduper.tasks.errors.detail import ErrorDetails, Examination
from deduper.tasks.layout import parsed

FILES = {"format": "files", "path": "in", "file_format": "json", "schema": "user string, id bigint, ts timestamp"}
TOPIC = {
    "format": "kafka",
    "bootstrap_servers": "127.0.0.1:1",
    "topics": ["clicks"],
    "value": {"format": "json", "schema": "id bigint, ts timestamp, tags array<string>"},
    "record": {"user": "key"},
}
HOURLY = {"by": "event_time", "field": "ts", "period": "24h", "max_jump": "2h"}


def details(directory: Path, source: dict[str, Any], **sections: Any) -> ErrorDetails:
    """How the errors of a job with this source are explained, as a writer gets it."""
    config = Config.model_validate(
        {
            "name": "clicks",
            "source": source,
            "key": ["user", "id"],
            "expiry": HOURLY,
            "store": {"url": "file:state"},
            "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
            **sections,
        },
        context={"base_dir": directory},
    )
    found = pickle.loads(pickle.dumps(error_details(config)))
    assert isinstance(found, ErrorDetails)
    return found


def detail(
    given: ErrorDetails, reason: Admission, raw: str | None, source: str = "", nulls: tuple[int, ...] | None = None
) -> str | None:
    """The detail of one row; `nulls` are its columns without a value, None where rows have no columns."""
    columns = {"_raw": pa.array([raw], pa.string())}
    for number in range(len(given.columns)) if nulls is not None else ():
        columns[parsed(number)] = pa.array([None if number in (nulls or ()) else 1])
    rows = pa.RecordBatch.from_pydict(columns)
    (found,) = Examination(given).details(rows, np.array([int(reason)], np.int8), [source]).to_pylist()
    assert found is None or isinstance(found, str)
    return found


ROW = '{"user":"a","id":1,"ts":"2024-01-01"}'


@pytest.mark.parametrize(
    ("reason", "raw", "nulls", "expected"),
    [
        (
            "malformed",
            '{"ts":"31/12/2024"}',
            (0, 1, 2),
            'ts: timestamp expected, text of 10 characters like "99/99/9999"',
        ),
        ("malformed", "x", (0, 1, 2), "the line is no object"),
        ("malformed", f"\ufeff{ROW}", (0, 1, 2), "a byte order mark stands before the record"),
        ("malformed", '\ufeff{"id":"1"}', (0, 1, 2), "a byte order mark stands before the record"),
        ("malformed", ROW, (0, 1, 2), "the line is no record of its format"),
        ("invalid_utf8", base64.b64encode(b"\xff{}").decode(), (0, 1, 2), "bytes that are not UTF-8"),
        (
            "invalid_utf8",
            base64.encodebytes(b"\x1f\x8b" + bytes(range(200))).rstrip().replace(b"\n", b"\r\n").decode(),
            (0, 1, 2),
            "bytes that are not UTF-8, beginning as gzip does",
        ),
        ("null_key", '{"id":null,"usr":"a"}', (0, 1, 2), "user: no such field; id: null"),
        ("null_key", '{"id":null,"user":"a"}', (1, 2), "id: null"),
        ("null_expiry", '{"id":1,"user":"a"}', (2,), "ts: no such field"),
        ("bad_expiry", ROW, (), "ts: beyond 64 bits of microseconds since 1970"),
        ("ahead_of_now", ROW, (), "ts: more than 1h ahead of the wall clock (max_ahead_of_now)"),
        ("jump_too_far", ROW, (), "ts: more than 2h ahead of the latest point (max_jump)"),
        ("tombstone", None, (0, 1, 2), "the record has no value"),
        ("file_changed", ROW, (), "the file has changed since the window began"),
        ("file_missing", "in/x: gone", (0, 1, 2), "the file was listed, and is gone"),
        ("file_unreadable", "in/x: torn", (0, 1, 2), "the file cannot be read; `raw` has the error"),
    ],
)
def test_each_reason_has_its_detail(
    tmp_path: Path, reason: str, raw: str | None, nulls: tuple[int, ...], expected: str
) -> None:
    """Of lines of JSON in files."""
    assert detail(details(tmp_path, FILES), Admission[reason.upper()], raw, nulls=nulls) == expected


def test_every_reason_of_an_error_is_covered(tmp_path: Path) -> None:
    """A reason that is added gets a detail."""
    given = details(tmp_path, FILES)
    for admission in Admission:
        if admission.verdict is TupleVerdict.ERROR:
            assert detail(given, admission, "x", nulls=(0, 1, 2)), admission


def test_csv(tmp_path: Path) -> None:
    """Fields by their place."""
    given = details(tmp_path, FILES | {"file_format": "csv", "delimiter": ";"})
    assert detail(given, Admission.MALFORMED, "user;id;ts") == (
        'id: bigint expected, text of 2 characters like "aa"; ts too'
    )
    assert detail(given, Admission.MALFORMED, "\ufeffa;1;2024;b") == "the line has 4 fields, 3 columns are declared"
    assert detail(given, Admission.MALFORMED, "\ufeffa;x;2024") == ('id: bigint expected, text of 1 character like "a"')
    assert detail(given, Admission.MALFORMED, '\ufeff"a;b";1;2024') == "a byte order mark stands before the record"
    assert detail(given, Admission.NULL_KEY, ";1;2024", nulls=(0,)) == "user: an empty field"
    assert detail(given, Admission.NULL_EXPIRY, "a;1", nulls=(2,)) == "ts: the line ends before it"


def test_values_of_folders(tmp_path: Path) -> None:
    """A column that the folders give is no field of the line; its text is masked too."""
    given = details(tmp_path, FILES | {"schema": "id bigint, user string, ts timestamp, day date"}, key=["user", "day"])
    bad = f"{tmp_path}/in/day=Monday/a.json"
    assert detail(given, Admission.MALFORMED, ROW, bad) == (
        'day: date expected, the path of the file has text of 6 characters like "aaaaaa"'
    )
    null = f"{tmp_path}/in/day=__HIVE_DEFAULT_PARTITION__/a.json"
    assert detail(given, Admission.NULL_KEY, ROW, null, nulls=(3,)) == "day: null in the path of the file"
    named = details(
        tmp_path,
        FILES | {"schema": "user string, id bigint, ts timestamp, day date", "name_pattern": r"(?P<day>.*)\.json"},
        key=["user", "day"],
    )
    assert detail(named, Admission.MALFORMED, ROW, f"{tmp_path}/in/a.txt") == (
        "day: the name of the file does not match name_pattern"
    )
    assert detail(named, Admission.MALFORMED, ROW, f"{tmp_path}/in/Monday.json") == (
        'day: date expected, the path of the file has text of 6 characters like "aaaaaa"'
    )
    csv = details(tmp_path, FILES | {"file_format": "csv", "schema": "day date, user string, id bigint, ts timestamp"})
    assert detail(csv, Admission.NULL_KEY, ",1", f"{tmp_path}/in/day=2024-01-01/a.csv", nulls=(1,)) == (
        "user: an empty field"
    )


def test_parquet(tmp_path: Path) -> None:
    """There is no text: the columns that are null are named."""
    given = details(
        tmp_path, FILES | {"file_format": "parquet", "schema": "user string, id int, n int, ok boolean, ts timestamp"}
    )
    assert detail(given, Admission.NULL_KEY, None, nulls=(0,)) == "user: null, or no such column in the file"
    assert detail(given, Admission.MALFORMED, None, nulls=(0, 1, 3)) == (
        "id: int expected, the file has a value that is none"
    )
    assert detail(given, Admission.MALFORMED, None, nulls=(1, 2)) == (
        "the file has a value that is not one of its column's type: one of id, n"
    )
    assert detail(given, Admission.INVALID_UTF8, None, nulls=(0, 1)) == "user: bytes that are not UTF-8"


@pytest.mark.parametrize("has_columns", [False, True], ids=["topics", "files"])
def test_records_of_topics(tmp_path: Path, has_columns: bool) -> None:
    """Where ports are topics the columns are not at hand; a null outside the value is found by what is left."""
    given = details(tmp_path, TOPIC)

    def nulls(*numbers: int) -> tuple[int, ...] | None:
        return numbers if has_columns else None

    assert detail(given, Admission.NULL_KEY, '{"id":1}', nulls=nulls(3)) == "user (the record's key): null"
    assert detail(given, Admission.NULL_KEY, '{"ID":1}', nulls=nulls(0)) == "id: no such field"
    assert detail(given, Admission.NULL_EXPIRY, None, nulls=nulls(0, 1, 2)) == "ts: the record has no value"
    assert detail(given, Admission.MALFORMED, '{"tags":"x"}', nulls=nulls()) == (
        'tags: array<string> expected, text of 1 character like "a"'
    )
    assert detail(given, Admission.INVALID_UTF8, '{"id":1}', nulls=nulls()) == (
        "bytes that are not UTF-8 in a part of the record: key"
    )


AVRO = {"type": "record", "name": "click", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize("value", [{"format": "json", "schema": "id long"}, {"format": "avro", "avro_schema": AVRO}])
def test_the_timestamp_of_a_record(tmp_path: Path, value: dict[str, Any]) -> None:
    """In nanoseconds it is beyond 64 bits; the value is sound."""
    record = {"user": "key", "at": "timestamp"}
    given = details(tmp_path, {**TOPIC, "value": value, "record": record}, expiry={"by": "never"})
    said = "at (the record's timestamp): beyond 64 bits of microseconds since 1970"
    assert detail(given, Admission.MALFORMED, '{"id":1}', nulls=(2,)) == said
    if value["format"] == "json":  # without the columns a datum is not read once more
        assert detail(given, Admission.MALFORMED, '{"id":1}') == said


def test_avro_and_text(tmp_path: Path) -> None:
    """Their values have no fields that could be named."""
    text = details(
        tmp_path,
        {**TOPIC, "value": {"format": "text"}, "record": {"user": "key", "id": "header:id", "at": "timestamp"}},
        expiry={**HOURLY, "field": "at"},
    )
    assert (
        detail(text, Admission.NULL_KEY, "x") == "null in one of user (the record's key), id (the record's header:id)"
    )
    assert detail(text, Admission.NULL_KEY, "x", nulls=(2,)) == "id (the record's header:id): null"


def test_a_failure_of_the_explanation_is_none_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows have no detail, one line is logged, without the record."""
    monkeypatch.setattr("deduper.tasks.errors.detail._malformed", lambda *_: 1 / 0)
    given = details(tmp_path, FILES)
    rows = pa.RecordBatch.from_pydict({"_raw": pa.array(["Zq7xW", "Zq7xW"])})
    found = Examination(given).details(rows, np.full(2, int(Admission.MALFORMED), np.int8), ["", ""])
    assert found.to_pylist() == [None, None]
    assert len(caplog.records) == 1
    assert "Zq7xW" not in caplog.text
