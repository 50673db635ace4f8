"""Waits for a job's storages after a task has failed because one was away: tasks wait for none by themselves.

What has failed is done again once a file can be written to each of them from here, by the deadline of `store.deadline`.
A task tries for up to 20 s, and a cluster repeats it before the driver hears of it: so the driver looks for itself.
"""

from __future__ import annotations

import logging
import threading
import time

from bucket_store.errors import StoreError
from bucket_store.filesystem import temporary_name
from bucket_store.places.outages import end_if_stopped, is_waiting, note, storage_of
from bucket_store.places.place import Place
from bucket_store.threads import on_a_thread
from deduper.config.model import Config
from deduper.errors import StopRequested
from deduper.spark.failures import storage_away

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_LOOK_EVERY_S = 2.0
_TRIED_S = 6.0
"""A task has tried for so long at least when it fails."""


class StorageWait:
    """The waits of one owner. For one thread."""

    def __init__(self, config: Config) -> None:
        self._places = _elsewhere(config)
        self._deadline_s = config.store.deadline / 1e6
        self._since: float | None = None

    def is_over(self, failure: Exception) -> bool:
        """Whether the failure is of a storage that was away, and writes again: then the work is to be done again.

        Raises:
            StorageAwayError: it is away for longer than the deadline, or nothing waits here.
            StopRequested: a stop was requested meanwhile.
        """
        away = storage_away(failure)
        if away is None or not self._places or not is_waiting():
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        else:  # tasks still do not reach it, though this process does
            end_if_stopped()
        if now - self._since > self._deadline_s:
            return False
        storage = storage_of(away)  # its text begins with the URL
        if storage:
            note(storage, away, now - _TRIED_S)
        time.sleep(_PAUSE_S)
        for place in self._places:
            _demand_a_file(place)
        return True

    def succeeded(self) -> None:
        """The work is done: the deadline begins again."""
        self._since = None


class OutageWatch:
    """Looks whether a job's storages take files, so that an outage gets its lines from the tenth second on."""

    def __init__(self, config: Config) -> None:
        # Of each storage one place: the store's before a port's, which others list.
        self._places = list({storage_of(place): place for place in reversed(_elsewhere(config))}.values())

    def look_until(self, ended: threading.Event) -> None:
        """Begin a thread that looks every few seconds until the work of a window has `ended`."""
        if self._places:
            on_a_thread(lambda: self._look(ended))

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_EVERY_S):
            try:
                for place in self._places:
                    _demand_a_file(place)
            except (OSError, StoreError, StopRequested) as exc:
                # The job meets it too.
                logger.debug("no longer looking whether storages take files: %s", exc)
                return


def _elsewhere(config: Config) -> list[Place]:
    """The store and the ports that are not on this machine."""
    places = [config.store.place, *(sink.place for sink in config.file_ports.values())]
    return [place for place in dict.fromkeys(places) if not place.is_local]


def _demand_a_file(folder: Place) -> None:
    file = folder / temporary_name("probe")
    file.create(b"1")
    file.remove()
