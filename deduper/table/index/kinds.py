"""The index that a setting names: a kind of this package, or one's own class as `package.module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from deduper.table.errors import SettingError
from deduper.table.index.bloom.kind import BloomIndex
from deduper.table.index.exact.kind import ExactIndex
from deduper.table.index.external.kind import ExternalIndex
from deduper.table.index.protocol import TableIndex
from deduper.table.index.simple import SimpleIndex

_KINDS: Mapping[str, type[TableIndex]] = {
    "exact": ExactIndex,
    "bloom": BloomIndex,
    "simple": SimpleIndex,
    "external": ExternalIndex,
}
_WITHOUT_OPTIONS = ("exact", "simple")
_WRITE = "write `exact`, `bloom`, `simple`, `external`, or a class of your own as `package.module:Class`"
_METHODS = ("open", "view", "rebuild", "status", "columns_of")


def index_of(kind: str, options: Mapping[str, Any]) -> TableIndex:
    """The index of a kind; `options` are the keyword arguments of `bloom`, `external` and one's own class.

    Raises:
        SettingError: of `index.kind` or `index.options`, naming what is wrong.
    """
    made = _KINDS.get(kind) or _own_class(kind)
    if kind in _WITHOUT_OPTIONS and options:
        raise SettingError("index.options", f"`{kind}` has none", "leave them out")
    try:
        return made(**options)
    except TypeError as error:
        names = ", ".join(inspect.signature(made).parameters)
        write = f"its options are {names}" if names else "it has none, leave them out"
        raise SettingError("index.options", f"`{kind}` does not take them: {error}", write) from error


def _own_class(kind: str) -> type[TableIndex]:
    module, colon, name = kind.partition(":")
    if not colon:
        raise SettingError("index.kind", f"`{kind}` is not a valid choice", _WRITE)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise SettingError("index.kind", f"`{kind}` cannot be imported: {error}", _WRITE) from error
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if not inspect.isclass(found) or missing:
        what = f"`{kind}` is no class of an index" + (f": it has no `{missing[0]}`" if missing else "")
        raise SettingError("index.kind", what, "see `deduper.table.index.protocol.TableIndex`")
    return cast("type[TableIndex]", found)
