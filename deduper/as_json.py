"""Reports as JSON: the fields and properties of a dataclass under stable keys. PURE.

A key is the field's name, without `is_`; `size_bytes` has the key `bytes`. Names are part of the command line's
interface: `tests/deduper/admin/answers.json` pins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from bucket_store.places.place import Place


@dataclass(frozen=True, slots=True)
class AsJson:
    """A report that `--json` prints. `json_names`: its fields and properties in order; empty for all fields."""

    json_names: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """The report of values that `json.dumps` takes."""
        names = self.json_names or tuple(field.name for field in fields(self))
        return {_key(name): _json_value(getattr(self, name)) for name in names}


def _key(name: str) -> str:
    return "bytes" if name == "size_bytes" else name.removeprefix("is_")


def _json_value(value: Any) -> Any:
    if isinstance(value, AsJson):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path | Place):
        return str(value)
    if isinstance(value, Mapping):
        return {_json_value(key): _json_value(inner) for key, inner in value.items()}
    return [_json_value(inner) for inner in value] if isinstance(value, tuple | list) else value
