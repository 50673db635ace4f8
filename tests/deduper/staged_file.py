"""Staged files as writers leave them: durable but for their names, and described."""

from __future__ import annotations

from pathlib import Path

from bucket_store.places.local import local_place
from bucket_store.places.new_file import FileWriter
from bucket_store.places.place import Place
from deduper.tasks.write import StagedFile


def staged_file(port: str, place: Place, data: bytes, rows: int, slots: tuple[int, ...] = ()) -> StagedFile:
    """A new file with these bytes."""
    file = FileWriter(place)
    file.write(data)
    file.finish()
    file.close()
    return StagedFile(port, place, rows, file.size_bytes, file.checksum, slots)


def described(port: str, path: Path, rows: int, slots: tuple[int, ...] = ()) -> StagedFile:
    """A file that is there, written over with its own bytes."""
    return staged_file(port, local_place(path), path.read_bytes(), rows, slots)
