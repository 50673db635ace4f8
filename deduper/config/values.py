"""The kinds of values a setting can have: durations, sizes, paths, names, and how each is read and printed.

Every type reads the text a person writes, refuses with what to write instead, and is written back by
`model_dump(mode="json")` as a text that reads back to the same value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from deduper.columns import Column, DdlError, parse_columns
from deduper.config.problems import mask_text, suggestion
from deduper.log_formats import wrong_columns
from deduper.units import MAX_I64, UnitError, format_duration, format_size, parse_duration, parse_size

REFUSED = "refused"
"""The pydantic error type of every refusal of ours; its context holds `what`, `write` and perhaps `offset`."""


def refusal(
    what: str, write: str, *, offset: int | None = None, at: tuple[str, ...] = (), at_key: bool = False
) -> PydanticCustomError:
    """An error for pydantic that says what is wrong and what to write.

    `offset` is the character of the setting's text at which the mistake is. A section that refuses one of its settings
    names it with `at`; `at_key` means its name more than its value.
    """
    context: dict[str, Any] = {"what": what, "write": write, "offset": offset, "at": at, "at_key": at_key}
    return PydanticCustomError(REFUSED, "{what}; {write}", context)


def shown(value: object) -> str:
    """A value as a message quotes it: without logins, at most 60 characters."""
    text = value if isinstance(value, str) else repr(value)
    if value is True or value is False:
        text = str(value).lower()
    elif value is None:
        text = "null"
    text = mask_text(text)
    return text if len(text) <= 60 else text[:57] + "..."


class Section(BaseModel):
    """Base of all sections: frozen; an unknown setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _read_duration(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise refusal(f"`{shown(value)}` is not a duration", "write a number and a unit, such as `90s` or `24h`")
    try:
        return parse_duration(str(value))
    except UnitError as error:
        raise refusal(error.what, error.write) from None


def read_period(value: object) -> int:
    """µs of a duration that is more than zero.

    Raises:
        PydanticCustomError: not a duration, or zero.
    """
    duration_us = _read_duration(value)
    if duration_us == 0:
        raise refusal("a duration of zero is not allowed", "write more than `0s`")
    return duration_us


def _read_duration_or_off(value: object) -> int | None:
    if value is False or value == "off":
        return None
    if value is True:
        raise refusal("`true` is not a duration", "write a duration such as `1h`, or `off`")
    return read_or("off", _read_duration, value)


def read_or(word: str, read: Callable[[object], int], value: object) -> int:
    """What `read` makes of a value; a refusal names the word that may stand in its place, too."""
    try:
        return read(value)
    except PydanticCustomError as error:
        context = error.context or {}
        raise refusal(context["what"], f"{context['write']}; or write `{word}`") from None


def _read_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise refusal(f"`{shown(value)}` is not a size", "write a number and a unit, such as `2GiB`")
    try:
        size_bytes = parse_size(str(value))
    except UnitError as error:
        raise refusal(error.what, error.write) from None
    if size_bytes == 0:
        raise refusal("a size of zero is not allowed", "write more than `0B`")
    return size_bytes


def _read_number(value: object) -> int | float:
    if isinstance(value, str):
        try:
            value = int(value) if re.fullmatch(r"[+-]?\d+", value) else float(value)
        except ValueError:
            raise refusal(f"`{shown(value)}` is not a number", _NUMBER_ADVICE) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refusal(f"`{shown(value)}` is not a number", _NUMBER_ADVICE)
    if value <= 0:
        raise refusal(f"must be more than 0, found {shown(value)}", _NUMBER_ADVICE)
    if isinstance(value, int) and value > MAX_I64:
        raise refusal(f"`{shown(value)}` is too large", "write at most 9223372036854775807")
    return value


_NUMBER_ADVICE = "write a plain number such as `1000`: `ordered` has no units"


def _read_number_or_off(value: object) -> int | float | None:
    if value is False or value == "off":
        return None
    return _read_number(value)


def _read_count(value: object) -> object:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise refusal(f"must be a whole number, found `{shown(value)}`", "write digits only")
    return value


def resolve(text: str, info: ValidationInfo) -> Path:
    """An absolute path: relative ones start at the folder of the config file (`base_dir` of the validation context).

    Raises:
        PydanticCustomError: it is none.
    """
    base_dir = (info.context or {}).get("base_dir") or Path.cwd()
    if "\0" in text:
        written = shown(text.replace("\0", "\\0"))
        raise refusal(f"`{written}`: no path has a `\\0`", _PATH_ADVICE)
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        advice = f"write the folder in full, or `./{user}` for a name that begins with `~`"
        raise refusal(f"`{shown(text)}`: the user of `{user}` is unknown here", advice) from None
    try:
        return Path(base_dir, path).resolve()
    except RuntimeError:
        raise refusal(f"`{shown(text)}` has a symbolic link that leads to itself", "write another path") from None


_PATH_ADVICE = "write a path such as `out/unique`"


def read_schema(value: object) -> object:
    """Columns as DDL, each of which can be a column of a source.

    Raises:
        PydanticCustomError: one cannot.
    """
    if isinstance(value, Mapping | list):
        raise refusal(
            f"must be text, found a {'list' if isinstance(value, list) else 'mapping'}",
            'write all columns in one text, such as `"user string, id long, ts timestamp"`',
        )
    if not isinstance(value, str):
        return value
    try:
        columns = parse_columns(value)
    except DdlError as error:
        raise refusal(error.what, error.write, offset=error.offset) from None
    for column in columns:
        refuse_taken_name(column.name)
    return value


def refuse_taken_name(name: str, *, at: tuple[str, ...] = ()) -> None:
    """Refuse a column whose name is that of one which deduper adds.

    Raises:
        PydanticCustomError: it is.
    """
    if name.lower().startswith("_dedup"):
        raise refusal(
            f"column `{name}` would collide with the struct that deduper adds to every row",
            "rename the column; names that begin with `_dedup` are reserved",
            at=at,
            at_key=bool(at),
        )
    if name.lower() in _TAKEN:
        what = f"column `{name}` would collide with a column of deduper's own"
        raise refusal(what, "rename the column", at=at, at_key=bool(at))


_TAKEN = ("_port", "_record")


def _read_delimiter(value: object) -> object:
    if isinstance(value, str) and (len(value) != 1 or value in '\r\n"'):
        raise refusal(f"must be one character, found `{shown(value)}`", 'write one such as `","` or `"\\t"`')
    return value


def _read_path(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise refusal(f"`{shown(value)}` is not a path", _PATH_ADVICE)
    return resolve(local_path(value), info)


def _read_port_url(value: object, info: ValidationInfo) -> str:
    scheme, colon, _ = str(value).strip().partition(":")
    if colon and scheme.lower() in (*OBJECT_STORES, *OTHER_OBJECT_STORES):
        raise refusal(
            f"a port of files cannot be in an object store (`{scheme}:`): files appear by a rename, and objects have "
            "none",
            "write a local path such as `out/unique`, `hdfs://HOST:PORT/PATH`, or `format: kafka` and a topic",
        )
    if not isinstance(value, str) or not value.strip().lower().startswith("hdfs:"):
        return str(_read_path(value, info))
    return read_hdfs_url(value)


def read_hdfs_url(value: str) -> str:
    """The URL of a folder in HDFS, without a slash at its end.

    Raises:
        PydanticCustomError: it has no authority or no path, or more than both; or the client is not installed.
    """
    if find_spec("hdfs_native") is None:
        raise refusal("HDFS needs the package hdfs-native", "install it: pip install 'stream-deduper[hdfs]'")
    parts = urlsplit(value.strip())
    path = parts.path.rstrip("/")
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment or not path:
        raise refusal(f"`{shown(value)}` is not the URL of a folder in HDFS", "write `hdfs://HOST:PORT/PATH`")
    return f"hdfs://{parts.netloc}{path}"


def _read_path_or_auto(value: object, info: ValidationInfo) -> Path | str:
    return "auto" if value == "auto" else _read_path(value, info)


def _read_spark_value(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise refusal(f"must be text, a number, true or false, found `{shown(value)}`", "put the value in quotes")
    return value


OBJECT_STORES = ("s3", "gs", "az", "objects")
"""The schemes of URLs of object stores; the last one is for tests."""

OTHER_OBJECT_STORES = {"s3a": "s3:", "s3n": "s3:", "gcs": "gs:", "azure": "az:", "abfs": "az:", "abfss": "az:"}
"""How other programs call them."""


def local_path(text: str) -> str:
    """The path of a text without its `file:` scheme.

    Raises:
        PydanticCustomError: another scheme, which this release does not reach.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", text)
    if scheme is None:
        return text
    if scheme[1].lower() == "file":
        path = text[scheme.end(1) + 1 :]
        return path[2:] if path.startswith("//") else path
    raise refusal(f"`{scheme[1]}:` paths are not in this release", "write a local path such as `out/unique`")


Duration = Annotated[
    int,
    BeforeValidator(read_period, json_schema_input_type=str),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "duration"}),
]
"""µs, more than zero."""

DurationOrOff = Annotated[
    int | None,
    BeforeValidator(_read_duration_or_off),
    PlainSerializer(lambda value: "off" if value is None else format_duration(value), when_used="json"),
    WithJsonSchema({"type": ["string", "boolean"], "x-kind": "duration or off"}),
]
"""µs, or None for `off`."""

Size = Annotated[
    int,
    BeforeValidator(_read_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "size"}),
]
"""Bytes, more than zero."""

Number = Annotated[
    int | float,
    BeforeValidator(_read_number),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "x-kind": "number"}),
]
"""A finite number, more than zero."""

NumberOrOff = Annotated[
    int | float | None,
    BeforeValidator(_read_number_or_off),
    PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    WithJsonSchema({"type": ["number", "string", "boolean"], "x-kind": "number or off"}),
]
"""A finite number more than zero, or None for `off`."""

Count = Annotated[int, BeforeValidator(_read_count)]
"""A whole number; the field adds its bounds."""

LocalPath = Annotated[
    Path,
    BeforeValidator(_read_path),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "path"}),
]
"""An absolute local path."""

PortUrl = Annotated[
    str, BeforeValidator(_read_port_url), WithJsonSchema({"type": "string", "x-kind": "path or HDFS URL"})
]
"""An absolute local path, or a whole URL in HDFS."""

PathOrAuto = Annotated[
    Path | str,
    BeforeValidator(_read_path_or_auto),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "path or auto"}),
]
"""An absolute local path, or the text `auto`."""


def read_expression(value: object, example: str) -> str:
    """A regular expression of Python's, as it is written.

    Raises:
        PydanticCustomError: it is none.
    """
    advice = f"write one such as `{example}`"
    if not isinstance(value, str) or not value.strip():
        raise refusal(f"`{shown(value)}` is not a regular expression", advice)
    try:
        re.compile(value)
    except re.error as error:
        raise refusal(f"is not a regular expression: {error.msg}", advice, offset=error.pos) from None
    except (RecursionError, OverflowError):
        raise refusal("is nested too deep", advice) from None
    return value


def _read_name_pattern(value: object) -> str:
    example = r"access-(?P<day>\d{4}-\d{2}-\d{2})\.log.*"
    pattern = read_expression(value, example)
    if not re.compile(pattern).groupindex:
        raise refusal("has no named group, so it gives no column", f"write one such as `{example}`")
    return pattern


NamePattern = Annotated[
    str,
    BeforeValidator(_read_name_pattern),
    WithJsonSchema({"type": "string", "x-kind": "regular expression with named groups"}),
]
"""A regular expression, Python's, for the whole name of a file; its named groups are columns."""


def unknown_groups(pattern: str, columns: Iterable[Column]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to write) of each named group that is no scalar column."""
    kinds = {column.name: column.type for column in columns}
    for name in re.compile(pattern).groupindex:
        if name not in kinds:
            yield f"the schema has no column `{name}`", suggestion(name, [*kinds], "its columns are")
        elif not kinds[name].is_scalar:
            what = f"column `{name}` is {kinds[name].text}, which a name does not have"
            yield what, "declare it as string"


def require_fields(form: str, ddl: str | None, name_pattern: str | None = None) -> None:
    """Raises PydanticCustomError unless the lines, or the names of files, of a format can give a section's columns."""
    given = re.compile(name_pattern or "").groupindex
    columns = [column for column in parse_columns(ddl or "") if column.name not in given] if ddl else []
    for what, write in wrong_columns(form, columns, all_in_lines=True):
        raise refusal(what, write, at=("schema",))


Schema = Annotated[str, BeforeValidator(read_schema)]
"""Columns as Spark DDL."""

Delimiter = Annotated[str, BeforeValidator(_read_delimiter)]
"""One character between the fields of CSV."""

SparkValue = Annotated[str | int | float | bool, BeforeValidator(_read_spark_value)]
"""The value of a Spark setting."""
