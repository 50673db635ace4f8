"""Folders that have to be apart, by any of their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.apart import clashes, overlap
from deduper.config.load import load_config
from deduper.config.problems import ConfigError
from tests.deduper.store_samples import CONFIG_TEXT


def test_folders_of_this_machine(tmp_path: Path) -> None:
    """Links and `..` are resolved, also of folders that are not there yet."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    assert overlap(tmp_path / "real/a", tmp_path / "link/a")
    assert overlap(tmp_path / "real/a/b", str(tmp_path / "x/../link/a"))
    assert not overlap(tmp_path / "real/a", tmp_path / "link/ab")


def test_urls() -> None:
    """HDFS resolves `..` and the case of a host; object stores have names."""
    assert overlap("hdfs://nn:9000/a/b", "hdfs://NN:9000/a/x/../b/c")
    assert not overlap("hdfs://nn:9000/a", "hdfs://other:9000/a")
    assert not overlap("/a", "hdfs://nn:9000/a")
    assert overlap("s3://bucket/a", "s3://bucket/a/b")
    assert not overlap("s3://bucket/a/b", "s3://bucket/a/x/../b")


def test_pairs(tmp_path: Path) -> None:
    """Each pair once, the later name first; others may lie in a flat folder, and not be it."""
    places = {"a": tmp_path, "b": tmp_path / "in", "none": None, "c": tmp_path / "in"}
    found = [(clash.name, clash.other, clash.is_same) for clash in clashes(places)]
    assert found == [("b", "a", False), ("c", "a", False), ("c", "b", True)]
    assert [clash.name for clash in clashes(places, flat="a")] == ["c"]


def test_ports_of_a_job_behind_a_link(tmp_path: Path) -> None:
    """Two names of one folder are refused, as one name is."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out", target_is_directory=True)
    text = CONFIG_TEXT
    for port, path in (("unique", "out/rows"), ("duplicate", "link/more/../rows")):
        text = text.replace(f"{port}: {{format: none}}", f"{port}: {{format: parquet, path: {path}}}")
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is also the path of port `unique`"):
        load_config(tmp_path / "job.yaml", environment={})
