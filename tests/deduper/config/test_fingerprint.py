"""The settings `fingerprint` and `on_conflict`: what they take, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deduper.config.load import load_config
from deduper.config.problems import ConfigError

SECTIONS = {
    "name": "x",
    "source": {
        "format": "files",
        "path": "in",
        "file_format": "json",
        "schema": "id string, at timestamp, meta struct<sent: timestamp, os: string>, page string",
    },
    "key": "id",
    "expiry": {"by": "never"},
    "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
}


def load(folder: Path, **settings: Any) -> Any:
    """The configuration with these settings."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(SECTIONS | settings))
    return load_config(file, environment={})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("none", []),
        ("all", ["at", "meta.sent", "meta.os", "page"]),
        ({"columns": ["page", "meta"]}, ["meta.os", "meta.sent", "page"]),
        ({"columns": "meta.os"}, ["meta.os"]),
        ({"except": ["at", "meta.sent"]}, ["meta.os", "page"]),
    ],
)
def test_a_payload_is_named_by_columns_and_paths(given: Any, names: list[str], tmp_path: Path) -> None:
    """And the same setting comes back from what the configuration says of itself."""
    config = load(tmp_path, fingerprint=given)
    assert [leaf.name for leaf in config.payload] == names
    assert config.has_fingerprint == (given != "none")
    again = load(tmp_path, fingerprint=config.model_dump(mode="json", by_alias=True)["fingerprint"])
    assert again.payload == config.payload


def test_times_are_other_values_in_another_zone(tmp_path: Path) -> None:
    """Fingerprints of another zone are not compared, if the payload has a time."""
    berlin = {"spark.sql.session.timeZone": "Europe/Berlin"}
    for given, is_same in (("all", False), ({"columns": ["meta.sent"]}, False), ({"columns": ["page"]}, True)):
        here = load(tmp_path, fingerprint=given)
        assert (here.payload_identity == load(tmp_path, fingerprint=given, spark=berlin).payload_identity) is is_same


def test_columns_of_a_files_name_are_no_payload(tmp_path: Path) -> None:
    """They say where a copy lies, as a topic and its offset do."""
    source = {**SECTIONS["source"], "name_pattern": r"(?P<page>\w+)\.json"}  # type: ignore[dict-item]
    assert [leaf.name for leaf in load(tmp_path, source=source, fingerprint="all").payload] == [
        "at",
        "meta.sent",
        "meta.os",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fingerprint": "pages"}, "fingerprint: `pages` says of no columns; write `all`, `{columns: "),
        ({"fingerprint": "value"}, "fingerprint: `value` is the value of a topic's record; write `fingerprint: all`"),
        (
            {"fingerprint": {"columns": ["pag"]}},
            "fingerprint.columns.0: no column or field is named `pag`; did you mean `page`",
        ),
        ({"fingerprint": {"except": ["meta.sen"]}}, "fingerprint.except.0: no column or field is named `meta.sen`"),
        (
            {"fingerprint": {"columns": ["id"]}},
            "fingerprint.columns.0: column `id` is part of the key, which copies share",
        ),
        (
            {"fingerprint": {"columns": ["at"], "except": ["page"]}},
            "fingerprint: must have either `columns` or `except`",
        ),
        ({"fingerprint": {"columns": []}}, "fingerprint.columns: must be a list of columns"),
        ({"fingerprint": {"except": [7]}}, "fingerprint.except.0: `7` is no column"),
        ({"fingerprint": {"except": ["at", "meta", "page"]}}, "fingerprint: leaves no column to compare"),
        ({"on_conflict": "error"}, "on_conflict: does nothing without `fingerprint`: no payload is compared"),
        ({"on_conflict": "both", "fingerprint": "all"}, "on_conflict:"),
        ({"on_conflict": "unique"}, "on_conflict: does nothing without `fingerprint`: no payload is compared"),
        (
            {"on_conflict": "error", "fingerprint": "all", "max_versions": 4},
            "max_versions: does nothing with `on_conflict: error`: a key has one version; add `on_conflict: unique`",
        ),
        ({"on_conflict": "unique", "fingerprint": "all", "max_versions": 1}, "max_versions:"),
        ({"on_conflict": "unique", "fingerprint": "all", "max_versions": 65}, "max_versions:"),
    ],
)
def test_mistakes_say_what_to_write(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **settings)
    assert message in str(error.value)
