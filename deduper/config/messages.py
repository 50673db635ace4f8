"""Pydantic's errors as messages of this project. PURE.

Pydantic says where and what kind of mistake; the words, the advice and the suggestions are made here, from the fields
of the models, so that a new setting needs no new message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.model import Config, completed
from deduper.config.problems import MASK, ConfigMistake, is_secret, suggestion
from deduper.config.rules import disagreements
from deduper.config.sections import PORTS, CategoryExpiry, NeverExpiry, NoneSink, OrderedExpiry, ProcessingTimeExpiry
from deduper.config.values import REFUSED, shown

_NEVER = ("does not apply to keys that never expire", "remove it, or write `by: event_time`")
_OF_TOPICS = ("does not apply to files", "remove it, or write `format: kafka`")
# Settings that are often written in the wrong place, by the section they stand in: what is wrong, and the advice.
_EXPLANATIONS: dict[tuple[type[BaseModel], str], tuple[str, str]] = {
    (NeverExpiry, "field"): _NEVER,
    (NeverExpiry, "period"): _NEVER,
    (NeverExpiry, "span"): _NEVER,
    (NeverExpiry, "lookup"): ("is refused: every key has one bucket, found by its hash", "remove it"),
    (NeverExpiry, "clock"): ("is refused: without an expiry key there is no latest point", "remove it"),
    (ProcessingTimeExpiry, "lookup"): ("is refused: it is always all_live for processing_time", "remove it"),
    (ProcessingTimeExpiry, "clock"): ("is refused: it is always batch for processing_time", "remove it"),
    (ProcessingTimeExpiry, "field"): (
        "is refused: processing_time is the wall clock of the window",
        "remove it, or write `by: event_time`",
    ),
    (CategoryExpiry, "lookup"): ("is refused: keys are looked up in the bucket of their category", "remove it"),
    (CategoryExpiry, "clock"): ("is refused: categories have no latest point", "remove it"),
    (CategoryExpiry, "period"): ("is refused: categories are counted, not timed", "write `live_categories` instead"),
    (CategoryExpiry, "span"): ("is refused: every category is one bucket", "remove it"),
    (OrderedExpiry, "unit"): ("is refused: `ordered` takes the column's numbers as they are", "remove it"),
    (OrderedExpiry, "max_ahead_of_now"): (
        "is refused: a number is not measured against the wall clock",
        "write `max_jump` instead",
    ),
    (FilesSource, "topics"): _OF_TOPICS,
    (FilesSource, "bootstrap_servers"): _OF_TOPICS,
    (KafkaSource, "path"): ("does not apply to topics", "remove it, or write `format: files`"),
    (KafkaSource, "file_format"): ("does not apply to topics", "write `value: {format: json}`"),
    (KafkaSource, "header"): ("does not apply to topics", "remove it: `record` makes columns of headers"),
    (KafkaSource, "schema"): ("belongs to the value", 'write `value: {format: json, schema: "..."}`'),
    (KafkaSource, "delimiter"): ("belongs to the value", 'write `value: {format: csv, delimiter: ","}`'),
    (KafkaSource, "max_files_per_batch"): ("does not apply to topics", "write `max_offsets_per_batch`"),
    (KafkaSink, "path"): ("does not apply to a topic", "remove it, or write `format: parquet`"),
    (FileSink, "topic"): _OF_TOPICS,
    (NoneSink, "path"): ("does not apply to a port that is dropped", "remove it, or write `format: parquet`"),
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
    found = _without_echoes([mistake_of(model, data, detail) for detail in details]) + disagreements(sound)
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
                    known = _without(known, _place_of(model, data, detail).path)
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


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a mistake: its path as it is written, and the last part of the path that a section has or lacks.

    `field` is None where `section` has no setting of this `name`. Inside a list or a mapping they are those of the
    whole.
    """

    path: tuple[str, ...]
    section: type[BaseModel]
    name: str
    field: FieldInfo | None


def _place_of(model: type[BaseModel], data: Any, detail: ErrorDetails) -> _Place:
    """Pydantic's own path has the names of members of unions in between, which nobody has written."""
    path: list[str] = []
    at = _Place((), model, "", None)
    section: type[BaseModel] | None = model
    parts = list(detail["loc"])
    while parts:
        part = parts.pop(0)
        is_missing = detail["type"] == "missing" and not parts
        if isinstance(part, str) and not is_missing and not (isinstance(data, Mapping) and part in data):
            continue
        data = data.get(part) if isinstance(data, Mapping) else _item(data, part)
        path.append(str(part))
        if section is None:
            continue
        field = section_fields(section).get(str(part))
        at = _Place((), section, str(part), field)
        kinds = {} if field is None else _kinds(field)
        if parts and parts[0] in kinds:
            section = kinds[parts.pop(0)]
        else:
            section = next(iter(kinds.values()), None) if len(kinds) == 1 else None
    return replace(at, path=tuple(path))


def _item(data: Any, part: int | str) -> Any:
    return data[part] if isinstance(data, list) and isinstance(part, int) and part < len(data) else None


