"""The sections of a config file, and their JSON Schema for editors and checkers. PURE.

Pydantic describes the models; here that becomes a description of the file: defaults as they would be written there, and
what the loader fills in (`name`, `store.url`) not required. `x-kind` names the kinds JSON Schema has no word for.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.sections import KafkaSink, KafkaSource, KafkaValue
from deduper.config.messages import default_text, section_fields
from deduper.config.model import Config
from deduper.config.sections import (
    CategoryExpiry,
    EventTimeExpiry,
    MetricsConfig,
    NeverExpiry,
    NoneSink,
    OrderedExpiry,
    ProcessingTimeExpiry,
    SinksConfig,
    StoreConfig,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Filled in by the loader: see `config.load`.
_NOT_REQUIRED = {"Config": ("name", "store"), "StoreConfig": ("url",)}


def section_models() -> dict[tuple[str, str], type[BaseModel]]:
    """Every section with its kind (empty when it has only one), in the order of the reference."""
    return {
        ("", ""): Config,
        ("source", "files"): FilesSource,
        ("source", "kafka"): KafkaSource,
        ("source.value", ""): KafkaValue,
        ("expiry", "event_time"): EventTimeExpiry,
        ("expiry", "ordered"): OrderedExpiry,
        ("expiry", "processing_time"): ProcessingTimeExpiry,
        ("expiry", "category"): CategoryExpiry,
        ("expiry", "never"): NeverExpiry,
        ("store", ""): StoreConfig,
        ("sinks", ""): SinksConfig,
        ("sinks.PORT", "files"): FileSink,
        ("sinks.PORT", "kafka"): KafkaSink,
        ("sinks.PORT", "none"): NoneSink,
        ("metrics", ""): MetricsConfig,
    }


def json_schema() -> dict[str, Any]:
    """The schema of a whole config file."""
    schema = Config.model_json_schema(by_alias=True)
    schema["$schema"] = DIALECT
    schema["title"] = "deduper job"
    for model in section_models().values():
        name = model.__name__
        described = schema if name == "Config" else schema["$defs"][name]
        described["required"] = [
            setting for setting in described.get("required", ()) if setting not in _NOT_REQUIRED.get(name, ())
        ]
        for setting, field in section_fields(model).items():
            _describe(described["properties"][setting], None if field.is_required() else field)
    key = schema["properties"]["key"]
    del key["type"], key["items"]
    key["anyOf"] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
    return schema


def _describe(setting: dict[str, Any], optional_field: Any) -> None:
    """Drops details of Python: titles, nulls, and defaults in the units of the code."""
    setting.pop("title", None)
    sides = [side for side in setting.get("anyOf", ()) if side != {"type": "null"}]
    if len(sides) == 1:
        del setting["anyOf"]
        setting.update(sides[0])
    if "default" not in setting or optional_field is None:
        return
    is_filled_in_later = setting["default"] in ("", [])
    if is_filled_in_later or (setting["default"] is None and "off" not in setting.get("x-kind", "")):
        del setting["default"]
    elif "x-kind" in setting:
        setting["default"] = default_text(optional_field)
