"""PURE. Names of prepared replacements, on storages that can rename: temporary ones that hold the epoch."""

from __future__ import annotations

import re

from bucket_store.filesystem import temporary_name

_DIGITS = 6
_PREPARED = re.compile(r"\.(\w+)\.(\d{6,})\.\w+\.tmp")


def prepared_name(name: str, epoch: int) -> str:
    """A new name for the replacement of the file `name` that an epoch has prepared."""
    return temporary_name(f"{name}.{epoch:0{_DIGITS}d}")


def prepared_below(names: list[str], name: str, epoch: int) -> list[str]:
    """Those of the names that lower epochs have given to replacements of the file `name`."""
    found = [(one, _PREPARED.fullmatch(one)) for one in names]
    return [one for one, parts in found if parts and parts[1] == name and int(parts[2]) < epoch]
