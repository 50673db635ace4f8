"""The hash of all settings that a verdict depends on: an intent is repeated only under the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deduper.config.load import load_config
from deduper.config.messages import section_fields
from deduper.config.schema import section_models
from deduper.window.policy import settings_hash

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "k", "type": "string"}, {"name": "t", "type": "%s"}]}'
SOURCES: dict[str, dict[str, Any]] = {
    "files": {"format": "files", "path": "in", "file_format": "csv", "schema": "k string, t long, d timestamp"},
    "kafka": {
        "format": "kafka",
        "bootstrap_servers": "b:9092",
        "topics": ["in"],
        "value": {"format": "csv", "schema": "k string, t long, d timestamp"},
    },
}
EXPIRIES: dict[str, dict[str, Any]] = {
    "event_time": {"by": "event_time", "field": "t", "unit": "ms", "period": "24h", "span": "1h"},
    "ordered": {"by": "ordered", "field": "t", "period": 100, "span": 10},
    "processing_time": {"by": "processing_time", "period": "24h", "span": "1h"},
    "category": {"by": "category", "field": "k", "live_categories": 3},
    "never": {"by": "never"},
}
FROM_RECORD: dict[str, Any] = {
    "record": {"k": "key", "t": "offset"},
    "value": {"format": "csv", "schema": "d timestamp"},
}
VERSIONS = {"fingerprint": "all", "on_conflict": "unique"}
CHANGES: dict[tuple[str, str], dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    ("", ""): {
        "key": ({}, {"key": ["k", "t"]}),
        "null_keys": ({}, {"null_keys": "allow"}),
        "digest": ({}, {"digest": "secure"}),
        "fingerprint": ({}, {"fingerprint": "all"}),
        "on_conflict": ({"fingerprint": "all"}, VERSIONS),
        "max_versions": (VERSIONS, VERSIONS | {"max_versions": 3}),
    },
    ("source", "files"): {
        "file_format": ({}, {"file_format": "json"}),
        "schema": ({}, {"schema": "k string, t int, d timestamp"}),
        "name_pattern": ({}, {"name_pattern": r"(?P<d>.*)\.csv"}),
        "header": ({}, {"header": True}),
        "delimiter": ({}, {"delimiter": ";"}),
    },
    ("source", "kafka"): {
        "record": ({"record": {"p": "key"}}, {"record": {"p": "topic"}}),
        "tombstones": (FROM_RECORD, FROM_RECORD | {"tombstones": "judge"}),
        "options": ({}, {"options": {"kafka.isolation.level": "read_uncommitted"}}),
    },
    ("source.value", ""): {
        "format": ({}, {"format": "json"}),
        "schema": ({}, {"schema": "k string, t int, d timestamp"}),
        "delimiter": ({}, {"delimiter": ";"}),
        "avro_schema": (
            {"format": "avro", "schema": None, "avro_schema": AVRO % "long"},
            {"format": "avro", "schema": None, "avro_schema": AVRO % "int"},
        ),
        "schema_ids": (
            {"format": "avro", "schema": None, "avro_schema": AVRO % "long"},
            {"format": "avro", "schema": None, "avro_schema": AVRO % "long", "schema_ids": [1]},
        ),
    },
    ("expiry", "event_time"): {
        "field": ({"unit": None, "field": "d"}, {}),
        "period": ({}, {"period": "48h"}),
        "span": ({}, {"span": "2h"}),
        "unit": ({}, {"unit": "s"}),
        "lookup": ({}, {"lookup": "all_live"}),
        "clock": ({}, {"clock": "batch"}),
        "max_ahead_of_now": ({}, {"max_ahead_of_now": "2h"}),
        "max_jump": ({}, {"max_jump": "2h"}),
    },
    ("expiry", "ordered"): {
        "field": ({}, {"field": "u"}),
        "period": ({}, {"period": 200}),
        "span": ({}, {"span": 20}),
        "lookup": ({}, {"lookup": "all_live"}),
        "clock": ({}, {"clock": "batch"}),
        "max_jump": ({}, {"max_jump": 5}),
    },
    ("expiry", "processing_time"): {"period": ({}, {"period": "48h"}), "span": ({}, {"span": "2h"})},
    ("expiry", "category"): {
        "field": ({}, {"field": "t"}),
        "live_categories": ({}, {"live_categories": 4}),
        "remember_dropped": ({}, {"remember_dropped": 5}),
    },
    ("expiry", "never"): {},
    ("store", ""): {"shards": ({}, {"shards": 5}), "first_seen": ({}, {"first_seen": False})},
}
"""Of each section the settings that change verdicts, or what is stored of keys, each with two values."""
KEEPS: dict[tuple[str, str], set[str]] = {
    ("", ""): {"name", "source", "expiry", "store", "sinks", "trigger", "metrics", "shared_folders", "spark"},
    ("source", "files"): {"path", "max_files_per_batch"},
    ("source", "kafka"): {
        *(
            "bootstrap_servers",
            "topics",
            "topic_pattern",
            "starting_offsets",
            "max_offsets_per_batch",
            "order",
            "slack",
        ),
        *("value", "data_loss", "group", "deadline"),
    },
    ("store", ""): {"url", "memory", "tables", "deadline"},
}
"""The others: sections, what is read, how much at once, from where, and what no verdict depends on."""


def hash_of(section: tuple[str, str], given: dict[str, Any], folder: Path) -> str:
    """The hash of a config with these settings in a section."""
    name, kind = section
    source = SOURCES["kafka" if kind == "kafka" or name == "source.value" else "files"]
    whole: dict[str, Any] = {
        "key": "k",
        "source": source,
        "expiry": EXPIRIES[kind] if name == "expiry" else EXPIRIES["event_time"],
        "store": {"url": "file:state"},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    match name.split("."):
        case [""]:
            whole |= given
        case ["source", "value"]:
            whole["source"] = source | {"value": source["value"] | given}
        case _:
            whole[name] = whole[name] | given
    if (name, kind) == ("expiry", "ordered"):
        whole["source"] = source | {"schema": f"{source['schema']}, u long"}
    (folder / "job.yaml").write_text(json.dumps(_without_nulls(whole)), encoding="utf-8")
    return settings_hash(load_config(folder / "job.yaml", environment={}))


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in given.items()
        if value is not None
    }


def test_every_setting_changes_verdicts_or_does_not() -> None:
    """A new one needs a line in one of the two tables here, and for the first a part of the hash."""
    judging = {one: model for one, model in section_models().items() if not one[0].startswith(("sinks", "metrics"))}
    choices = {("source", ""): "format", ("expiry", ""): "by"}
    listed = {section: {*CHANGES.get(section, {}), *KEEPS.get(section, ())} for section in judging}
    there = {
        (name, kind): {*section_fields(model)} - {choices.get((name, ""))} for (name, kind), model in judging.items()
    }
    assert listed == there
    assert not [section for section in KEEPS if KEEPS[section] & CHANGES[section].keys()]


@pytest.mark.parametrize(
    ("section", "setting"),
    [pytest.param(one, setting, id=f"{'-'.join(one)}-{setting}") for one in CHANGES for setting in CHANGES[one]],
)
def test_a_setting_that_changes_verdicts_changes_the_hash(
    section: tuple[str, str], setting: str, tmp_path: Path
) -> None:
    """Else a window whose intent is written would be made again with other verdicts, and two outputs would differ."""
    one, other = CHANGES[section][setting]
    assert hash_of(section, one, tmp_path) != hash_of(section, other, tmp_path)
