"""How a source of files is listed: once to drain it, else whenever nothing of a listing is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from deduper.errors import DeduperError, SourceAwayError
from deduper.service.followed_files import FollowedFiles
from deduper.sources.files.batch import FileBatches


class Listing:
    """A source whose listings are given; `between` is called before a batch is handed out."""

    def __init__(self, *listings: list[str] | OSError) -> None:
        self.listings = list(listings)
        self.files: list[str] = []
        self.between: Callable[[], None] = lambda: None

    place = "/in"
    unfinished = 0

    @property
    def pending(self) -> int:
        return len(self.files)

    def put_off(self) -> None:
        self.files = []

    def list_new(self) -> None:
        found = self.listings.pop(0) if self.listings else []
        if isinstance(found, OSError):
            raise found
        self.files = list(found)

    def next_batch(self) -> str | None:
        self.between()
        return self.files.pop(0) if self.files else None


class Followed:
    """A source that is followed, and how often it was listed."""

    def __init__(self, *listings: list[str] | OSError, drain: bool) -> None:
        self.source = Listing(*listings)
        self.listed = self.away = 0
        self.files = FollowedFiles(cast(FileBatches, self.source), self._count, self._count_away)
        self.files.begin(drain=drain)

    def _count(self, _: FileBatches) -> None:
        self.listed += 1

    def _count_away(self) -> None:
        self.away += 1

    def next(self, triggers: int) -> list[object]:
        """The batches of so many triggers."""
        return [self.files.next_batch() for _ in range(triggers)]


def test_a_source_is_drained_of_what_it_had_at_the_start() -> None:
    """What comes meanwhile is for the next run."""
    job = Followed(["a", "b"], ["c"], drain=True)
    assert job.next(4) == ["a", "b", None, None]
    assert job.listed == 1


def test_a_source_is_listed_again_when_nothing_is_left() -> None:
    """Not before: a folder of many files is listed once for many windows."""
    job = Followed(["a", "b"], [], ["c", "d"], drain=False)
    assert job.next(3) == ["a", "b", None]
    assert job.listed == 2
    assert job.next(2) == ["c", "d"]
    assert job.listed == 3


def test_a_folder_that_is_away_is_waited_for_and_ends_a_run_that_drains(caplog: pytest.LogCaptureFixture) -> None:
    """A mount may come back. A listing that saw nothing is not told."""
    away = FileNotFoundError(2, "No such file or directory", "/in")
    job = Followed(away, ["a"], drain=False)
    assert (job.listed, job.away, job.next(1)) == (0, 1, ["a"])
    assert (job.listed, job.away) == (1, 1)
    assert "the source cannot be listed" in caplog.text
    with pytest.raises(DeduperError, match="cannot be listed"):
        Followed(away, drain=True)


def test_files_that_are_away_are_waited_for_and_end_a_run_that_drains(caplog: pytest.LogCaptureFixture) -> None:
    """Before their window or in it: what is listed is put off, and the source is listed again."""
    away = SourceAwayError("/in: it is away")
    job = Followed(["a", "b", "c"], ["b", "c"], drain=False)
    assert job.next(1) == ["a"]
    job.files.put_off(away)
    assert "/in: it is away" in caplog.text
    assert job.away == 1
    assert job.next(2) == ["b", "c"]
    with pytest.raises(SourceAwayError):
        Followed(["a"], drain=True).files.put_off(away)
