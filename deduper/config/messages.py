"""Pydantic's errors as messages of this project. PURE.

Pydantic says where and what kind of mistake; the words, the advice and the suggestions are made here, from the fields
of the models, so that a new setting needs no new message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from deduper.config.expiry import CategoryExpiry, EventTimeExpiry, NeverExpiry, OrderedExpiry, ProcessingTimeExpiry
from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.sections import KafkaSink, KafkaSource, KafkaValue
from deduper.config.model import Config, completed
from deduper.config.problems import MASK, ConfigMistake, is_secret, suggestion
from deduper.config.rules import disagreements
from deduper.config.sections import (
    PORTS,
    MetricsConfig,
    NoneSink,
    SinksConfig,
    StoreConfig,
)
from deduper.config.values import REFUSED, shown

# Settings that are often written in the wrong place, and the advice. By section or (section, kind), then setting.
_EXPLANATIONS: dict[tuple[str, ...], tuple[str, str]] = {
    ("expiry", "never", "field"): ("does not apply to keys that never expire", "remove it, or write `by: event_time`"),
    ("expiry", "never", "period"): ("does not apply to keys that never expire", "remove it, or write `by: event_time`"),
    ("expiry", "never", "span"): ("does not apply to keys that never expire", "remove it, or write `by: event_time`"),
    ("expiry", "never", "lookup"): ("is refused: every key has one bucket, found by its hash", "remove it"),
    ("expiry", "never", "clock"): ("is refused: without an expiry key there is no latest point", "remove it"),
    ("expiry", "processing_time", "lookup"): ("is refused: it is always all_live for processing_time", "remove it"),
    ("expiry", "processing_time", "clock"): ("is refused: it is always batch for processing_time", "remove it"),
    ("expiry", "processing_time", "field"): (
        "is refused: processing_time is the wall clock of the window",
        "remove it, or write `by: event_time`",
    ),
    ("expiry", "category", "lookup"): ("is refused: keys are looked up in the bucket of their category", "remove it"),
    ("expiry", "category", "clock"): ("is refused: categories have no latest point", "remove it"),
    ("expiry", "category", "period"): (
        "is refused: categories are counted, not timed",
        "write `live_categories` instead",
    ),
    ("expiry", "category", "span"): ("is refused: every category is one bucket", "remove it"),
    ("expiry", "ordered", "unit"): ("is refused: `ordered` takes the column's numbers as they are", "remove it"),
    ("expiry", "ordered", "max_ahead_of_now"): (
        "is refused: a number is not measured against the wall clock",
        "write `max_jump` instead",
    ),
    ("source", "files", "topics"): ("does not apply to files", "remove it, or write `format: kafka`"),
    ("source", "files", "bootstrap_servers"): ("does not apply to files", "remove it, or write `format: kafka`"),
    ("source", "kafka", "path"): ("does not apply to topics", "remove it, or write `format: files`"),
    ("source", "kafka", "file_format"): ("does not apply to topics", "write `value: {format: json}`"),
    ("source", "kafka", "header"): ("does not apply to topics", "remove it: `record` makes columns of headers"),
    ("source", "kafka", "schema"): ("belongs to the value", 'write `value: {format: json, schema: "..."}`'),
    ("source", "kafka", "delimiter"): ("belongs to the value", 'write `value: {format: csv, delimiter: ","}`'),
    ("source", "kafka", "max_files_per_batch"): ("does not apply to topics", "write `max_offsets_per_batch`"),
    ("sinks", "kafka", "path"): ("does not apply to a topic", "remove it, or write `format: parquet`"),
    ("sinks", "files", "topic"): ("does not apply to files", "remove it, or write `format: kafka`"),
    ("sinks", "none", "path"): ("does not apply to a port that is dropped", "remove it, or write `format: parquet`"),
}

# Kinds that later releases will have: section -> kinds.
_LATER_KINDS = {"sinks": ("delta",)}

_KIND_SETTING = {"source": "format", "expiry": "by", "sinks": "format"}

_KINDS = {
    "source": ("files", "kafka"),
    "expiry": ("event_time", "ordered", "processing_time", "category", "never"),
    "sinks": ("parquet", "json", "csv", "kafka", "none"),
}


def findings(
    data: Mapping[str, Any], *, base_dir: Path, model: type[Config] = Config
) -> tuple[Config | None, list[ConfigMistake]]:
    """The configuration, or everything that is wrong with it.

    Each setting of the first level is validated by itself; the rules are then tried between the sound ones, as if no
    setting were unknown.
    """
    sound, details = _validated(data, {"base_dir": base_dir}, model)
    sound = completed(sound)
    found = _without_echoes([_finding(detail) for detail in details]) + disagreements(sound)
    return (None, found) if found else (model.model_construct(**sound), [])


def _validated(
    data: Mapping[str, Any], context: dict[str, Any], model: type[Config]
) -> tuple[dict[str, Any], list[ErrorDetails]]:
    """The settings that are sound, with the default of any other that has one; and pydantic's errors, in its order."""
    sound: dict[str, Any] = {}
    details: list[ErrorDetails] = []
    for name, field in model.model_fields.items():
        if not field.is_required():
            sound[name] = field.get_default(call_default_factory=True, validated_data={})
        elif name not in data:
            details.append(ErrorDetails(type="missing", loc=(name,), msg="", input=data))
        if name not in data:
            continue
        try:
            sound[name] = _adapters(model)[name].validate_python(data[name], context=context)
        except ValidationError as error:
            of_setting = [
                cast(ErrorDetails, {**detail, "loc": (name, *detail["loc"])})
                for detail in error.errors(include_url=False)
            ]
            details += of_setting
            if all(detail["type"] == "extra_forbidden" for detail in of_setting):
                known: Any = data
                for detail in of_setting:
                    known = _without(known, _location(detail)[0])
                with suppress(ValidationError):
                    sound[name] = _adapters(model)[name].validate_python(known[name], context=context)
    details += [
        ErrorDetails(type="extra_forbidden", loc=(name,), msg="", input=value)
        for name, value in data.items()
        if name not in model.model_fields
    ]
    return sound, details


