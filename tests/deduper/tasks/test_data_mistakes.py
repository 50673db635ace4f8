"""Mistakes in data, as people make them: what of them reaches whom, in which words. Nothing of a value is in them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.core.clock import PartitionClock
from deduper.core.verdict import REASONS, Admission, TupleVerdict
from deduper.sources.declared_columns import file_reading
from deduper.sources.error_details import error_details
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks import layout
from deduper.tasks.errors.causes import ErrorCounts
from deduper.tasks.errors.detail import Examination
from deduper.tasks.readers.file_parts import FileFault
from deduper.window.policy import clock_rules, fixed_settings
from tests.deduper.digest_cases import SALT

CANARY = "Zq7xW"
NOW_US = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1_000_000)
CSV = {"file_format": "csv"}
EPOCH = {"schema": "user string, id bigint, ts bigint"}


@dataclass(frozen=True)
class Outcome:
    """The records of a file by reason, `ok` for those without one, the details of errors, the causes of the warning.

    A file that is left to Spark, or that nobody can read, has the reason for it in `refusal`.
    """

    records: Mapping[str, int] = field(default_factory=dict)
    details: tuple[str | None, ...] = ()
    causes: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class File:
    """A file as somebody made it, and the job's `source` and `expiry.unit` as somebody wrote them."""

    content: bytes
    name: str = "a.json"
    source: Mapping[str, Any] = field(default_factory=dict)
    unit: str | None = None


def outcome_of(directory: Path, file: File) -> Outcome:
    """What a job that starts at noon of 1 June 2026 makes of a file: its errors as a writer counts them."""
    expiry = {"by": "event_time", "field": "ts", "period": "24h", "max_ahead_of_now": "1h"}
    config = Config.model_validate(
        {
            "name": "clicks",
            "source": {
                "format": "files",
                "path": "in",
                "file_format": "json",
                "schema": "user string, id bigint, ts timestamp",
                **file.source,
            },
            "key": ["user", "id"],
            "expiry": expiry | ({} if file.unit is None else {"unit": file.unit}),
            "store": {"url": "file:state"},
            "sinks": {port: {"format": "parquet", "path": port} for port in PORTS},
        },
        context={"base_dir": directory},
    )
    path = directory / "in" / file.name
    path.parent.mkdir()
    path.write_bytes(file.content)
    assert isinstance(config.source, FilesSource)
    reading = file_reading(config, config.source, SALT)
    log = CommitLog.create(local_place(config.store.path), fixed_settings(config), wall_us=NOW_US)
    rules = clock_rules(config, log.state, NOW_US)
    assert rules is not None
    clock, given = PartitionClock(rules), error_details(config)
    examination, counts = Examination(given), ErrorCounts(given)
    records: Counter[str] = Counter()
    details: list[str | None] = []
    try:
        part = reading.part(0, stat_files([ListedFile(str(path), 0)])[0])
        for batch in () if part is None else reading.records(part, rules):
            order, expiry_key, admission = (
                batch.column(name).to_numpy(zero_copy_only=False)
                for name in (layout.ORDER, layout.EXPIRY, layout.ADMISSION)
            )
            codes = clock.run(order, np.nan_to_num(expiry_key).astype(np.int64), admission)[0]
            records.update("ok" if code == Admission.ADMITTED else REASONS[code] for code in codes.tolist())
            wrong = np.array([Admission(code).verdict is TupleVerdict.ERROR for code in codes.tolist()])
            rows = batch.filter(pa.array(wrong))
            found = examination.details(rows, codes[wrong].astype(np.int8), [str(path)] * rows.num_rows).to_pylist()
            counts.add(codes[wrong].tolist(), found, rows.column(layout.RAW), [str(path)] * rows.num_rows)
            details += found
    except FileFault as exc:
        return Outcome(refusal=str(exc).replace(f"{directory}/", ""))
    summary = counts.summary()
    return Outcome(dict(records), tuple(dict.fromkeys(details)), () if summary is None else summary.causes)


def line(ts: str = '"2026-06-01T11:00:00Z"', number: str = "1", user: str = f'"{CANARY}"') -> bytes:
    """A line of JSON."""
    return f'{{"user":{user},"id":{number},"ts":{ts}}}\n'.encode()


def parquet_file(**columns: list[Any]) -> bytes:
    """A file of these columns."""
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


