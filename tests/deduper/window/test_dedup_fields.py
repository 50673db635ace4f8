"""`_dedup` in the files of every port: the fields and types that `deduper.dedup_column` declares, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pyarrow import parquet

from deduper.arrow_columns import arrow_type
from deduper.config.schema import section_models
from deduper.config.sections import PORTS
from deduper.core.verdict import ExpiryBy
from deduper.query.rules import Expiry
from tests.deduper.plain_job import PlainJob

WINDOWS: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"k": "a", "t": 100, "v": 1}, {"k": "b", "t": 100, "v": 1}, {"k": "b", "t": 100, "v": 2}),
    ({"k": "a", "t": 100, "v": 1}, {"k": "a", "t": 100, "v": 2}, {"k": None, "t": 101, "v": 1}),
    ({"k": "c", "t": 9000, "v": 1},),
    ({"k": "d", "t": 100, "v": 1},),
)
"""Records of a window each: copies and conflicts in one window and in the next, an error; the last one is too late."""
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "event_time": ("long", {"by": "event_time", "field": "t", "unit": "s", "period": "10m", "span": "10m"}),
    "timestamp": ("timestamp", {"by": "event_time", "field": "t", "period": "10m", "span": "10m"}),
    "ordered": ("long", {"by": "ordered", "field": "t", "period": 600, "span": 600}),
    "double": ("double", {"by": "ordered", "field": "t", "period": 600, "span": 600}),
    "decimal": ("decimal(12,3)", {"by": "ordered", "field": "t", "period": 600, "span": 600}),
    "processing_time": ("long", {"by": "processing_time", "period": "1h"}),
    "category": ("string", {"by": "category", "field": "t", "live_categories": 1}),
    "never": ("long", {"by": "never"}),
}
CONFLICTS: dict[str, dict[str, Any]] = {
    "no fingerprint": {},
    **{way: {"fingerprint": {"columns": ["v"]}, "on_conflict": way} for way in ("duplicate", "error", "unique")},
}


def test_every_rule_of_expiry_is_here() -> None:
    """One that is added is judged, written and read here too, and a query has a class for it."""
    rules = {of["by"] for _, of in RULES.values()}
    assert rules == {*get_args(ExpiryBy)} == {kind for section, kind in section_models() if section == "expiry"}
    assert len(get_args(Expiry)) == len(rules)


def job_of(root: Path, rule: str, conflicts: str, *, first_seen: bool) -> PlainJob:
    """A job that has judged the windows."""
    kind, expiry = RULES[rule]
    source = {"format": "files", "path": "in", "file_format": "json", "max_files_per_batch": 1}
    given = {
        "source": source | {"schema": f"k string, t {kind}, v long"},
        "key": "k",
        "expiry": expiry,
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
        "spark": {"spark.master": "local[1]"},
        "store": {"url": "file:state", "shards": 2, "first_seen": first_seen, "tables": str(root / "tables")},
        **CONFLICTS[conflicts],
    }
    job = PlainJob(root, given)
    for number, records in enumerate(WINDOWS):
        lines = [json.dumps(one | {"t": _written(kind, one["t"])}) + "\n" for one in records]
        (root / "in" / f"{number}.json").write_text("".join(lines))
    job.run()
    return job


def _written(kind: str, at: Any) -> Any:
    if kind == "timestamp":
        return f"1970-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z"
    return str(at) if kind == "string" else at


@pytest.mark.parametrize("conflicts", CONFLICTS)
@pytest.mark.parametrize("first_seen", [True, False], ids=["first_seen", "no first_seen"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_have_the_declared_fields(rule: str, conflicts: str, first_seen: bool, tmp_path: Path) -> None:
    """Spark reads a field only if it is declared, with its type: each port, each rule of expiry, and what is kept."""
    job = job_of(tmp_path / "job", rule, conflicts, first_seen=first_seen)
    written: dict[str, dict[str, Any]] = {}
    for port in PORTS:
        declared = arrow_type(job.config.dedup_column.of(port).type)
        for file in (job.root / "out" / port).glob("*.parquet"):
            table = parquet.ParquetFile(file).read()
            assert table.schema.field("_dedup").type == declared, port
            written.setdefault(port, dict.fromkeys(field.name for field in declared))
            for row in table.column("_dedup").to_pylist():
                written[port] |= {name: value for name, value in row.items() if value is not None}
    assert written.keys() == {*PORTS} - ({"expired"} if rule in ("processing_time", "never") else set())
    declared_names = {field.name for port in PORTS for field in job.config.dedup_column.of(port).type.parts}
    values = {name for fields in written.values() for name, value in fields.items() if value is not None}
    assert values == declared_names, "each has a value in some row"
