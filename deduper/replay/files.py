"""Files as the input of a replay: those that the source has now, and that their writers have finished."""

from __future__ import annotations

from deduper.config.files import FilesSource
from deduper.errors import DeduperError, SourceAwayError
from deduper.replay.inputs import ReplayFile, ReplayInput
from deduper.sources.files.listing import list_files, unfinished
from deduper.sources.files.source_file import ListedFile, shown, source_digest, source_order, stat


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
    """The files that the source has now, in source order, and how many are not finished by their writer.

    Raises:
        DeduperError: the source cannot be listed.
    """
    try:
        found = [file for path in list_files(source) if (file := stat(path)) is not None]
        waiting = unfinished(found, source.folder, is_parquet=source.file_format == "parquet")
    except OSError as exc:
        raise DeduperError(f"the source cannot be listed: {exc}") from exc
    files = sorted((file for file in found if file.size_bytes and file.path not in waiting), key=source_order)
    return [_of_listed(number, file) for number, file in enumerate(files)], len(waiting)


def _of_listed(number: int, file: ListedFile) -> ReplayFile:
    digest = source_digest(file.path, file.modified_ms)
    return ReplayFile(number, file.path, shown(file.path), digest, file.modified_ms, file.size_bytes)
