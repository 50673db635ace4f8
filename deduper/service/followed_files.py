"""A source of files as a planned source: it is listed at the start, and again when nothing of a listing is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from deduper.errors import DeduperError, SourceAwayError
from deduper.kafka.retry import ThrottledLog
from deduper.sources.files.batch import FileBatches, SourceFileBatch
from deduper.sources.protocol import SourceBatch
from deduper.units import counted
from deduper.window.progress import PROGRESS


class FollowedFiles:
    """See `PlannedSource`. `listed` is called after every listing, `away` where that fails and is tried again."""

    def __init__(
        self,
        files: FileBatches,
        listed: Callable[[FileBatches], None] = lambda _: None,
        away: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._listed = listed
        self._is_away = away
        self._is_drained = False
        self._away = ThrottledLog(time.monotonic)

    @property
    def place(self) -> str:
        """The folder or pattern that is listed."""
        return self._files.place

    def begin(self, *, drain: bool) -> None:
        """List the files; to drain the source, for the only time.

        Raises:
            DeduperError: the source cannot be listed, and is to be drained.
        """
        self._is_drained = drain
        self._list(is_needed=drain)
        if self._files.unfinished:
            what = counted(self._files.unfinished, "file")
            PROGRESS.info("%s in %s: empty or not finished by the writer; looked at again later", what, self.place)
        if self._files.pending:
            PROGRESS.info("%s to judge", counted(self._files.pending, "file"))
        elif not drain:
            PROGRESS.info("waiting for the first files in %s", self.place)

    def next_batch(self) -> SourceFileBatch | None:
        """The oldest files that were not judged. A listing that is used up is made anew.

        Raises:
            SourceAwayError: files cannot be found, and it cannot be told whether they are gone.
        """
        if not (self._is_drained or self._files.pending):
            self._list(is_needed=False)
        return self._files.next_batch()

    def newest(self, batch: SourceBatch) -> SourceBatch:
        """The batch itself: a listing is for several."""
        return batch

    def judged(self, batch: SourceBatch) -> None:
        """Nothing to keep: a listed file is taken once."""

    def put_off(self, reason: SourceAwayError) -> None:
        """List anew at the next trigger. Raises the reason where the source is drained."""
        if self._is_drained:
            raise reason
        self._files.put_off()
        self._is_away()
        self._away.warn(f"no file is judged now, the next trigger looks again: {reason}")

    def _list(self, *, is_needed: bool) -> None:
        """List new files. Where more may come later, a folder that cannot be read now may be there then."""
        try:
            self._files.list_new()
        except (OSError, SourceAwayError) as exc:
            if is_needed:
                raise DeduperError(f"the source cannot be listed: {exc}") from exc
            self._is_away()
            self._away.warn(f"the source cannot be listed, the next trigger tries again: {exc}")
            return
        self._listed(self._files)
