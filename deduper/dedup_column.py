"""The column that the rows of all ports have beside the source's own: its fields, and the headers of topics. PURE.

The types that Spark and Arrow have of it are made from `FIELDS`, and so are the rows that are written and the table of
SEMANTICS.md. Spark drops a field that is written and not declared, so nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from deduper.columns import Column, parse_columns

DEDUP: Final = "_dedup"


@dataclass(frozen=True, slots=True)
class DedupColumn:
    """The settings of a job that the fields depend on; `expiry` is Spark's type of an expiry key."""

    expiry: str
    first_seen: bool
    has_fingerprint: bool = False
    keeps_versions: bool = False

    def of(self, port: str) -> Column:
        """The column in the rows of a port."""
        fields = ", ".join(
            f"{field.name}: {field.type.format(expiry=self.expiry)}" for field in FIELDS if field.is_in(self, port)
        )
        return parse_columns(f"{DEDUP} struct<{fields}>")[0]


@dataclass(frozen=True, slots=True)
class DedupField:
    """A field: its type in Spark's words, what it means, the ports that have it, and whether a port does."""

    name: str
    type: str
    meaning: str
    ports: str = "all"
    is_in: Callable[[DedupColumn, str], bool] = lambda _, __: True


def _names_fingerprints(job: DedupColumn, port: str) -> bool:
    return job.has_fingerprint and (port in ("duplicate", "error") or (port == "unique" and job.keeps_versions))


_CONFLICTS: Final = "duplicate and error, with `fingerprint`; unique too with `on_conflict: unique`"

FIELDS: Final = (
    DedupField("verdict", "string", "the port"),
    DedupField("reason", "string", "[the reason](#reasons); null for unique rows, but of a version"),
    DedupField("window", "bigint", "the window's number"),
    DedupField("source", "string", "where the record was read: a file's path, `topic-partition`"),
    DedupField("position", "bigint", "its row in the file, or its offset"),
    DedupField("raw", "string", "an error's record as it came, or the error of its file; null for others"),
    DedupField("detail", "string", "[what was wrong](#what-detail-says)", "error", lambda _, port: port == "error"),
    DedupField(
        "first_seen",
        "struct<window: bigint, source: string, position: bigint, expiry: {expiry}>",
        "place and expiry key of the first copy; null where there is none",
        "all, with `store.first_seen`",
        lambda job, _: job.first_seen,
    ),
    DedupField(
        "fingerprint",
        "string",
        "the payload's, of a conflict, in 16 hex digits; null for others",
        _CONFLICTS,
        _names_fingerprints,
    ),
    DedupField("first_fingerprint", "string", "the first copy's, likewise", _CONFLICTS, _names_fingerprints),
)
"""In their order in the column."""

OWN_HEADERS: Final[Mapping[str, Mapping[str, str]]] = {
    "verdict": {"dedup-verdict": "verdict"},
    "reason": {"dedup-reason": "reason"},
    "detail": {"dedup-detail": "detail"},
    "window": {"dedup-window": "window"},
    "origin": {"dedup-origin": "source@position"},
    "first_seen": {
        "dedup-first-seen": "first_seen.source@first_seen.position",
        "dedup-first-seen-window": "first_seen.window",
    },
    "fingerprint": {"dedup-fingerprint": "fingerprint", "dedup-first-fingerprint": "first_fingerprint"},
}
"""The headers of ours in their order, by their names in `dedup_headers`: each has one field, or two with `@` between.

A record has those of them whose fields its port has, and that are not null.
"""
