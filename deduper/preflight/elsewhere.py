"""Checks of a place that is not on this machine."""

from __future__ import annotations

from bucket_store.errors import UnsafeStorageError
from bucket_store.places.place import Place
from bucket_store.places.probe import demand_refusal
from deduper.diagnostics import note
from deduper.errors import CannotWriteError
from deduper.preflight.results import Failure, Results


def reachable(place: str, folder: Place) -> Results:
    """A folder on another storage answers, can be written to, and refuses what two owners would do to each other."""
    try:
        folder.exists()
    except OSError as error:
        what = f"{place}: {folder} does not answer: {error}; see that the storage runs and lets this user in"
        yield Failure(place, CannotWriteError(what))
        return
    try:
        if place == "store":
            demand_refusal(folder)
    except UnsafeStorageError as error:
        yield Failure(place, error)
    except OSError as error:
        what = f"{place}: {folder} cannot be written to: {error}"
        yield Failure(place, CannotWriteError(f"{what}; give this user the rights to get, put, list and delete"))
    else:
        yield note("space", place, f"{folder} answers; its room is the storage's")
