"""Columns in the names of folders: what Spark's reader of such a table gives, in every format, by both readers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.spark.harness import Job

pytestmark = pytest.mark.spark

_NEVER = {"by": "never"}


def add(job: Job, folder: str, records: list[dict[str, Any]]) -> Path:
    """A file of these records in a folder below the source's, in the source's format."""
    kind = job.settings["source"]["file_format"]
    path = job.directory / "in" / folder / f"a.{kind}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    elif kind == "json":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text("".join(",".join(map(str, record.values())) + "\n" for record in records))
    return path


def seen(job: Job, port: str, *names: str) -> list[tuple[Any, ...]]:
    """These columns of a port's rows, sorted by their texts."""
    return sorted((tuple(row[name] for name in names) for row in job.rows(port)), key=str)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_a_folder_gives_a_column(new_job: Callable[..., Job], kind: str) -> None:
    """As a part of the key too; over what the file says; null where the folder says so; elsewhere from the file."""
    job = new_job(
        source={"file_format": kind, "schema": "day date, k string, `h our` tinyint, n int"},
        key=["k", "day", "h our"],
        null_keys="allow",
        expiry=_NEVER,
    )
    rest = {"n": 1}
    add(job, "DAY=2024-01-31/h our=05", [{"k": "a"} | rest, {"k": "a"} | rest])
    add(job, "DAY=2024-02-01/h our=05", [{"k": "a"} | rest])
    add(job, "DAY=__HIVE_DEFAULT_PARTITION__/h our=-6", [{"k": "a"} | rest])
    if kind != "csv":
        add(job, "DAY=2024-02-02/h our=7", [{"day": "no day", "k": "b", "more": 1, "n": 2}])
    job.run()
    expected = [
        ("a", date(2024, 1, 31), 5, 1),
        ("a", date(2024, 2, 1), 5, 1),
        ("a", None, -6, 1),
        *([("b", date(2024, 2, 2), 7, 2)] if kind != "csv" else []),
    ]
    assert seen(job, "unique", "k", "day", "h our", "n") == sorted(expected, key=str)
    assert seen(job, "duplicate", "k", "day") == [("a", date(2024, 1, 31))]
    assert not job.rows("error")


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_value_that_is_not_of_its_type(new_job: Callable[..., Job], kind: str) -> None:
    """Its records are malformed, each with its text and its other columns; the other folders are judged."""
    job = new_job(source={"file_format": kind, "schema": "k string, n int, d date"}, expiry=_NEVER)
    add(job, "n=one", [{"k": "a"}, {"k": "b"}])
    add(job, "n=3000000000", [{"k": "c"}])
    add(job, "n=1.5", [{"k": "d"}])
    add(job, "n=1", [{"k": "e", "d": None}])
    job.run()
    assert seen(job, "unique", "k", "n") == [("e", 1)]
    errors = {row["k"]: row for row in job.rows("error")}
    assert sorted(errors) == ["a", "b", "c", "d"]
    assert {(row["n"], row["_dedup"]["reason"]) for row in errors.values()} == {(None, "malformed")}
    assert errors["a"]["_dedup"]["raw"] == ('{"k": "a"}' if kind == "json" else None)


def test_files_beside_folders(new_job: Callable[..., Job]) -> None:
    """A column of a file that no folder gives is that of the file; a folder of an undeclared name gives nothing.

    The file's name gives a column too, and a file that is cut off its whole lines and an error.
    """
    pattern = r"(?P<of>\w+)\.json.*"
    job = new_job(
        source={"file_format": "json", "schema": "k string, n int, of string", "name_pattern": pattern}, expiry=_NEVER
    )
    for folder in (".", "n=1/x=y", "n=2/x=z"):
        add(job, folder, [{"k": folder, "n": 7}])
    lines = "".join(json.dumps({"k": str(number), "n": 7}) + "\n" for number in range(3))
    (job.directory / "in/cut.json.gz").write_bytes(gzip.compress(lines.encode())[:-8])
    job.run()
    whole = [(str(number), 7, "cut") for number in range(3)]
    assert seen(job, "unique", "k", "n", "of") == sorted(
        [*whole, (".", 7, "a"), ("n=1/x=y", 1, "a"), ("n=2/x=z", 2, "a")]
    )
    (error,) = job.rows("error")
    assert error["_dedup"]["reason"] == "file_unreadable"
    assert "cut off behind line 3" in error["_dedup"]["raw"]


_PLAIN = {
    "string": ["a%2Fb", "é", "'\\\"; --", " "],
    "tinyint": ["-5", "007", "127", "__HIVE_DEFAULT_PARTITION__"],
    "bigint": [str(2**63 - 1), "0", "-1", "00"],
    "date": ["2024-01-31", "0001-01-01", "9999-12-31", "1582-10-10"],
}
_CAST = {
    "double": ["1.5", "1e300", "-0.0", "NaN"],
    "decimal(9,2)": ["1.25", "-7.00", "0.01", "1234567.89"],
    "boolean": ["true", "FALSE", "true", "__HIVE_DEFAULT_PARTITION__"],
    "date": ["2024-1-5", "2024", "2024-01", "2024-01-31"],
    "timestamp": [
        "2024-01-31 12%3A30%3A00",
        "2024-01-31",
        "2024-01-31T12%3A30%3A00+05%3A45",
        "2024-03-10 02%3A30%3A00",
    ],
    "timestamp_ntz": ["2024-01-31 12%3A30%3A00.123456", "2024-01-31", "0001-01-01", "9999-12-31"],
    "binary": ["abc", "x", "05", "'"],
}


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.night), "America/New_York"])
@pytest.mark.parametrize(
    ("kind", "types"), [("parquet", _PLAIN), ("parquet", _CAST), ("json", _PLAIN), ("json", {**_PLAIN, **_CAST})]
)
def test_values_are_those_of_sparks_reader(
    session: SparkSession, new_job: Callable[..., Job], kind: str, types: dict[str, list[str]], zone: str
) -> None:
    """Of every scalar type, however written, in the session's time zone."""
    names = {f"c{number}": (name, texts) for number, (name, texts) in enumerate(types.items())}
    schema = ", ".join(["k string", *(f"{column} {name}" for column, (name, _) in names.items())])
    settings = {"spark.sql.session.timeZone": zone}
    job = new_job(source={"file_format": kind, "schema": schema}, expiry=_NEVER, spark=settings)
    for number in range(4):
        folders = "/".join(f"{column}={texts[number]}" for column, (_, texts) in names.items())
        add(job, folders, [{"k": f"{number}{n}"} for n in range(3)])
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        job.run()
        columns = ["k", *names]
        expected = session.read.schema(schema).format(kind).load(str(job.directory / "in")).select(columns)
        found = session.read.parquet(str(job.directory / "out/unique")).select(columns)
        assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
        assert found.count() == 12
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
