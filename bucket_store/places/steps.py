"""The failpoints within the making of a new file, by the kind of file that the caller names. Whole, for searches."""

from __future__ import annotations

from bucket_store import failpoints

LOG, PIECE, STAGED = "log", "piece", "staged"


def half(kind: str) -> None:
    """On this machine a half of the file is written; elsewhere nothing is sent yet."""
    if kind == PIECE:
        failpoints.hit("piece.half")


def opened(kind: str) -> None:
    """In HDFS: the client has all bytes, the DataNodes have some of them, and the file is not closed."""
    if kind == LOG:
        failpoints.hit("log.open")
    elif kind == PIECE:
        failpoints.hit("piece.open")
    elif kind == STAGED:
        failpoints.hit("stage.open")


def written(kind: str) -> None:
    """Before the step that takes the name."""
    if kind == LOG:
        failpoints.hit("log.written")


def linked(kind: str) -> None:
    """The name is taken."""
    if kind == LOG:
        failpoints.hit("log.linked")
