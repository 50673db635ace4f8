"""A `Config`, or the settings of another command, from four sources: flags over environment over file over defaults.

    --set store.shards=8              a flag: dotted path, value as YAML
    DEDUPER__STORE__SHARDS=8          the environment: `__` between the names, any case, value as YAML
    store: {shards: 8}                the file; `${VAR}` and `${VAR:-default}` in its values

All the mistakes of all sources are found in one pass and raised as one `ConfigError`. Mappings merge, everything else
replaces. Relative paths, wherever they were written, start at the folder of the config file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from deduper.config.messages import findings, mistake_of
from deduper.config.model import Config
from deduper.config.problems import ConfigError, ConfigMistake, ConfigPlace, Problem, is_secret, masked
from deduper.config.values import Section
from deduper.config.yaml_document import Document, SettingPath, read_document, shift

ENV_PREFIX = "DEDUPER__"

_KINDS = {
    "table": "`deduper table`",
    "aggregates": "`deduper range-aggregate`, or of a range stream (`deduper run`)",
    "sinks": "a job (`deduper run`)",
}
"""A setting that each kind of config file must have, and no other kind."""

DEFAULT = "default"
"""The origin of a setting that is not written anywhere."""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One effective setting: its value as text of the configuration, masked, and its origin."""

    setting: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, with the origin of each setting."""

    config: Config
    file: Path
    settings: tuple[EffectiveSetting, ...]


def load_config(
    file: Path | str, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> Config:
    """The configuration of a file, the environment (default: the process's) and `path=value` overrides.

    Raises:
        ConfigError: everything that is wrong, with places.
    """
    return load_with_sources(file, overrides=overrides, environment=environment).config


def load_with_sources(
    file: Path | str, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> LoadedConfig:
    """As `load_config`, with the origin of each setting."""
    path = Path(file)
    merged = read_settings(path, overrides=overrides, environment=environment)
    merged.require_kind("sinks", "`deduper init` writes the file of a job")
    _add_derived_defaults(merged.data, path)
    config, found = findings(merged.data, base_dir=path.resolve().parent)
    merged.require_none(found)
    assert config is not None  # without a finding there is one
    return LoadedConfig(config, path, tuple(_effective(config, merged)))


_M = TypeVar("_M", bound="OwnFile")


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
    model: type[_M], file: Path, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[_M, MergedSettings]:
    """The settings of a command's own file, from the same sources as a job's, and their places.

    Raises:
        ConfigError: everything that is wrong, with places.
    """
    start_from = f"{model.page} has one to copy"
    merged = read_settings(file, overrides=overrides, environment=environment, start_from=start_from)
    merged.require_kind(model.mark, start_from)
    try:
        settings = model.model_validate(merged.data, context={"base_dir": file.resolve().parent})
    except ValidationError as error:
        merged.require_none([mistake_of(model, merged.data, detail) for detail in error.errors(include_url=False)])
        raise
    merged.require_none(())
    return settings, merged


def read_settings(
    path: Path,
    *,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    start_from: str | None = None,
) -> MergedSettings:
    """The settings of a file, the environment and overrides, with their places, before any is checked.

    `start_from` is the advice when there is no file; by default the command that writes one for a job.

    Raises:
        ConfigError: what was read is no mapping of settings.
    """
    variables = os.environ if environment is None else environment
    merged = MergedSettings(str(path))
    merged.add(read_document(_read_text(path, start_from), str(path), variables))
    if merged.is_unreadable:
        raise ConfigError(merged.problems)
    for name in sorted(variables):
        if name.upper().startswith(ENV_PREFIX):
            _add_variable(merged, name, variables[name])
    for override in overrides:
        _add_override(merged, override, variables)
    return merged


_OF_STREAM = {"events", "ranges", "store"}
"""Settings that a range stream's file must have; a job's has no `events`, and a `range-aggregate`'s no store."""


def is_of_stream(merged: MergedSettings) -> bool:
    """Whether these are the settings of a range stream, and not of a job."""
    return merged.data.keys() >= _OF_STREAM


class MergedSettings:
    """The documents read so far, later ones over earlier ones."""

    def __init__(self, file: str) -> None:
        self.data: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._owners: dict[SettingPath, Document] = {}
        self.is_unreadable = False
        """True if a document is not a mapping: then absent settings are unknown, not missing."""

    def add(self, document: Document) -> None:
        self.problems += document.problems
        if document.data is None:
            self.is_unreadable |= bool(document.problems)
            return
        if not isinstance(document.data, dict):
            place = document.values[()]
            self.problems.append(Problem(place, "", "is not a mapping", "write `name: value` lines"))
            self.is_unreadable = True
            return
        self._merge(self.data, document.data, (), document)

    def _merge(self, below: dict[str, Any], above: dict[str, Any], path: SettingPath, document: Document) -> None:
        for name, value in above.items():
            inner = (*path, name)
            self._owners[inner] = document
            if isinstance(value, dict) and isinstance(below.get(name), dict):
                self._merge(below[name], value, inner, document)
            else:
                self._forget(inner)
                below[name] = value
                self._own(value, inner, document)

    def _forget(self, path: SettingPath) -> None:
        for inner in [known for known in self._owners if known[: len(path)] == path]:
            del self._owners[inner]

    def _own(self, value: object, path: SettingPath, document: Document) -> None:
        self._owners[path] = document
        if isinstance(value, dict):
            for name, inner in value.items():
                self._own(inner, (*path, name), document)
        elif isinstance(value, list):
            for position, inner in enumerate(value):
                self._own(inner, (*path, str(position)), document)

    def has_problem_at(self, path: SettingPath) -> bool:
        """Whether something is already known to be wrong with exactly this setting."""
        name = ".".join(path)
        return any(problem.setting == name for problem in self.problems)

    def require_kind(self, mark: str, write: str) -> None:
        """Refuse the file of another command as a whole: each of its settings would be a mistake by itself.

        `mark` is a setting that files of the wanted kind must have, and no others.

        Raises:
            ConfigError: the file has the mark of another kind instead.
        """
        kind = next((kind for other, kind in _KINDS.items() if other in self.data), None)
        if kind is not None and mark not in self.data:
            raise ConfigError([Problem(ConfigPlace(self._file), "", f"is the config file of {kind}", write)])

    def require_none(self, found: Sequence[ConfigMistake]) -> None:
        """Refuse settings in which mistakes were found, by the reader or in the checks.

        Raises:
            ConfigError: all of them, with places.
        """
        problems = self.problems + [
            self.problem(finding.path, finding.what, finding.write, at_key=finding.at_key, offset=finding.offset)
            for finding in found
            if not self.has_problem_at(finding.path)
        ]
        if problems:
            raise ConfigError(_in_reading_order(problems))

    def problem(
        self, path: SettingPath, what: str, write: str, *, at_key: bool = False, offset: int | None = None
    ) -> Problem:
        """A problem at the place of a setting; of one that is missing, at the nearest section that is there."""
        setting = ".".join(path)
        known = path
        while known and known not in self._owners:
            known = known[:-1]
        if not known:
            return Problem(ConfigPlace(self._file, 1, 1), setting, what, write)
        document = self._owners[known]
        # An item without a place of its own is in a list that was written as one text, as `key: id` is.
        is_there = all(part.isdigit() for part in path[len(known) :])
        if at_key or not is_there:
            place = document.keys.get(known) or document.values[known]
        elif offset is not None:
            place = shift(document, known, offset)
        else:
            place = document.values[known]
        return Problem(place, setting, what, write)

    def source_of(self, path: SettingPath) -> str:
        """Label of the place a setting was written at; DEFAULT when it was not."""
        document = self._owners.get(path)
        if document is not None:
            return (document.keys.get(path) or document.values[path]).label
        if _is_inherited(path):
            return self.source_of(("source", *path[2:]))
        # An item of a list that was written as one text, as `key: id` is.
        return self.source_of(path[:-1]) if path and path[-1].isdigit() else DEFAULT


def _is_inherited(path: SettingPath) -> bool:
    """Whether a port inherits this from the source if it is not written, by `KafkaSink.beside`."""
    return path[0] == "sinks" and (path[2:] == ("bootstrap_servers",) or (path[2:3] == ("options",) and len(path) > 3))


def _near_file(path: Path) -> str:
    """A question that comes before a remedy, if a config file of the folder has nearly this name, or another ending."""
    beside = {one.stem: one.name for one in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
    close = difflib.get_close_matches(path.stem, beside, n=1, cutoff=0.75)
    return f"did you mean `{beside[close[0]]}`? Else " if close else ""


def _read_text(path: Path, start_from: str | None) -> str:
    place = ConfigPlace(str(path))
    try:
        return path.read_bytes().decode("utf-8-sig")
    except IsADirectoryError:
        raise ConfigError([Problem(place, "", "is a folder", "name the config file in it")]) from None
    except FileNotFoundError:
        write = _near_file(path) + (start_from or f"`deduper init {path}` writes one to start from")
        raise ConfigError([Problem(place, "", "there is no such file", write)]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            [Problem(place, "", f"is not UTF-8 at byte {error.start}", "save the file as UTF-8")]
        ) from None
    except OSError as error:
        raise ConfigError([Problem(place, "", f"cannot be read: {error.strerror}")]) from None


def _add_variable(merged: MergedSettings, name: str, text: str) -> None:
    path = _variable_path(name[len(ENV_PREFIX) :].split("__"))
    if not all(path):
        write = f"write it as `{ENV_PREFIX}STORE__SHARDS`"
        merged.problems.append(Problem(ConfigPlace(name), "", "is not a setting", write))
        return
    # A variable is not filled in from other variables: the shell did that when it was set.
    document = _read_value(text, name, path, None)
    merged.add(_placed(document, path, ConfigPlace(name)))


def _add_override(merged: MergedSettings, override: str, variables: Mapping[str, str]) -> None:
    dotted, equals, text = override.partition("=")
    path = _override_path(dotted.strip())
    if not equals or not all(path):
        # The text after the name may be a secret.
        name = re.match(r"[\w.-]*", override)
        place = ConfigPlace("--set " + (name[0] if name else ""))
        merged.problems.append(
            Problem(place, "", "is not a setting", "write `--set path=value`, as in `--set store.shards=8`")
        )
        return
    place = ConfigPlace(f"--set {dotted.strip()}")
    merged.add(_placed(_read_value(text, place.source, path, variables), path, place))


def _variable_path(parts: list[str]) -> SettingPath:
    """The setting of a variable: capitals count in names of Spark's settings, Kafka's options and columns."""
    lower = [part.lower() for part in parts]
    depth = _depth(lower)
    # A name in capitals throughout is written as variables are: its capitals have no meaning.
    names = [part.lower() if part.isupper() else part for part in parts[depth:]]
    return _with_dots((*lower[:depth], *names), depth)


def _override_path(dotted: str) -> SettingPath:
    """The setting of a flag."""
    path = tuple(dotted.split("."))
    return _with_dots(path, _depth(path))


def _depth(path: Sequence[str]) -> int:
    """The number of leading names that are deduper's own; the rest names a Spark setting, Kafka option or column."""
    if path[0] == "spark":
        return 1
    if tuple(path[:2]) == ("source", "record"):
        return 2
    return path.index("options") + 1 if "options" in path[:3] else len(path)


def _with_dots(path: SettingPath, depth: int) -> SettingPath:
    """The rest after deduper's own names as one name; Spark's prefix may be left out."""
    if len(path) <= depth:
        return path
    name = ".".join(path[depth:])
    if path[0] == "spark" and not name.startswith("spark."):
        name = f"spark.{name}"
    return (*path[:depth], name)


def _read_value(text: str, source: str, path: SettingPath, variables: Mapping[str, str] | None) -> Document:
    """One value as YAML; a secret as the text it is, because a password may look like anything."""
    if is_secret(".".join(path)):
        return Document(data=text)
    return read_document(text, source, variables, in_file=False)


def _placed(document: Document, path: SettingPath, place: ConfigPlace) -> Document:
    """The document of one value, moved to where the value belongs."""
    data: Any = document.data
    for name in reversed(path):
        data = {name: data}
    moved = Document(data=data)
    for depth in range(1, len(path) + 1):
        moved.keys[path[:depth]] = moved.values[path[:depth]] = place
    for inner, inner_place in document.values.items():
        moved.values[path + inner] = inner_place
    for inner, inner_place in document.keys.items():
        moved.keys[path + inner] = inner_place
    moved.raw = {path + inner: text for inner, text in document.raw.items()}
    moved.problems = [
        Problem(
            problem.place,
            ".".join(path) + ("." + problem.setting if problem.setting else ""),
            problem.what,
            problem.write,
        )
        for problem in document.problems
    ]
    return moved


def _add_derived_defaults(data: dict[str, Any], path: Path) -> None:
    """Fills in the defaults that depend on other settings: `name`, `store.url`."""
    if "name" not in data:
        stem = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._")
        data["name"] = stem or "deduper"
    store = data.setdefault("store", {})
    if isinstance(store, dict) and "url" not in store:
        store["url"] = f"rocksdb:state/{data['name']}"


def _in_reading_order(problems: list[Problem]) -> list[Problem]:
    """Those of the file first, by line; then the environment's and the flags', in the order they were found."""
    return sorted(
        problems,
        key=lambda problem: (problem.place.line is None, problem.place.line or 0, problem.place.column or 0),
    )


def _effective(config: Config, merged: MergedSettings) -> list[EffectiveSetting]:
    settings: list[EffectiveSetting] = []
    values = config.model_dump(mode="json", by_alias=True)
    _flatten(values, (), merged, settings)
    return settings


def _flatten(value: Any, path: SettingPath, merged: MergedSettings, into: list[EffectiveSetting]) -> None:
    if value is None:
        return
    if isinstance(value, dict) and (value or not path):
        for name, inner in value.items():
            _flatten(inner, (*path, name), merged, into)
        return
    setting = ".".join(path)
    shown = [masked(setting, item) for item in value] if isinstance(value, list) else masked(setting, value)
    into.append(EffectiveSetting(setting, shown, merged.source_of(path)))
