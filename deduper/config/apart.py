"""Folders that must not be one, or lie in each other: inputs, stores, tables and ports.

Links and `..` are resolved, so two names of a folder are one folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

WILDCARDS = "*?[{"


@dataclass(frozen=True, slots=True)
class Clash:
    """The folder `name` is that of `other`, or one of them lies in the other."""

    name: str
    other: str
    place: Path | str
    is_same: bool

    @property
    def what(self) -> str:
        """What is wrong with the setting `name`."""
        if self.is_same:
            return f"is the folder of `{self.other}`"
        return f"overlaps `{self.other}` ({self.place}): one lies inside the other"

    @property
    def write(self) -> str:
        """What to write instead."""
        return "write another one" if self.is_same else "write a folder apart from it"


def clashes(places: Mapping[str, Path | str | None], flat: Collection[str] = ()) -> Iterator[Clash]:
    """All pairs of folders, by name, that are not apart; None is no folder.

    Of those in `flat` only the files directly in them are read, so others may lie inside.
    """
    given = [(name, place, _folder(place)) for name, place in places.items() if place is not None]
    for (other, place, one), (name, _, two) in combinations(given, 2):
        if one == two or (_overlap(one, two) and name not in flat and other not in flat):
            yield Clash(name, other, place, one == two)


def overlap(one: Path | str, other: Path | str) -> bool:
    """Whether a folder is, or lies in, the other one: paths of this machine, or URLs."""
    return _overlap(_folder(one), _folder(other))


def before_wildcards(path: Path | str) -> Path:
    """The part of a pattern before its first wildcard: every file that it names is below."""
    parts = []
    for part in Path(path).parts:
        if any(character in part for character in WILDCARDS):
            break
        parts.append(part)
    return Path(*parts)


_Folder = tuple[str, PurePosixPath]
"""Storage and path."""


def _overlap(one: _Folder, other: _Folder) -> bool:
    (storage, path), (others, inner) = one, other
    return storage == others and (path == inner or path in inner.parents or inner in path.parents)


def _folder(place: Path | str) -> _Folder:
    scheme, is_url, rest = str(place).partition("://")
    if not is_url:
        return "", PurePosixPath(Path(place).resolve())
    authority, _, path = rest.partition("/")
    path = path if scheme in _NAMES_AS_THEY_ARE else posixpath.normpath(f"/{path}")
    return f"{scheme}://{authority.lower()}", PurePosixPath("/", path)


_NAMES_AS_THEY_ARE = ("s3", "gs", "az", "objects")
"""Object stores, in whose names `..` is a name like others."""
