"""The files of a window: which of them are error tuples, and the tuples that Spark makes of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.sources.files.plan import error_tuples, file_plan
from deduper.sources.files.seen_folders import SeenFolders
from deduper.sources.files.source_file import SourceFile, shown

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowFiles:
    """The files of a window, in source order: modification time, then path. An ordinal is a file's place there.

    `seen` are the folders that the files were listed in, `expiry` is the column of the expiry key.
    """

    source: FilesSource
    files: tuple[SourceFile, ...]
    seen: SeenFolders = field(default_factory=SeenFolders, compare=False)
    expiry: str | None = None

    def tuples(self, session: SparkSession, ordinals: Sequence[int]) -> DataFrame:
        """The tuples of some of the files."""
        files = {ordinal: self.files[ordinal] for ordinal in ordinals}
        readable = {ordinal: file for ordinal, file in files.items() if file.admission is Admission.ADMITTED}
        if not readable:
            return self._error_tuples(session, files)
        tuples = file_plan(session, self.source, self.expiry).tuples(readable)
        return tuples if len(readable) == len(files) else tuples.unionByName(self._error_tuples(session, files))

    @property
    def readable(self) -> dict[int, SourceFile]:
        """The files that are no error tuples, by ordinal."""
        return {ordinal: file for ordinal, file in enumerate(self.files) if file.admission is Admission.ADMITTED}

    @property
    def errors(self) -> list[int]:
        """The ordinals of the others."""
        return [ordinal for ordinal, file in enumerate(self.files) if file.admission is not Admission.ADMITTED]

    def with_errors(self, admission: Admission, problems: Mapping[int, str]) -> Self:
        """The batch with some files as error tuples, for the reason that is given by ordinal."""
        for ordinal, problem in problems.items():
            logger.warning(
                "%s leaves by the error port as %s: %s", self.files[ordinal].name, admission.reason, shown(problem)
            )
        return replace(
            self,
            files=tuple(
                file.as_error(admission, f"{file.path}: {problems[ordinal]}") if ordinal in problems else file
                for ordinal, file in enumerate(self.files)
            ),
        )

    def named_by(self, error: Exception) -> int | None:
        """The file that an error names; None when it names none."""
        text = str(error)
        named = [ordinal for ordinal, file in self.readable.items() if _names(text, file)]
        # One path may be the beginning of another.
        return max(named, key=lambda ordinal: len(self.files[ordinal].uri), default=None)

    def _error_tuples(self, session: SparkSession, files: Mapping[int, SourceFile]) -> DataFrame:
        bad = {ordinal: file for ordinal, file in files.items() if file.admission is not Admission.ADMITTED}
        return error_tuples(session, self.source, bad)


def _names(text: str, file: SourceFile) -> bool:
    # Spark quotes the path it was given, in which a backslash stands before the signs of its pattern language.
    plain = text.replace("\\", "")
    path, of_uri = file.spellings
    return of_uri in text or path.replace("\\", "") in plain
