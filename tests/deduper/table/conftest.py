"""The place that tests of tables begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deduper.table.scene import CONFIG, Place


@pytest.fixture(params=["delta", "parquet"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place for a table of each format, with a config file beside it; there are no files to load."""
    (tmp_path / "load.yaml").write_text(CONFIG.replace("FORMAT", request.param), encoding="utf-8")
    return Place(tmp_path, request.param)
