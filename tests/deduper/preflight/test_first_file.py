"""Names of a file that are not those of the schema: a start says so before it judges a record by wrong columns."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.preflight import checks, first_records
from deduper.preflight.results import Failure, Start

GOOD = '{"user":"a","id":1,"ts":"2026-06-01T11:00:00Z","page":"/"}'
EXPECTED = "source.schema: {}: the header user, id, ts, page is expected; the first line "
DECLARE = "; declare the columns in the order of the files, by their names, or correct the files"
NULL = "; correct the schema: a column without a field of its name is null"
NO_HEADER = (
    "source.header: the first line of {} names the columns, and would be judged as a record; set `source.header: true`"
)
HEADER = {"header": True}

# The name of the file, its text, other settings of the source, and what is found.
CASES: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "a header as declared": ("a.csv", "User, id,ts,page\na,1,2,/\n", HEADER, []),
    "a header of the first columns": ("a.csv", "user,id,ts\n", HEADER, []),
    "a header in another order": ("a.csv", "id,user,ts,page\n", HEADER, [f"{EXPECTED}is id, user, ts, page{DECLARE}"]),
    "a header with another name": (
        "a.csv",
        "userId,id,ts,page\n",
        HEADER,
        [f"{EXPECTED}is userId, id, ts, page{DECLARE}"],
    ),
    "a header with a column more": (
        "a.csv",
        "n,user,id,ts,page\n",
        HEADER,
        [f"{EXPECTED}is n, user, id, ts, page{DECLARE}"],
    ),
    "no header where one is declared": (
        "a.csv",
        "Zq7xW,1,2026-06-01,/\n",
        HEADER,
        [f'{EXPECTED}has fields like "aa9aa", "9", "9999-99-99", "/"{DECLARE}'],
    ),
    "a header that is not declared": ("a.csv", '"user";id;ts;page\n', {"delimiter": ";"}, [NO_HEADER]),
    "a compressed header": ("a.csv.gz", "user,id,ts,page\n", {}, [NO_HEADER]),
    "records of CSV": ("a.csv", "a,1,2026-06-01,/\n", {}, []),
    "no line": ("a.csv", "", HEADER, []),
    "names of JSON as declared": ("a.json", GOOD, {}, []),
    "a field that is not needed": ("a.json", GOOD.replace(',"page":"/"', ""), {}, []),
    "a key with another name": (
        "a.json",
        GOOD.replace("user", "userId"),
        {},
        ["source.schema: the first record of {} has no `user`, but `userId`" + NULL],
    ),
    "another name of a column that is not needed": (
        "a.json",
        GOOD.replace("page", "pages"),
        {},
        ["source.schema: the first record of {} has no `page`, but `pages`" + NULL],
    ),
    "no expiry key": (
        "a.json",
        '{"user":"a","id":1,"Zq7xW":"2026"}',
        {},
        ["source.schema: the first record of {} has no `ts`" + NULL],
    ),
    "a name in a folder": ("user=a/a.json", GOOD.replace('"user":"a",', ""), {}, []),
    "a name that is no text, which Arrow opens not": ("\udcff.csv", "user,id,ts,page\n", {}, []),
    "a name that matches": ("a.json", GOOD.replace('"user":"a",', ""), {"name_pattern": r"(?P<user>\w+)\.json"}, []),
    "no name that matches": (
        "a.json",
        GOOD,
        {"name_pattern": r"(?P<user>\d+)\.json"},
        [
            "source.name_pattern: the name of no file matches, such as a.json; write a pattern for the whole name, "
            "with its ending"
        ],
    ),
    "names of logfmt": ("a.log", "user=a id=1 ts=2026-06-01T11:00:00Z page=/\n", {"file_format": "logfmt"}, []),
    "a key of logfmt with another name": (
        "a.log",
        "userId=a id=1 ts=2026-06-01T11:00:00Z page=/\n",
        {"file_format": "logfmt"},
        ["source.schema: the first record of {} has no `user`, but `userId`" + NULL],
    ),
    "no JSON": ("a.json", "{", {}, []),
    "no object": ("a.json", "[1]", {}, []),
    "an array of arrays": ("a.json", "[" * 100_000, {}, []),
    "a long field": ("a.csv", "a" * 200_000 + "\n", HEADER, [f'{EXPECTED}has fields like "{"a" * 32}…"{DECLARE}']),
    "a line of a megabyte": ("a.json", '{"user":"' + "a" * (1 << 20) + '"}', {}, []),
    "a null in a line": ("a.csv", "us\0er,id,ts,page\n", {}, [NO_HEADER]),
    "bytes for a text": ("a.json", "\udcff", {}, []),
    "an ending without gzip": ("a.json.gz", GOOD, {}, []),
}


def config_of(tmp_path: Path, kind: str, **source: Any) -> Config:
    """A job of files of a kind."""
    schema = "user string, id long, ts timestamp, page string"
    settings = {
        "name": "clicks",
        "source": {"format": "files", "path": "in", "file_format": kind, "schema": schema, **source},
        "key": ["user", "id"],
        "expiry": {"by": "event_time", "field": "ts", "period": "24h", "span": "1h"},
        "store": {"url": "file:state", "shards": 2},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return load_config(tmp_path / "job.yaml", environment={})


def found(config: Config) -> list[str]:
    """What the check finds."""
    return [str(one.error if isinstance(one, Failure) else one) for one in first_records.columns(Start(config))]


@pytest.mark.parametrize("case", CASES)
def test_names_of_a_file(case: str, tmp_path: Path) -> None:
    """Each difference has its words, and no value of a record is in them; a file that cannot be read has none."""
    name, text, source, messages = CASES[case]
    file = tmp_path / "in" / name
    file.parent.mkdir(parents=True)
    data = text.encode("utf-8", "surrogateescape")
    file.write_bytes(gzip.compress(data) if name == "a.csv.gz" else data)
    kind = "csv" if ".csv" in name else "json"
    said = found(config_of(tmp_path, kind, **source))
    assert said == [message.format(file) for message in messages]
    assert "Zq7xW" not in "".join(said)


LEAVE = "source.schema: {} of the {} first records of {} would leave by the error port ({}); {}"
JUDGED: dict[str, tuple[str, tuple[int, int, str, str] | None]] = {
    "good": (GOOD, None),
    "milliseconds for seconds": (
        GOOD.replace('"2026-06-01T11:00:00Z"', "1764419000000"),
        (
            *(2, 2, "ahead_of_now: ts: more than 1h ahead of the wall clock (max_ahead_of_now)"),
            "ts has milliseconds since 1970, and a timestamp column takes seconds: declare `ts bigint` and set "
            "`expiry.unit: ms`",
        ),
    ),
    "numbers in quotes": (
        GOOD.replace('"id":1', '"id":"1"'),
        (
            *(2, 2, 'malformed: id: bigint expected, text of 1 character like "9"'),
            "id has numbers in quotes: declare `id string`, or write them without",
        ),
    ),
    "Latin-1": (
        GOOD.replace('"/"', '"caf\udce9"'),
        (2, 2, "invalid_utf8", "texts are in Latin-1 or a code page of Windows: write UTF-8"),
    ),
}


@pytest.mark.parametrize("case", JUDGED)
def test_the_first_records_are_judged(case: str, tmp_path: Path) -> None:
    """The likely cause is the one that the error rows would have; a last line without its end may not be whole."""
    line, expected = JUDGED[case]
    file = tmp_path / "in/a.json"
    file.parent.mkdir()
    file.write_bytes(f"{line}\n{line}\n{{".encode("utf-8", "surrogateescape"))
    wanted = [] if expected is None else [LEAVE.format(*expected[:2], file, *expected[2:])]
    assert found(config_of(tmp_path, "json")) == wanted


def test_a_name_beside_others_that_does_not_match_is_a_warning(tmp_path: Path) -> None:
    """Its records would be errors, and those of the others are judged."""
    (tmp_path / "in").mkdir()
    for name in ("7.json", "README"):
        (tmp_path / "in" / name).write_text(GOOD + "\n")
    assert found(config_of(tmp_path, "json", name_pattern=r"(?P<id>\d+)\.json"))[0] == (
        f"source.name_pattern: the name of {tmp_path}/in/README does not match, so its records would leave by the "
        "error port; change the pattern, or name the files in `source.path` by a wildcard"
    )


def test_the_types_of_parquet_are_those_of_the_schema(tmp_path: Path) -> None:
    """By the footer of a file."""
    (tmp_path / "in").mkdir()
    types = {"user": pa.string(), "id": pa.string(), "ts": pa.timestamp("us", "UTC")}
    file = tmp_path / "in/a.parquet"
    parquet.write_table(pa.table({name: pa.array([], kind) for name, kind in types.items()}), file)
    assert found(config_of(tmp_path, "parquet")) == [
        f"source.schema: {file} would leave as an error: column id is declared bigint, the file has string; "
        "correct the type in the schema"
    ]


def test_a_long_field_is_cut_whatever_limit_the_process_has_set(tmp_path: Path) -> None:
    """The limit of the csv module is the whole process's, and reading error rows lifts it."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        test_names_of_a_file("a long field", tmp_path)
    finally:
        csv.field_size_limit(limit)


