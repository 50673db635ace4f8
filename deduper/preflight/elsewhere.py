"""Checks of a place that is not on this machine."""

from __future__ import annotations

from urllib.parse import urlsplit

from bucket_store.errors import UnsafeStorageError
from bucket_store.places.place import Place
from bucket_store.places.probe import demand_refusal
from deduper.diagnostics import note
from deduper.errors import CannotWriteError
from deduper.preflight.results import Failure, Results


def storage_of(url: object) -> str:
    """The storage of a URL, as `hdfs://host:port`; empty for a path of this machine."""
    parts = urlsplit(str(url or ""))
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def reachable(place: str, folder: Place) -> Results:
    """A folder on another storage answers, can be written to, and refuses what two owners would do to each other."""
    try:
        folder.exists()
    except OSError as error:
        what = f"{place}: {folder} does not answer: {error}; see that the storage runs and lets this user in"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
        return
    try:
        if place == "store":
            demand_refusal(folder)
    except UnsafeStorageError as error:
        yield Failure(place, error)
    except FileNotFoundError:
        what = f"{place}: {folder}: there is no bucket {storage_of(folder.url)}; create it, or correct the name"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
    except OSError as error:
        what = f"{place}: {folder} cannot be written to: {error}"
        yield Failure(place, CannotWriteError(f"{what}; give this user the rights to get, put, list and delete"))
    else:
        yield note("space", place, f"{folder} answers; its room is the storage's")
