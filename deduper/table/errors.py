"""The errors of tables. Each class ends with the operator's next step; nothing is half written after any of them."""

from __future__ import annotations

from deduper import DISTRIBUTION
from deduper.errors import DeduperError, ExitCode

INSTALL_EXTRA = f"pip install '{DISTRIBUTION}[table]'"


class TableError(DeduperError):
    """A table cannot be loaded. The operator: read the message; the table is as its last commit left it."""


class TableUsageError(TableError):
    """A table, a batch and the settings do not fit each other. The operator: correct the one that the message names."""

    exit_code = ExitCode.USAGE


class SettingError(TableUsageError):
    """A setting does not fit the columns of the batch. The operator: correct it, as the message says."""

    def __init__(self, setting: str, what: str, write: str) -> None:
        super().__init__(f"{setting}: {what}; {write}")
        self.setting = setting
        self.what = what
        self.write = write


class SchemaDriftError(TableUsageError):
    """A batch has other columns than the table. The operator: select and cast the columns that the message names."""


class UnsupportedTableError(TableUsageError):
    """A table has a feature that a load does not honour. The operator: follow the message, or load it otherwise."""


class VersionGoneError(TableUsageError):
    """A table cannot return to a version. The operator: choose another one, as the message says."""


class SourceChangedError(TableError):
    """A file of the batch changed while it was loaded; nothing was committed. The operator: load complete files."""


class FileVanishedError(TableError):
    """A file of the table's present version is not there. The operator: restore it, or repair the table (`FSCK`)."""

    exit_code = ExitCode.INTEGRITY


class StagedFileGoneError(TableError):
    """A file of a write that died is not there, so the write cannot be completed. The operator: bring the file back."""

    exit_code = ExitCode.INTEGRITY


class IndexDamagedError(TableError):
    """A piece of the index is damaged or gone. The operator: delete the index; the next load builds it again."""

    exit_code = ExitCode.INTEGRITY


class IndexServerError(TableError):
    """The server of an index is away or does not serve; nothing was committed. The operator: repeat when it is back."""


class ServerRefusedError(TableUsageError):
    """A server cannot hold an index, or refuses the login. The operator: correct the one that the message names."""


class TableChangedError(TableError):
    """Other writers were faster each time. The operator: repeat the command when they write less."""


class TableHeldError(TableError):
    """Another load holds the table. The operator: wait for it, or allow more time (`lock_timeout_s`)."""

    exit_code = ExitCode.FENCED


class CommitRefusedError(TableError):
    """A table did not take a commit, for no known reason. The operator: read the message; the next load cleans up."""


class ConflictError(TableError):
    """The table is beyond the version that was judged. Handled by a load, which judges again."""