GOOD = line()
DECIMALS = {"file_format": "csv", "delimiter": ";", "schema": "user string, id double, ts timestamp"}
PARQUET = {"file_format": "parquet"}
TEXTS = {"file_format": "csv", "schema": "user string, id string, ts timestamp"}
AHEAD = "ts: more than 1h ahead of the wall clock (max_ahead_of_now)"
NO_PARQUET = "no Parquet file, or not the whole of one: it does not end in PAR1"


def one(reason: str, detail: str, *causes: str) -> Outcome:
    """A file of one record, which is an error."""
    return Outcome({reason: 1}, (detail,), causes)


MISTAKES: dict[str, tuple[File, Outcome]] = {
    "another delimiter": (
        File(f"{CANARY};1;2026-06-01\n".encode(), "a.csv", CSV),
        one("null_key", "id: the line ends before it", "the delimiter of the lines may be `;`"),
    ),
    "another delimiter, all texts": (
        File(f"{CANARY}|1|2026-06-01\n".encode(), "a.csv", TEXTS),
        one("null_key", "id: the line ends before it", "the delimiter of the lines may be `|`"),
    ),
    "a header as data": (
        File(f"user,id,ts\n{CANARY},1,2026-06-01\n".encode(), "a.csv", CSV),
        Outcome(
            {"malformed": 1, "ok": 1},
            ('id: bigint expected, text of 2 characters like "aa"; ts too',),
            ("the files begin with a line of column names: set `source.header: true`",),
        ),
    ),
    "a comma in a text without quotes": (
        File(f"{CANARY}, Inc,1,2026-06-01\n".encode(), "a.csv", CSV),
        one("malformed", "the line has 4 fields, 3 columns are declared"),
    ),
    "decimal commas": (
        File(f"{CANARY};1.234,50;2026-06-01\n".encode(), "a.csv", DECIMALS),
        one(
            "malformed",
            'id: double expected, text of 8 characters like "9.999,99"',
            "id has numbers with a comma: write a point, and no sign between thousands",
        ),
    ),
    "a byte order mark": (File(b"\xef\xbb\xbf" + GOOD), Outcome({"ok": 1})),
    "UTF-16": (
        File((GOOD * 3).decode().encode("utf-16")),
        Outcome(refusal="its text is UTF-16 or UTF-32, by its first bytes: write it as UTF-8"),
    ),
    "UTF-16 without a mark": (
        File((GOOD * 3).decode().encode("utf-16-le")),
        Outcome(
            {"malformed": 4},
            ("no name and colon begin a member", "the line is no object"),
            ("the data is UTF-16: write UTF-8",),
        ),
    ),
    "Latin-1": (
        File(line(user='"Jos\u00e9"').decode().encode("latin-1")),
        one(
            "invalid_utf8",
            "bytes that are not UTF-8",
            "texts are in Latin-1 or a code page of Windows: write UTF-8",
        ),
    ),
    "milliseconds in a timestamp": (
        File(line("1780311600000")),
        one(
            "ahead_of_now",
            AHEAD,
            "ts has milliseconds since 1970, and a timestamp column takes seconds: declare `ts bigint` and set "
            "`expiry.unit: ms`",
        ),
    ),
    "milliseconds declared as seconds": (
        File(line("1780311600000"), source=EPOCH, unit="s"),
        one("ahead_of_now", AHEAD, "ts has milliseconds since 1970, and `expiry.unit` is s"),
    ),
    # Times of January 1970 are possible: nothing tells them from a mistake before later ones come.
    "seconds declared as milliseconds": (File(line("1780311600"), source=EPOCH, unit="ms"), Outcome({"ok": 1})),
    "local times without a zone": (
        File(line('"2026-06-01 13:59:00"')),
        one(
            "ahead_of_now",
            AHEAD,
            "ts has times without a zone, which are taken as UTC: write the zone, or set "
            "`spark.sql.session.timeZone`; or clocks differ",
        ),
    ),
    "dates of another country": (
        File(line('"01.06.2026 11:00"')),
        one(
            "malformed",
            'ts: timestamp expected, text of 16 characters like "99.99.9999 99:99"',
            'ts has texts like "99.99.9999 99:99", and timestamp takes `2024-12-31 23:59:59`',
        ),
    ),
    "a key with another name": (
        File(GOOD.replace(b'"user"', b'"user_id"')),
        one("null_key", "user: no such field", "they lack `user`, but have `user_id`"),
    ),
    "numbers in quotes": (
        File(line(number='"1"')),
        one(
            "malformed",
            'id: bigint expected, text of 1 character like "9"',
            "id has numbers in quotes: declare `id string`, or write them without",
        ),
    ),
    # Spark takes its JSON as the text.
    "an object as key": (File(line(user='{"id":7}')), Outcome({"ok": 1})),
    "gzip without its ending": (
        File(gzip.compress(GOOD * 9, mtime=0)),
        one(
            "invalid_utf8",
            "bytes that are not UTF-8, beginning as gzip does",
            "the data is compressed by gzip: end the names of such files in `.gz`",
        ),
    ),
    "an ending without gzip": (
        File(GOOD, "a.json.gz"),
        Outcome(refusal="zlib inflate failed: incorrect header check"),
    ),
    "a gzip cut off": (
        File(gzip.compress(GOOD * 9, mtime=0)[:-12], "a.json.gz"),
        Outcome({"ok": 1, "file_unreadable": 1}, ("the file cannot be read; `raw` has the error",)),
    ),
    "an empty file": (File(b""), Outcome()),
    "an empty gzip": (
        File(b"", "a.json.gz"),
        Outcome(refusal="empty, which is no compressed file"),
    ),
    "an array of records": (
        File(b"[" + GOOD.strip() + b"," + GOOD.strip() + b"]\n"),
        one(
            "malformed",
            "the line is no object",
            "a line begins an array: each record must be an object on a line of its own",
        ),
    ),
    "records over several lines": (
        File(json.dumps(json.loads(GOOD), indent=2).encode()),
        Outcome(
            {"malformed": 5},
            ("no name and colon begin a member", "the line is no object"),
            ("objects reach over several lines: each record must stand on one line",),
        ),
    ),
    "JSON read as CSV": (
        File(GOOD, "a.csv", CSV),
        one(
            "malformed",
            'id: bigint expected, text of 6 characters like ""aa":9"; ts too',
            "the lines look like JSON: is the format csv?",
        ),
    ),
    "CSV read as JSON": (
        File(f"{CANARY},1,2026-06-01\n".encode()),
        one("malformed", "the line is no object", "the lines look like CSV: is the format json?"),
    ),
    "a line end in quotes": (
        File(b'"hello\nworld",1,2026-06-01T11:00:00Z\n', "a.csv", CSV),
        Outcome(
            {"malformed": 1, "ok": 1},
            ("a quote is never closed",),
            (
                "a line ends within quotes: a record must stand on one line, and its second half may be taken for "
                "another record: write texts without line ends, or write JSON",
            ),
        ),
    ),
    "empty lines": (File(GOOD + b"\n\n" + GOOD), Outcome({"ok": 2, "malformed": 2}, ("the line is empty",))),
    "a last line cut off": (
        File(GOOD + GOOD[:20]),
        Outcome({"ok": 1, "malformed": 1}, ("no name and colon begin a member",)),
    ),
    "Parquet read as JSON": (
        File(parquet_file(user=["a"], id=[1])),
        Outcome(
            {"malformed": 1, "invalid_utf8": 1},
            ("the line is no object", "bytes that are not UTF-8"),
            ("the data is Parquet, not json",),
        ),
    ),
    "CSV read as Parquet": (File(b"user,id,ts\n", "a.parquet", PARQUET), Outcome(refusal=NO_PARQUET)),
    "a Parquet file cut off": (
        File(parquet_file(user=["a"], id=[1])[:-9], "a.parquet", PARQUET),
        Outcome(refusal=NO_PARQUET),
    ),
    "a Parquet column of another type": (
        File(parquet_file(user=[1], id=[1], ts=[1]), "a.parquet", PARQUET),
        Outcome(refusal="column user is declared string, the file has int64"),
    ),
    "a Parquet column with another name": (
        File(parquet_file(user_name=["a"], id=[1], ts=pa.array([0], pa.timestamp("us", "UTC"))), "a.parquet", PARQUET),
        one(
            "null_key",
            "user: null, or no such column in the file",
            "they lack `user`, but have `user_name`",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_these_words(mistake: str, tmp_path: Path) -> None:
    """And in no others."""
    file, expected = MISTAKES[mistake]
    found = outcome_of(tmp_path, file)
    assert found == expected
    assert CANARY not in f"{found.details}{found.causes}{found.refusal}"