def test_names_of_parquet(tmp_path: Path) -> None:
    """They count in any case; a file that is no Parquet says nothing here."""
    folder = tmp_path / "in"
    folder.mkdir()
    config = config_of(tmp_path, "parquet")
    assert found(config) == []
    types = {"USER": pa.string(), "id": pa.int64(), "ts": pa.timestamp("us", "UTC")}
    parquet.write_table(pa.table({name: pa.array([], kind) for name, kind in types.items()}), folder / "a.parquet")
    assert found(config) == []
    (folder / "a.parquet").write_bytes(b"PAR1")
    assert found(config) == []
    types["user_id"] = types.pop("USER")
    parquet.write_table(pa.table({name: pa.array([], kind) for name, kind in types.items()}), folder / "a.parquet")
    assert found(config) == [
        f"source.schema: the first record of {folder}/a.parquet has no `user`, but `user_id`" + NULL
    ]


def test_a_start_refuses_files_of_another_header_and_logs_one_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With exit code 2; one file among others leaves as an error, and stops no start."""
    monkeypatch.setattr(checks, "CHECKS", tuple(check for check in checks.CHECKS if check.name == "columns"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("id,user,ts,page\n", encoding="utf-8")
    config = config_of(tmp_path, "csv", header=True)
    with pytest.raises(UsageError, match="the first line is id, user, ts, page; declare"):
        checks.require(Start(config))
    (tmp_path / "in/b.csv").write_text("user,id,ts,page\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        checks.require(Start(config))
    is_first = next(iter(os.scandir(tmp_path / "in"))).name == "a.csv"
    assert ("the file leaves as `file_header`; correct it" in caplog.text) == is_first
    assert found(config_of(tmp_path, "csv", path="elsewhere")) == []
