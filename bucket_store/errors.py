"""The errors of bucket_store. Each class ends with the operator's action."""

from __future__ import annotations


class StoreError(Exception):
    """Root of all errors of this package."""


class CorruptionError(StoreError):
    """Bytes other than those written: a wrong magic, checksum, length or order.

    The operator: stop, keep the file, run `deduper verify`; the piece can be rebuilt from the source or the outputs.
    """

    def __init__(self, what: str, *, file: str, offset: int, expected: object, found: object) -> None:
        super().__init__(f"{file}: at byte {offset}: {what}: expected {expected}, found {found}")
        self.what = what
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[object, ...]:
        return _corruption, (self.what, self.file, self.offset, self.expected, self.found)


def _corruption(what: str, file: str, offset: int, expected: object, found: object) -> CorruptionError:
    return CorruptionError(what, file=file, offset=offset, expected=expected, found=found)


class UnknownFormatError(StoreError):
    """A version this release does not read. The operator: run the release that wrote it, or a later one."""


class StoreMissingError(StoreError):
    """No store where one was asked for. The operator: check `store.url`, or start the job once to make it."""


class SettingsChangedError(StoreError):
    """A setting that is fixed for the life of a store differs. The operator: put it back, or use a new store."""


class UnsafeStorageError(StoreError):
    """A storage that takes a write whose condition does not hold. The operator: put the store on another storage."""


class FencedError(StoreError):
    """A newer owner has claimed the store: this process must stop and publish nothing (exit code 5).

    The operator: nothing, when the newer owner is meant; otherwise find out who started it.
    """


class NotCommittedError(StoreError):
    """The record was certainly not placed; nothing of this window is visible. The operator: start the job again."""


class MaybeCommittedError(StoreError):
    """The record may have been placed; only a fresh reading of the log can tell. The operator: start the job again."""


class StaleViewError(StoreError):
    """A task holds a view older than the tables it found: a zombie of an earlier batch. The operator: nothing."""


class StorageAwayError(StoreError, TimeoutError):
    """A storage elsewhere gives no answer, or does not read or write for now: it may by itself, or when it is repaired.

    `missing` says what it does not do. A job waits until its deadline (`places.outages`).

    The operator: bring it back, as the message says; then start the job again. Nothing is lost.
    """

    missing = "answers"
    """`answers`, `takes changes` (safe mode), `writes` or `reads` (the servers that have the bytes)."""

    def __str__(self) -> str:
        """Without the number of the system's error."""
        if self.strerror is None:
            return super().__str__()
        return f"{self.filename}: {self.strerror}"

    @classmethod
    def of(cls, code: int, text: str, url: str, missing: str = "answers") -> StorageAwayError:
        """The error of a storage that does not do what is `missing`."""
        error = cls(code, text, url)
        error.missing = missing
        return error

    def after(self, what: str) -> StorageAwayError:
        """The same error with what was done about it."""
        return self.of(self.errno or 0, f"{self.strerror}; {what}", self.filename, self.missing)


class SpaceError(StoreError):
    """No room to write. The operator: free or add disk; nothing that was committed is harmed."""
