"""PURE. The checks of `verify` by name, and its result: findings, notes, and the checks that did not run.

A check's name is stable: scripts may go by it. A *finding* is something that must not be; a *note* is harmless
and worth a line, such as a file that a reader has taken away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.as_json import AsJson
from deduper.errors import ExitCode

MOST_LISTED = 20
"""Findings of one check that are listed one by one; the rest are counted. Damage comes in thousands."""
_LONGEST = 300


class Level(Enum):
    """How bad a finding is: the exit code that a report with it ends with."""

    DAMAGE = ExitCode.INTEGRITY
    """Bytes, counts or keys are not what was committed."""
    DISORDER = ExitCode.UNHEALTHY
    """Everything is there, and something is not as it should be."""


class Check(Enum):
    """Every check: its name, its level, and the promise."""

    MANIFEST = "manifest", Level.DAMAGE, "the manifest is whole"
    SETTINGS = "settings", Level.DISORDER, "the config has the settings that the store was made with"
    LOG_RECORDS = "log.records", Level.DAMAGE, "every record of the log is whole"
    LOG_ORDER = "log.order", Level.DAMAGE, "records, windows and epochs follow one another without a gap"
    LOG_SNAPSHOTS = "log.snapshots", Level.DAMAGE, "every snapshot is the fold of the records before it"
    LOG_CLOCK = "log.clock", Level.DAMAGE, "the latest point never goes back"
    LOG_WALL_CLOCK = "log.wall_clock", Level.DAMAGE, "the wall clock of the windows never goes back by a day or less"
    LOG_COUNTS = "log.counts", Level.DAMAGE, "every row of a window left by exactly one port: all counts agree"
    LOG_TOTALS = "log.totals", Level.DAMAGE, "the totals are the sums of the windows"
    SOURCES_BYTES = "sources.bytes", Level.DAMAGE, "every sources file is the one its record names"
    SOURCES_TWICE = "sources.twice", Level.DAMAGE, "no source partition was judged in two windows"
    PIECES_BYTES = "pieces.bytes", Level.DAMAGE, "every piece is there, whole, and the one its record names"
    PIECES_ORDER = "pieces.order", Level.DAMAGE, "digests ascend, and lie in the shard and bucket of their key"
    PIECES_INDEX = "pieces.index", Level.DAMAGE, "pieces and windows have the figures of their entries"
    PIECES_LISTED = "pieces.listed", Level.DAMAGE, "every named piece is found by listing, so it can be deleted"
    PIECES_OVERDUE = "pieces.overdue", Level.DISORDER, "nothing older than the period and the grace is kept"
    KEYS_TWICE = "keys.twice", Level.DAMAGE, "no key is remembered twice where it is looked up"
    OUTPUTS_MISSING = "outputs.missing", Level.DAMAGE, "the rows of every committed window are staged or published"
    OUTPUTS_BYTES = "outputs.bytes", Level.DAMAGE, "every output file has the size, checksum and rows of its record"
    OUTPUTS_EARLY = "outputs.early", Level.DAMAGE, "nothing is public before its commit record"
    OUTPUTS_STRANGE = "outputs.strange", Level.DISORDER, "every file of a port belongs to a window of this store"
    OUTPUTS_TWICE = "outputs.twice", Level.DAMAGE, "no output is there twice"
    MARKS_STORE = "marks.store", Level.DISORDER, "the marks of the ports are of this store"
    MARKS_AHEAD = "marks.ahead", Level.DAMAGE, "up to the published mark, every port shows every window"

    id: str
    level: Level
    promise: str

    def __new__(cls, id_: str, level: Level, promise: str) -> Check:
        check = object.__new__(cls)
        check._value_ = check.id = id_
        check.level, check.promise = level, promise
        return check


@dataclass(frozen=True, slots=True)
class Finding(AsJson):
    """Something that must not be: where, what was expected there, and what was found."""

    json_names = ("check", "level", "file", "offset", "expected", "found", "what")

    check: Check
    what: str
    file: str
    offset: int
    expected: str
    found: str

    @classmethod
    def of(cls, check: Check, what: str, *, file: object, offset: int = 0, expected: object, found: object) -> Finding:
        """A finding whose values are shown as people read them, cut where they are long."""
        return cls(check, what, str(file), offset, _shown(expected), _shown(found))

    @property
    def level(self) -> str:
        """How bad it is."""
        return self.check.level.name.lower()

    @property
    def place(self) -> tuple[Check, str, int]:
        """Check, file and offset: equal when found again."""
        return self.check, self.file, self.offset

    def __str__(self) -> str:
        at = f" at byte {self.offset}" if self.offset else ""
        return f"{self.check.id}: {self.file}{at}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass
class Findings:
    """The findings of one pass over a store. `ran` are the checks that read everything they had to."""

    found: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ran: set[Check] = field(default_factory=set)
    skipped: dict[Check, str] = field(default_factory=dict)
    unlisted: dict[Check, int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """One more; beyond `MOST_LISTED` of a check they are only counted."""
        if sum(known.check is finding.check for known in self.found) >= MOST_LISTED:
            self.unlisted[finding.check] = self.unlisted.get(finding.check, 0) + 1
        else:
            self.found.append(finding)

    def wrong(self, check: Check, what: str, *, file: object, offset: int = 0, expected: object, found: object) -> None:
        """One more, as `Finding.of` makes it."""
        self.add(Finding.of(check, what, file=file, offset=offset, expected=expected, found=found))

    def expect(self, check: Check, what: str, *, file: object, expected: object, found: object) -> None:
        """One more when the two values differ."""
        if expected != found:
            self.wrong(check, what, file=file, expected=expected, found=found)

    def failed(self, check: Check, error: Exception, what: str = "", *, file: object = "") -> None:
        """One more, of an error while reading. `what` says what was read, `file` where, for errors that do not.

        Backends name files from the store's root on: then `file` is the whole path.
        """
        if isinstance(error, CorruptionError):
            reported = f"{what}: {error.what}" if what else error.what
            file = error.file if not file or error.file.startswith("/") else file
            self.wrong(check, reported, file=file, offset=error.offset, expected=error.expected, found=error.found)
            return
        expected = "a format that this release reads" if isinstance(error, UnknownFormatError) else "a readable file"
        self.wrong(check, what or "cannot be read", file=file, expected=expected, found=error)

    def run(self, *checks: Check) -> None:
        """These checks were made, with or without findings."""
        self.ran.update(checks)

    def skip(self, why: str, *checks: Check) -> None:
        """These checks were not made, or not for everything."""
        for check in checks:
            self.skipped.setdefault(check, why)

    def note(self, text: str) -> None:
        """Harmless, but worth a line."""
        self.notes.append(text)

    def join(self, other: Findings) -> None:
        """Add the findings of another pass."""
        for finding in other.found:
            self.add(finding)
        for check, count in other.unlisted.items():
            self.unlisted[check] = self.unlisted.get(check, 0) + count
        self.notes += other.notes
        self.ran |= other.ran
        for check, why in other.skipped.items():
            self.skip(why, check)


def confirmed(first: Findings, second: Findings) -> Findings:
    """The second pass, with only those findings that the first one had too: the rest was a job at work."""
    places = {finding.place for finding in first.found}
    if not first.unlisted:
        second.found = [finding for finding in second.found if finding.place in places]
    return second


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
