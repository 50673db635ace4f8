"""Files that their writer has not finished wait; nothing of them is an error yet."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from deduper.errors import SourceAwayError
from deduper.sources.files.listing import unfinished
from deduper.sources.files.source_file import ListedFile


def found(root: Path, *, age_s: float = 0.0, is_parquet: bool = True) -> set[str]:
    """The names of the unfinished files below a folder."""
    modified_ms = int((time.time() - age_s) * 1000)
    paths = [path for path in root.rglob("*") if path.is_file() and "_spark_metadata" not in path.parts]
    files = [ListedFile(str(path), modified_ms, path.stat().st_size) for path in paths]
    return {Path(path).name for path in unfinished(files, root, is_parquet=is_parquet)}


@pytest.mark.parametrize(
    ("age_s", "is_parquet", "wanted"),
    [
        (0, True, {"empty", "short", "cut"}),
        (-300, True, {"empty", "short", "cut"}),
        (61, True, {"empty"}),
        (0, False, {"empty"}),
    ],
)
def test_a_young_parquet_file_without_its_end(tmp_path: Path, age_s: float, is_parquet: bool, wanted: set[str]) -> None:
    """An old one is an error, and so is one of another clock that is older; an empty one waits always."""
    for name, data in {"empty": b"", "short": b"PA", "cut": b"PAR1 rows", "whole": b"PAR1 rows PAR1"}.items():
        (tmp_path / name).write_bytes(data)
    assert found(tmp_path, age_s=age_s, is_parquet=is_parquet) == wanted


def test_the_log_of_sparks_sink_lists_what_is_whole(tmp_path: Path) -> None:
    """Of compact files the newest one, and the ones after it; partition folders lie below the log."""
    log, inner = tmp_path / "_spark_metadata", tmp_path / "day=1"
    log.mkdir()
    inner.mkdir()
    for name in ("a", "b c", "d", "failed"):
        (inner / name).write_text("{}\n", encoding="utf-8")

    def add(number: str, *names: str) -> None:
        entries = [json.dumps({"path": f"file:///x/day=1/{name}", "size": 3, "action": "add"}) for name in names]
        (log / number).write_text("\n".join(["v1", *entries]), encoding="utf-8")

    add("8", "a")
    assert found(tmp_path, is_parquet=False) == {"b c", "d", "failed"}
    add("9.compact", "a", "b%20c")
    assert found(tmp_path, is_parquet=False) == {"d", "failed"}
    add("10", "d")
    assert found(tmp_path, is_parquet=False) == {"failed"}
    (log / "11").write_text("v1\n{", encoding="utf-8")
    with pytest.raises(SourceAwayError, match="the log of Spark's file sink cannot be read"):
        found(tmp_path)
