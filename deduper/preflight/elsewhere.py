"""Checks of a place that is not on this machine."""

from __future__ import annotations

import errno

from bucket_store.errors import StorageAwayError, UnsafeStorageError
from bucket_store.places.outages import storage_of
from bucket_store.places.place import Place
from bucket_store.places.probe import demand_refusal
from deduper.diagnostics import note
from deduper.errors import CannotWriteError
from deduper.preflight.results import Failure, Results
from deduper.spark.failures import storage_away
from deduper.window.leftovers import discard_temporary, store_folders


def reachable(place: str, folder: Place, *, is_unowned: bool = False) -> Results:
    """A folder on another storage answers, can be written to, and refuses what two owners would do to each other.

    `is_unowned`: no owner of the store is alive, and a start may remove what an earlier one has left.
    """
    try:
        folder.exists()
    except StorageAwayError as error:
        yield Failure(place, error, storage_of(folder.url))
        return
    except OSError as error:
        what = f"{place}: {folder} does not answer: {error}; see that the storage runs and lets this user in"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
        return
    try:
        if place == "store":
            _demand_refusal(folder, is_unowned=is_unowned)
    except UnsafeStorageError as error:
        yield Failure(place, error)
    except FileNotFoundError:
        what = f"{place}: {folder}: there is no bucket {storage_of(folder.url)}; create it, or correct the name"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
    except OSError as error:
        away = storage_away(error)
        if away is not None:
            yield Failure(place, away, storage_of(folder.url))
            return
        what = f"{place}: {folder} cannot be written to: {error}"
        has_remedy = folder.names.scheme == "hdfs" and error.errno in (errno.EACCES, errno.EDQUOT)
        advice = "" if has_remedy else "; give this user the rights to get, put, list and delete"
        yield Failure(place, CannotWriteError(f"{what}{advice}"))
    else:
        yield note("space", place, f"{folder} answers; its room is the storage's")


def _demand_refusal(folder: Place, *, is_unowned: bool) -> None:
    """See `demand_refusal`. If the quota is used up, without what dead processes have left, which may be all of it."""
    try:
        demand_refusal(folder)
    except OSError as error:
        if error.errno != errno.EDQUOT or not is_unowned or not discard_temporary(store_folders(folder)):
            raise
        demand_refusal(folder)
