"""The setting `fingerprint`: which parts of a record are its payload. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from deduper.columns import Column, ColumnType
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.problems import ConfigMistake, suggestion
from deduper.config.values import Section, refusal, shown
from deduper.payload import WHOLE_VALUE, Leaf, identity, leaves, leaves_named

_ADVICE = "write `all`, `{columns: [page, meta.device]}`, `{except: [sent_at]}`, `value` (topics) or `none`"
_OF_ARRIVAL = ("topic", "partition", "offset", "timestamp")
"""Parts of a topic's record that another copy never or rarely shares."""


class PayloadColumns(Section):
    """Some parts of a record, or all but some. Exactly one of the two is there."""

    model_config = ConfigDict(populate_by_name=True)

    columns: tuple[str, ...] | None = Field(default=None, description="These columns, or fields of objects: `meta.os`")
    excepted: tuple[str, ...] | None = Field(
        default=None, alias="except", description="All columns but the key and these, or all but these fields"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The paths as they are written."""
        return (self.columns if self.columns is not None else self.excepted) or ()

    @property
    def place(self) -> Literal["columns", "except"]:
        """The setting that has them."""
        return "except" if self.columns is None else "columns"


def _read(value: object) -> object:
    if value in ("none", "all", "value") or isinstance(value, PayloadColumns):
        return value
    if not isinstance(value, dict):
        raise refusal(f"`{shown(value)}` says of no columns", _ADVICE)
    value = {name: given for name, given in value.items() if given is not None}
    if len(value) != 1 or not value.keys() <= {"columns", "except"}:
        raise refusal("must have either `columns` or `except`", _ADVICE)
    ((name, given),) = value.items()
    paths = (given,) if isinstance(given, str) else given
    if not isinstance(paths, list | tuple) or not paths:
        raise refusal("must be a list of columns", _ADVICE, at=(name,))
    for position, path in enumerate(paths):
        if not isinstance(path, str):
            raise refusal(f"`{shown(path)}` is no column", _ADVICE, at=(name, str(position)))
    return PayloadColumns(**{name: tuple(paths)})


Fingerprint = Annotated[
    Literal["none", "all", "value"] | PayloadColumns,
    BeforeValidator(_read),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "all", "value"]},
                {
                    "type": "object",
                    "properties": {
                        name: {"type": "array", "items": {"type": "string"}, "minItems": 1}
                        for name in ("columns", "except")
                    },
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": False,
                },
            ],
            "x-kind": "`none`, `all`, `value`, `{columns: […]}` or `{except: […]}`",
        }
    ),
]
"""What is compared of two records with one key."""


def payload_of(setting: Any, source: Any, key: Sequence[str]) -> tuple[Leaf, ...] | None:
    """The parts of records that a fingerprint is made of; None: their value as bytes. Empty without fingerprints."""
    if setting == "value":
        return None
    if setting == "none":
        return ()
    every = tuple(leaves(_payload_columns(source, key)))
    if setting == "all":
        return every
    named = {leaf for name in setting.names for leaf in leaves_named(name, source.parsed_columns)}
    if setting.columns is not None:
        return tuple(sorted(named, key=lambda leaf: leaf.path))
    return tuple(leaf for leaf in every if leaf not in named)


def payload_identity(payload: tuple[Leaf, ...] | None, zone: str) -> str:
    """Names what fingerprints are made of; only those of one identity are compared. `zone`: of times without one."""
    if payload is None:
        return identity((WHOLE_VALUE,)) + "-bytes"
    has_zone = zone != "UTC" and any(_has_times(leaf.kind) for leaf in payload)
    return identity(payload) + (f"-{zone}" if has_zone else "")


def _has_times(kind: ColumnType) -> bool:
    return kind.name == "timestamp" or any(_has_times(part.type) for part in kind.parts)


def mistakes(source: Any, key: tuple[str, ...], setting: Any) -> Iterator[ConfigMistake]:
    """What is wrong with the setting for a source."""
    if setting == "none":
        return
    if setting == "value":
        if not isinstance(source, KafkaSource):
            yield ConfigMistake(
                ("fingerprint",), "`value` is the value of a topic's record", "write `fingerprint: all`"
            )
        return
    if isinstance(setting, PayloadColumns):
        found = list(_wrong_names(source, key, setting))
        yield from found
        if found:
            return
    payload = payload_of(setting, source, key) or ()
    if not payload:
        yield ConfigMistake(("fingerprint",), "leaves no column to compare", "name the columns of the payload")
    for leaf in payload:
        if _is_opaque(leaf.kind):
            what = f"column `{leaf.name}` is {leaf.kind.text}, whose values have no fingerprint"
            yield ConfigMistake(("fingerprint",), what, f"write `fingerprint: {{except: [{leaf.name}]}}`, or cast it")


def _wrong_names(source: Any, key: tuple[str, ...], setting: PayloadColumns) -> Iterator[ConfigMistake]:
    for position, name in enumerate(setting.names):
        path = ("fingerprint", setting.place, str(position))
        if name in key:
            yield ConfigMistake(path, f"column `{name}` is part of the key, which copies share", "remove it")
        elif not leaves_named(name, source.parsed_columns):
            names = [
                *(column.name for column in source.parsed_columns),
                *(one.name for one in leaves(source.parsed_columns)),
            ]
            yield ConfigMistake(path, f"no column or field is named `{name}`", suggestion(name, names, "there are"))


def _is_opaque(kind: ColumnType) -> bool:
    """Whether a type of Spark's that no job can declare is in it: see `config.query.column_of`."""
    return (kind.name == "struct" and not kind.parts) or any(_is_opaque(part.type) for part in kind.parts)


def _payload_columns(source: Any, key: Sequence[str]) -> list[Column]:
    """All columns but the key, and those that say where or when a record has arrived."""
    left_out = {*key, *getattr(source, "row_place", ())}
    if isinstance(source, KafkaSource):
        left_out |= {column.name for column, part in source.record_columns if part in _OF_ARRIVAL}
    if isinstance(source, FilesSource) and source.name_pattern is not None:
        left_out |= re.compile(source.name_pattern).groupindex.keys()
    return [column for column in source.parsed_columns if column.name not in left_out]
