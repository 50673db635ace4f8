"""A warning when many records are errors: once, again after a while, and a line when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deduper.core.statistics import SpanCounts
from deduper.service.error_watch import ErrorWatch
from deduper.window.expired_causes import expired_cause
from deduper.window.progress import BatchProgress, ErrorGroup

NULL = ErrorGroup("null_key", "user: no such field", 900)
CAUSE = "they lack `user`, but have `usr`"


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


def test_another_reason_within_ten_minutes_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    """Each reason has its own ten minutes."""
    watch = ErrorWatch(lambda: 0.0)
    for number, reason in enumerate(("null_key", "malformed", "null_key", "malformed")):
        watch.window_ended(replace(window(number, 10, 9), errors=(ErrorGroup(reason, None, 9),)))
    assert [line.partition(":")[0] for line in caplog.messages] == ["window 0", "window 1"]


def test_many_expired_rows_have_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, and in the note on the run."""
    watch = ErrorWatch()
    many = replace(window(0, 10, 0), unique=8, expired=2, expired_cause="the period is short")
    for progress in (many, replace(many, window=1), window(2, 10, 0)):
        watch.window_ended(progress)
    said = "20% of 10 rows are expired. Likely cause: the period is short. See `deduper status --over-time`"
    assert caplog.messages == [f"window 0: {said}", "window 2: fewer expired rows again: 0.0% of 10 rows"]
    assert watch.expired_note() == said.replace("20% of 10", "13% of 30")


def test_the_cause_of_rows_in_spite_of_an_order_of_time() -> None:
    """What is set already is no advice; what is not has no number that may be more than the period."""
    late = SpanCounts.of([(72 * 3.6e9, 4)])
    found = [
        expired_cause(late, 3_600_000_000, 0, behind=4, is_of_files=False, is_in_time=is_in_time)
        for is_in_time in (True, False)
    ]
    assert [one is not None and "slack" in one for one in found] == [False, True]
    assert "1h" not in str(found)


@pytest.mark.parametrize(
    ("late_h", "ahead_s", "behind", "is_of_files", "cause"),
    [
        (2, 0, 1, True, "half of them are late by 3h at most: the period of 1h is short"),
        (2, 0, 2, True, "files with later times were judged before these"),
        (72, 0, 4, True, "files with later times were judged before these"),
        (72, 0, 4, False, "these records were read behind later ones"),
        (72, 0, 0, True, "old records stand among newer ones in the same files"),
        (72, 0, 0, False, "old records stand among newer ones in the same partitions"),
        (72, 3000, 4, True, "the latest point is 50 min ahead of this machine's clock"),
        (1, 3000, 0, True, None),
    ],
)
def test_the_cause_of_expired_rows(
    late_h: int, ahead_s: float, behind: int, is_of_files: bool, cause: str | None
) -> None:
    """By the windows that expire them, and by how late they are; None without any beyond the period."""
    late = SpanCounts.of([(late_h * 3.6e9, 4)])
    found = expired_cause(late, 3_600_000_000, ahead_s, behind=behind, is_of_files=is_of_files)
    assert (found is None) if cause is None else (found is not None and found.startswith(cause))
