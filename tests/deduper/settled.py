"""What a job that has ended leaves nothing of, though it is no damage: half-done steps, and orphans."""

from __future__ import annotations

from deduper.admin.orphans import OrphanKind
from deduper.admin.verify.run import Verification

_HALF_DONE = ("the heartbeat of ", "damaged, ", "a damaged mark ", "the marks differ", "windows ")
_ORPHANS = (OrphanKind.PIECE, OrphanKind.SOURCES, OrphanKind.STAGING)


def half_done(report: Verification) -> list[str]:
    """The notes on half-done steps, and the orphans that a start would remove; none of a settled store."""
    notes = [note for note in report.notes if note.startswith(_HALF_DONE)]
    return notes + [f"{orphan.path}: {orphan.why}" for orphan in report.orphans if orphan.kind in _ORPHANS]
