"""The failpoints within `Names.create`, which records of the log alone have. By their whole names, for searches."""

from __future__ import annotations

from bucket_store import failpoints


def written(failpoint: str) -> None:
    """Before the step that takes the name."""
    if failpoint == "log":
        failpoints.hit("log.written")


def linked(failpoint: str) -> None:
    """The name is taken."""
    if failpoint == "log":
        failpoints.hit("log.linked")
