"""The settings of a command with a config file of its own kind, read with the places of all mistakes.

As for a job, flags go over the environment, and that over the file. The advice comes from the examples of the model's
fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from deduper.config.load import MergedSettings, read_settings
from deduper.config.problems import ConfigMistake, suggestion
from deduper.config.values import REFUSED, Section, shown
from deduper.config.yaml_document import SettingPath

M = TypeVar("M", bound="OwnFile")


class OwnFile(Section):
    """The settings of a command with a file of its own; `page` of the docs has such a file."""

    page: ClassVar[str]
    mark: ClassVar[str]
    """See `MergedSettings.require_kind`."""

    @classmethod
    def load(cls, file: Path, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> Self:
        """See `load_own_file`."""
        return load_own_file(cls, file, overrides=overrides, environment=environment)[0]


def load_own_file(
    model: type[M], file: Path, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[M, MergedSettings]:
    """The settings of a file, the environment (default: the process's) and `path=value` overrides, and their places.

    Relative paths start at the folder of the file.

    Raises:
        ConfigError: everything that is wrong, with places.
    """
    start_from = f"{model.page} has one to copy"
    merged = read_settings(file, overrides=overrides, environment=environment, start_from=start_from)
    merged.require_kind(model.mark, start_from)
    try:
        settings = model.model_validate(merged.data, context={"base_dir": file.resolve().parent})
    except ValidationError as error:
        merged.require_none([_finding(model, merged.data, detail) for detail in error.errors(include_url=False)])
        raise
    merged.require_none(())
    return settings, merged


def _finding(model: type[BaseModel], data: Any, detail: ErrorDetails) -> ConfigMistake:
    path = _written(data, detail)
    names, name, field = _nearest(model, path)
    example = f"write `{name}: {field.examples[0]}`" if field is not None and field.examples else ""
    context: Mapping[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return ConfigMistake(path, "is missing", example or f"write `{path[-1]}:` there")
        case "extra_forbidden":
            return ConfigMistake(path, "unknown setting", suggestion(path[-1], names, "settings here are"), at_key=True)
        case "literal_error":
            return ConfigMistake(
                path, f"`{shown(detail['input'])}` is not a valid choice", f"write {context['expected']}"
            )
        case kind if kind == REFUSED:
            at_key, offset = context["at_key"], context["offset"]
            return ConfigMistake(
                (*path, *context["at"]), context["what"], context["write"], at_key=at_key, offset=offset
            )
        case _:
            return ConfigMistake(path, f"`{shown(detail['input'])}` is not valid ({detail['msg']})", example)


def _written(data: Any, detail: ErrorDetails) -> SettingPath:
    """The path of a mistake in what was written: Pydantic's own names the members of unions in between."""
    path: list[str] = []
    for part in detail["loc"]:
        is_there = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if is_there:
            data = data[part]
        elif detail["type"] != "missing" or part != detail["loc"][-1]:
            continue
        path.append(str(part))
    return tuple(path)


def _nearest(model: type[BaseModel], path: SettingPath) -> tuple[list[str], str, FieldInfo | None]:
    """The settings beside the last of the path that has a field, or below it; its name and its field."""
    found: tuple[str, FieldInfo | None] = ("", None)
    for name in path:
        fields = _by_name(model)
        if name not in fields:
            break
        found = name, fields[name]
        annotation = fields[name].annotation
        sections = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        inner = next((one for one in sections if issubclass(one, BaseModel)), None)
        if inner is None:
            break
        model = inner
    return list(_by_name(model)), *found


def _by_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}