def _kinds(field: FieldInfo) -> dict[int | str | None, type[BaseModel]]:
    """The sections that a setting may be, by the texts of their discriminator; one that has none is at None."""
    found: dict[int | str | None, type[BaseModel]] = {}
    for one in (field.annotation, *get_args(field.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            tag = None if not isinstance(field.discriminator, str) else one.model_fields[field.discriminator]
            for name in (None,) if tag is None else get_args(tag.annotation):
                found[name] = one
    return found


def mistake_of(model: type[BaseModel], data: Any, detail: ErrorDetails) -> ConfigMistake:
    """An error of pydantic's about these data of a model as a mistake in what was written."""
    at = _place_of(model, data, detail)
    path, error_type, value, context = at.path, detail["type"], detail.get("input"), detail.get("ctx", {})
    if error_type == "extra_forbidden":
        return _unknown(at)
    if error_type == "missing":
        return ConfigMistake(path, "is missing", _how_to_write(at))
    if error_type in ("union_tag_not_found", "union_tag_invalid"):
        return _wrong_kind(at, value)
    if value is None:
        return ConfigMistake(path, "has no value", _how_to_write(at), at_key=True)
    if error_type == "literal_error":
        return _wrong_choice(at, value)
    if error_type == REFUSED:
        path = (*path, *context["at"])
        if is_secret(".".join(path)) and not context["at_key"]:
            return ConfigMistake(path, "is not a value that this setting takes", "put it in quotes")
        return ConfigMistake(
            path, context["what"], context["write"], at_key=context["at_key"], offset=context["offset"]
        )
    shown_value = MASK if is_secret(".".join(path)) else shown(value)
    return ConfigMistake(path, *_words(error_type, shown_value, context, _how_to_write(at)))


def _words(error_type: str, value: str, context: Mapping[str, Any], how: str) -> tuple[str, str]:
    """The problem and the advice, for mistakes that are explained by the value alone; `how` to write it."""
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
    if error_type == "tuple_type":
        return f"must be a list, found `{value}`", how
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


def _unknown(at: _Place) -> ConfigMistake:
    names = [*section_fields(at.section)]
    unknown = "unknown setting", suggestion(at.path[-1], names, "settings here are")
    return ConfigMistake(at.path, *_EXPLANATIONS.get((at.section, at.path[-1]), unknown), at_key=True)


def _wrong_kind(at: _Place, value: object) -> ConfigMistake:
    """A section of which the kind is missing, or is none of them."""
    if not isinstance(value, Mapping):
        what = "has no value" if value is None else f"must be a section of settings, found `{shown(value)}`"
        return ConfigMistake(at.path, what, _how_to_write(at))
    assert at.field is not None
    assert isinstance(at.field.discriminator, str)
    setting, kinds = at.field.discriminator, [str(kind) for kind in _kinds(at.field)]
    path = (*at.path, setting)
    if setting not in value:
        return ConfigMistake(path, "is missing", f"write `{setting}:` with one of {', '.join(kinds)}")
    if value[setting] is None:
        return ConfigMistake(path, "has no value", f"write one of {', '.join(kinds)}", at_key=True)
    return ConfigMistake(path, *_no_choice(value[setting], kinds))


def _wrong_choice(at: _Place, value: object) -> ConfigMistake:
    annotation = None if at.field is None else at.field.annotation
    # `X | None` hides the literal one level down.
    choices = [choice for part in (annotation, *get_args(annotation)) for choice in get_args(part)]
    return ConfigMistake(at.path, *_no_choice(value, [choice for choice in choices if isinstance(choice, str)]))


def _no_choice(value: object, choices: list[str]) -> tuple[str, str]:
    return f"`{shown(value)}` is not a valid choice", suggestion(str(value), choices, "write one of")


def section_fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The settings of a section, as they are written."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _how_to_write(at: _Place) -> str:
    """An example of the setting, from its field; of the whole list or mapping for something inside one."""
    path, field = at.path, at.field
    if path == ("sinks",):
        return f"write a line for each of {', '.join(PORTS)}"
    if path[0] == "sinks" and len(path) == 2:
        return (
            f"write `{path[1]}: {{format: parquet, path: out/{path[1]}}}`, or `{path[1]}: {{format: none}}` to drop it"
        )
    if path[0] == "sinks" and path[2] in ("path", "topic"):
        return f"write `path: out/{path[1]}`" if path[2] == "path" else f"write `topic: {path[1]}`"
    if field is not None and field.examples:
        return f"write `{at.name}: {field.examples[0]}`"
    if field is not None and not field.is_required() and field.default is not None:
        return f"remove it to have the default, {default_text(field)}"
    return "write a value, or remove the line" if field is None or not field.is_required() else f"write `{at.name}:`"


def default_text(field: FieldInfo) -> str:
    """The default of a setting as it would be written in the file."""
    default = field.get_default(call_default_factory=True, validated_data={})
    serializer: TypeAdapter[Any] = TypeAdapter(cast(Any, Annotated[field.annotation, field]))
    text = serializer.dump_python(default, mode="json")
    return json.dumps(text) if not isinstance(text, str) or text in ("", ",") else text