@cache
def _adapters(model: type[Config]) -> dict[str, TypeAdapter[Any]]:
    """The validators of the settings of the first level."""
    return {
        name: TypeAdapter(cast(Any, Annotated[field.annotation, field])) for name, field in model.model_fields.items()
    }


def _without_echoes(found: list[ConfigMistake]) -> list[ConfigMistake]:
    """The findings without the missing settings that are there under a misspelt name: that name is reported."""
    misspelt = {
        (*finding.path[:-1], finding.write.split("`")[1])
        for finding in found
        if finding.write.startswith("did you mean") and finding.at_key
    }
    return [finding for finding in found if finding.what != "is missing" or finding.path not in misspelt]


def _without(value: Any, path: tuple[str, ...]) -> Any:
    if not isinstance(value, dict) or not path:
        return value
    if len(path) == 1:
        return {name: inner for name, inner in value.items() if name != path[0]}
    return {name: _without(inner, path[1:]) if name == path[0] else inner for name, inner in value.items()}


def _location(detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """The path of the setting, and the kind of its section that pydantic puts in for the members of unions."""
    path: list[str] = []
    kind = ""
    for part in map(str, detail["loc"]):
        in_union = path in (["source"], ["expiry"]) or (len(path) == 2 and path[0] == "sinks")
        if in_union and not kind and part in _KINDS[path[0]]:
            kind = part
        else:
            path.append(part)
    return tuple(path), kind


def _finding(detail: ErrorDetails) -> ConfigMistake:
    path, kind = _location(detail)
    error_type, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if error_type == "extra_forbidden":
        return _unknown(path, kind)
    if error_type == "missing":
        return ConfigMistake(path, "is missing", _how_to_write(path, kind))
    if error_type == "union_tag_not_found":
        if isinstance(value, Mapping):
            return _missing_kind(path)
        return ConfigMistake(path, *_no_section(path, value))
    if value is None and error_type != "union_tag_invalid":
        return ConfigMistake(path, "has no value", _how_to_write(path, kind), at_key=True)
    if error_type == "union_tag_invalid":
        setting = _KIND_SETTING[path[0]]
        return _wrong_kind((*path, setting), value[setting] if isinstance(value, Mapping) else value)
    if error_type == "literal_error":
        return _wrong_choice(path, kind, value)
    if error_type == REFUSED:
        path = (*path, *context["at"])
        if is_secret(".".join(path)) and not context["at_key"]:
            return ConfigMistake(path, "is not a value that this setting takes", "put it in quotes")
        return ConfigMistake(
            path, context["what"], context["write"], at_key=context["at_key"], offset=context["offset"]
        )
    shown_value = MASK if is_secret(".".join(path)) else shown(value)
    return ConfigMistake(path, *_words(error_type, shown_value, context, path, kind))


def _words(
    error_type: str, value: str, context: Mapping[str, Any], path: tuple[str, ...], kind: str
) -> tuple[str, str]:
    """The problem and the advice, for mistakes that are explained by the value alone."""
    how = _how_to_write(path, kind)
    if error_type in ("int_parsing", "int_type", "int_from_float", "int_parsing_size"):
        return f"must be a whole number, found `{value}`", "write digits only"
    if error_type == "greater_than_equal":
        return f"must be at least {context['ge']}, found {value}", how
    if error_type == "less_than_equal":
        return f"must be at most {context['le']}, found {value}", how
    if error_type in ("bool_parsing", "bool_type"):
        return f"must be true or false, found `{value}`", "write `true` or `false`"
    if error_type == "string_type":
        return f"must be text, found `{value}`", "put it in quotes"
    if error_type == "string_pattern_mismatch":
        return (
            f"`{value}` is not a valid name",
            "use small letters, digits, `.`, `_` and `-`, beginning with a letter or digit",
        )
    if error_type == "string_too_short":
        return "is empty", how
    if error_type == "string_too_long":
        return f"is longer than {context['max_length']} characters", "shorten it"
    if error_type in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a section of settings, found `{value}`", how
    return f"is not valid: {error_type}, found `{value}`", how


def _no_section(path: tuple[str, ...], value: object) -> tuple[str, str]:
    what = "has no value" if value is None else f"must be a section of settings, found `{shown(value)}`"
    return what, _how_to_write(path, "")


def _unknown(path: tuple[str, ...], kind: str) -> ConfigMistake:
    name = path[-1]
    section = path[0] if len(path) > 1 else ""
    for key in ((name,), (section, _KIND_OF_MODEL.get(kind, kind), name)):
        if key in _EXPLANATIONS:
            what, write = _EXPLANATIONS[key]
            return ConfigMistake(path, what, write, at_key=True)
    model = _model_at(path[:-1], kind)
    names = setting_names(model)
    return ConfigMistake(path, "unknown setting", suggestion(name, names, "settings here are"), at_key=True)


def _missing_kind(path: tuple[str, ...]) -> ConfigMistake:
    setting = _KIND_SETTING[path[0]]
    return ConfigMistake((*path, setting), "is missing", f"write `{setting}:` with {_one_of(_KINDS[path[0]])}")


def _wrong_kind(path: tuple[str, ...], value: object) -> ConfigMistake:
    section = path[0]
    kinds = list(_KINDS[section])
    if value is None:
        return ConfigMistake(path, "has no value", f"write {_one_of(kinds)}", at_key=True)
    if value in _LATER_KINDS.get(section, ()):
        return ConfigMistake(path, f"`{value}` is not in this release", f"write {_one_of(kinds)}")
    return ConfigMistake(path, f"`{shown(value)}` is not a valid choice", suggestion(str(value), kinds, "write one of"))


def _one_of(names: Sequence[str]) -> str:
    return f"`{names[0]}`" if len(names) == 1 else f"one of {', '.join(names)}"


def _wrong_choice(path: tuple[str, ...], kind: str, value: object) -> ConfigMistake:
    field = _model_at(path[:-1], kind).model_fields[path[-1]]
    # `X | None` hides the literal one level down.
    choices = [choice for part in (field.annotation, *get_args(field.annotation)) for choice in get_args(part)]
    names = [choice for choice in choices if isinstance(choice, str)] or [
        choice for choice in get_args(field.annotation) if isinstance(choice, str)
    ]
    return ConfigMistake(path, f"`{shown(value)}` is not a valid choice", suggestion(str(value), names, "write one of"))


def setting_names(model: type[BaseModel]) -> list[str]:
    """The settings of a section, as they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]


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


# Kinds that share a section's model.
_KIND_OF_MODEL = {"parquet": "files", "json": "files", "csv": "files"}


def _model_at(section: tuple[str, ...], kind: str) -> type[BaseModel]:
    if not section:
        return Config
    name = "sinks.PORT" if section[0] == "sinks" and len(section) > 1 else ".".join(section)
    models = section_models()
    return models.get((name, "")) or models[name, _KIND_OF_MODEL.get(kind, kind)]


# Lists and mappings: advice for something inside is advice for the whole.
_WHOLES = ("key", "spark", "topics", "starting_offsets", "record", "options", "avro_schema")


def _how_to_write(path: tuple[str, ...], kind: str) -> str:
    """An example of the setting, from its field; of the whole list or mapping for something inside one."""
    whole = next((depth for depth, name in enumerate(path) if name in _WHOLES), len(path))
    path = path[: whole + 1]
    if path == ("sinks",):
        return f"write a line for each of {', '.join(PORTS)}"
    if path[0] == "sinks" and len(path) == 2:
        return (
            f"write `{path[1]}: {{format: parquet, path: out/{path[1]}}}`, or `{path[1]}: {{format: none}}` to drop it"
        )
    if path[0] == "sinks" and path[2] in ("path", "topic"):
        return f"write `path: out/{path[1]}`" if path[2] == "path" else f"write `topic: {path[1]}`"
    fields = _model_at(path[:-1], kind).model_fields
    field = next((field for name, field in fields.items() if (field.alias or name) == path[-1]), None)
    if field is not None and field.examples:
        return f"write `{path[-1]}: {field.examples[0]}`"
    if field is not None and not field.is_required() and field.default is not None:
        return f"remove it to have the default, {default_text(field)}"
    return "write a value, or remove the line"


def default_text(field: FieldInfo) -> str:
    """The default of a setting as it would be written in the file."""
    default = field.get_default(call_default_factory=True, validated_data={})
    serializer: TypeAdapter[Any] = TypeAdapter(cast(Any, Annotated[field.annotation, field]))
    text = serializer.dump_python(default, mode="json")
    return json.dumps(text) if not isinstance(text, str) or text in ("", ",") else text
