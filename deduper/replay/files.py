"""Files as the input of a replay: those that the source has now, and that their writers have finished."""

from __future__ import annotations

from deduper.config.files import FilesSource
from deduper.errors import DeduperError, SourceAwayError
from deduper.replay.inputs import ReplayFile, ReplayInput
from deduper.sources.files.listing import found_files
from deduper.sources.files.source_file import ListedFile, shown, source_digest


class ReplayFiles:
    """See `ReplayInputs`."""

    noun = "file"
    ends = ""
    lost = ()

    def __init__(self, source: FilesSource) -> None:
        self._source = source

    def listed(self) -> list[ReplayInput]:
        """See `ReplayInputs`. Raises as `source_files`."""
        return [*source_files(self._source)[0]]

    def surveyed(self) -> None:
        """See `ReplayInputs`."""

    def require_same(self) -> None:
        """See `ReplayInputs`: each reader compares its file."""

    def wait_for(self, failure: SourceAwayError) -> None:
        """See `ReplayInputs`: no file is waited for."""
        raise failure


def source_files(source: FilesSource) -> tuple[list[ReplayFile], int]:
    """The files that the source has now, in source order, and how many more cannot be read yet.

    Raises:
        DeduperError: the source cannot be listed.
    """
    try:
        found = found_files(source)
    except OSError as exc:
        raise DeduperError(f"the source cannot be listed: {exc}") from exc
    return [_of_listed(number, file) for number, file in enumerate(found.finished)], len(
        found.unfinished + found.denied
    )


def _of_listed(number: int, file: ListedFile) -> ReplayFile:
    digest = source_digest(file.path, file.modified_ms)
    return ReplayFile(number, file.path, shown(file.path), digest, file.modified_ms, file.size_bytes)
