"""Files and folders of a store and its ports on any storage, as the commands look at them."""

from __future__ import annotations

from contextlib import suppress

from bucket_store.places.place import Entry, Place


def inside(folder: Place) -> list[Entry]:
    """What is in a folder, by name; nothing when it is absent, or when a file has its name."""
    with suppress(NotADirectoryError):
        return folder.entries()
    return []


def bytes_of(folder: Place, entry: Entry) -> int:
    """Bytes of an entry of a folder: a file's, or those of all files below; what cannot be listed counts nothing."""
    if not entry.is_directory:
        return entry.size
    below = folder / entry.name
    with suppress(OSError):
        return sum(bytes_of(below, inner) for inner in below.entries())
    return 0


def entry_of(place: Place) -> Entry | None:
    """The entry of a file or a folder; None when it is gone."""
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def is_file(place: Place) -> bool:
    """Whether a file has this name now."""
    try:
        return not place.stat().is_directory
    except (FileNotFoundError, NotADirectoryError):
        return False
