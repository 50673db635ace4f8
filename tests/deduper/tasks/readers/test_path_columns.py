"""Columns in the paths of files: which texts they have, and which values these are."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pytest

from deduper.columns import parse_columns
from deduper.core.digests import key_type
from deduper.tasks.readers.path_columns import NoValue, PathRule, path_value

_COLUMNS = parse_columns("k string, `Day` date, n int, `a b` string, deep struct<x: int>")


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/in/a.json", {}),
        ("/in/Day=2024-01-31/a.json", {"Day": "2024-01-31"}),
        ("/in/day=2024-01-31/a.json", {"Day": "2024-01-31"}),
        ("/in/x/n=1/y/k=z/a.json", {"n": "1", "k": "z"}),
        ("/in/n=1/n=2/a.json", {"n": "2"}),
        ("/in/k=a=b/a.json", {"k": "a=b"}),
        ("/in/k=__HIVE_DEFAULT_PARTITION__/a.json", {"k": None}),
        ("/in/k=a%2Fb%3a%25%zz%4/a.json", {"k": "a/b:%%zz%4"}),
        ("/in/a%20b= c /a.json", {"a b": " c "}),
        ("/in/k=é/a.json", {"k": "é"}),
        ("/in/k=/a.json", {"k": ""}),
        ("/in/k/a.json", {}),
        ("/in/=x/a.json", {}),
        ("/in/other=1/a.json", {}),
        ("/in/deep=1/a.json", {}),
        ("/in/k=x.json", {}),
        ("/k=x/in2/a.json", {}),
    ],
)
def test_folders_between_the_source_and_the_file(path: str, texts: dict[str, str | None]) -> None:
    """Only folders named name=value of a declared scalar column count, in any case, unescaped; the innermost wins."""
    assert PathRule(Path("/in")).texts(path, _COLUMNS) == texts


def test_folders_above_the_source_give_nothing() -> None:
    """What lies above the first wildcard, or is the source itself, is no folder of the table."""
    assert PathRule(Path("/n=1/in")).texts("/n=1/in/k=a/b.json", _COLUMNS) == {"k": "a"}
    assert PathRule(Path("/in/k=a/b.json")).texts("/in/k=a/b.json", _COLUMNS) == {}


PATTERN = r"(?P<k>[a-z]+)-(?P<Day>\d{4}-\d{2}-\d{2})(?:\.(?P<n>\d+))?\.log.*"
DAY = {"k": "web", "Day": "2024-01-06"}


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/in/web-2024-01-06.log", {**DAY, "n": None}),
        ("/in/web-2024-01-06.3.log.gz", {**DAY, "n": "3"}),
        ("/in/k=folder/n=1/web-2024-01-06.log", {**DAY, "n": None}),
        ("/in/a b=1/web-2024-01-06.log", {**DAY, "n": None, "a b": "1"}),
        ("/in/web-2024-01-06.txt", dict.fromkeys(("k", "Day", "n"), NoValue.OTHER_NAME)),
        ("/in/2web-2024-01-06.log", dict.fromkeys(("k", "Day", "n"), NoValue.OTHER_NAME)),
        ("/elsewhere/web-2024-01-06.log", {**DAY, "n": None}),
    ],
)
def test_groups_in_the_name_of_a_file(path: str, texts: dict[str, object]) -> None:
    """The pattern is one for the whole name; its groups come before folders; under another name they have no values."""
    assert PathRule(Path("/in"), PATTERN).texts(path, _COLUMNS) == texts


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (None, "date", None),
        (" a ", "string", " a "),
        ("", "string", ""),
        ("a", "binary", b"a"),
        ("007", "int", 7),
        (" +1\x7f", "int", 1),
        ("-128", "tinyint", -128),
        (str(2**63 - 1), "bigint", 2**63 - 1),
        ("2024-02-29", "date", 19_782),
        ("2024-1-5 noon", "date", 19_727),
        ("2024", "date", 19_723),
        ("1.5", "double", 1.5),
        ("-inf", "float", -math.inf),
        ("1.005", "decimal(9,2)", Decimal("1.01")),
        (" Y ", "boolean", True),
        ("0", "boolean", False),
        ("2024-01-01 00:00:00", "timestamp", 1_704_067_200_000_000 - 3_600_000_000),
        ("2024-01-01 00:00:00Z", "timestamp", 1_704_067_200_000_000),
        ("2024-01-01T00:00:00", "timestamp_ntz", 1_704_067_200_000_000),
        ("2024-01-01T00:00:00+05:00", "timestamp_ntz", 1_704_067_200_000_000),
    ],
)
def test_values(text: str | None, kind: str, value: object) -> None:
    """As Spark casts a text that stands alone, in a zone."""
    assert path_value(text, key_type(kind), "Europe/Paris") == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("128", "tinyint"),
        (str(2**63), "bigint"),
        ("", "int"),
        ("\u0661", "int"),
        ("1.0", "int"),
        ("20240105", "date"),
        ("2024-02-30", "date"),
        ("", "date"),
        ("1,5", "double"),
        ("1,5", "decimal(9,2)"),
        ("1e9", "decimal(9,2)"),
        ("on", "boolean"),
        ("12:30:00", "timestamp"),
        ("2024-01-01T00:00:00Mars", "timestamp_ntz"),
        ("\udcff", "string"),
    ],
)
def test_texts_that_are_no_values(text: str, kind: str) -> None:
    """Nor is a name that is no UTF-8: two of them could be equal as texts."""
    assert isinstance(path_value(text, key_type(kind), "UTC"), NoValue)
