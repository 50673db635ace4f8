"""Sources files that no record names any more: they were folded, or their windows are forgotten.

The next start removes one that a kill has left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import PurePosixPath

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.sources_archive import left_files, remove_left
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.places.place import Place

logger = logging.getLogger(__name__)

_FINISH_S = 10.0


class LeftSources:
    """Removes sources files after each record that drops some, many in the background. For the judging thread."""

    def __init__(self, log: CommitLog, in_background: InBackground) -> None:
        self._log = log
        self._aside = in_background
        self._named = log.state
        self._removals: list[_Removal] = []

    def remove(self) -> None:
        """Remove the files that the records since the last call no longer name, or begin to remove them.

        Raises:
            OSError: one file cannot be removed.
        """
        before, self._named = self._named, self._log.state
        left = left_files(before, self._named)
        self._removals = [removal for removal in self._removals if not removal.is_over.is_set()]
        if len(left) > 1:
            removal = _Removal(self._log.root, left)
            self._removals.append(removal)
            self._aside(removal.run)
        else:
            remove_left(self._log.root, left)

    def finish(self) -> None:
        """After the last window: remove what is left, and wait until all of it is gone. Raises as `remove`."""
        self.remove()
        for removal in self._removals:
            if not removal.is_over.wait(_FINISH_S):
                logger.warning("files of sources are still being removed after %d s; the next start does it", _FINISH_S)
                return


class _Removal(BackgroundTask):
    def __init__(self, root: Place, paths: Sequence[PurePosixPath]) -> None:
        super().__init__()
        self._root = root
        self._paths = paths

    def act(self) -> None:
        try:
            remove_left(self._root, self._paths)
        except OSError as exc:
            logger.warning("files of sources are left for the next start: %s", exc)
