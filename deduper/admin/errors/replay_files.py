"""The records and notes of replays as files of a store, for a copy of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from bucket_store.places.place import Place

DIRECTORY: Final = "replays"
_NAME = re.compile(r"\d{6}|topic-.+-\d{6,}")


def read_files(root: Place) -> dict[str, bytes]:
    """The bytes of each record and note, by its name. Safe beside a replay, which replaces notes."""
    folder = root / DIRECTORY
    while True:
        try:
            return {name: (folder / name).read() for name in folder.listed() if _NAME.fullmatch(name)}
        except FileNotFoundError:
            continue


def put_files(root: Place, files: Mapping[str, bytes]) -> None:
    """Make these the records and notes of another store, durably: what it has beside them is removed."""
    folder = root / DIRECTORY
    there = {name for name in folder.listed() if _NAME.fullmatch(name)}
    if files:
        folder.make_directories()
    for name, data in files.items():
        if name in there and (folder / name).read() == data:
            continue
        (folder / name).remove()
        (folder / name).create(data)
    for name in there - files.keys():
        (folder / name).remove()
