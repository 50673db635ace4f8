"""A warning when many records are errors: once, again after a while, and a line when it is over."""

from __future__ import annotations

import pytest

from deduper.service.error_watch import ErrorWatch
from deduper.window.progress import BatchProgress, ErrorGroup

NULL = ErrorGroup("null_key", "user: no such field", 900)
CAUSE = "no record has `user`, but they have `usr`"


def window(number: int, rows: int, error: int) -> BatchProgress:
    """A window with that many errors."""
    return BatchProgress(
        window=number,
        batch_id=number,
        rows=rows,
        unique=rows - error,
        duplicate=0,
        expired=0,
        error=error,
        seconds=1.0,
        rows_per_second=1.0,
        errors=(NULL, ErrorGroup("malformed", None, 10)) if error else (),
        causes=(CAUSE,) if error else (),
    )


def lines(caplog: pytest.LogCaptureFixture, windows: list[tuple[float, int, int]]) -> tuple[list[str], str | None]:
    """What is logged for windows at these seconds, of so many rows and errors; and the note on the whole run."""
    now = [0.0]
    watch = ErrorWatch(lambda: now[0])
    for number, (at, rows, error) in enumerate(windows):
        now[0] = at
        watch.window_ended(window(number, rows, error))
    return [record.getMessage() for record in caplog.records], watch.note()


def test_a_warning_names_reasons_cause_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """With counts, and where to look."""
    (line,), note = lines(caplog, [(0, 1000, 910)])
    said = (
        "91% of 1,000 rows are errors: 900 null_key (user: no such field), 10 malformed. "
        f"Likely cause: {CAUSE}. See `deduper errors`"
    )
    assert line == f"window 0: {said}"
    assert note == said


def test_the_share_is_exceeded_and_not_reached(caplog: pytest.LogCaptureFixture) -> None:
    """Half is not more than half."""
    assert lines(caplog, [(0, 10, 5)]) == ([], None)
    assert len(lines(caplog, [(0, 10, 6)])[0]) == 1


def test_it_is_said_once_then_at_intervals_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A window without rows is no end; an episode that was not reported has no end either."""
    found, note = lines(
        caplog,
        [
            (0, 10, 10),
            (1, 10, 10),
            (599, 10, 10),
            (600, 10, 10),
            (601, 0, 0),
            (602, 10, 1),
            (603, 10, 10),
            (604, 10, 0),
        ],
    )
    assert [line.partition(":")[0] for line in found] == ["window 0", "window 3", "window 5"]
    assert found[2] == "window 5: fewer errors again: 10.0% of 10 rows"
    assert note is not None
