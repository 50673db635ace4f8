"""What a check of the configuration finds, and how it suggests a name. PURE."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with the setting at `path`; `at_key` puts the caret under its name instead of its value."""

    path: tuple[str, ...]
    what: str
    write: str
    at_key: bool = False
    offset: int | None = None


def suggestion(wrong: str, known: list[str], listing: str) -> str:
    """`did you mean …?` when one known name is close, otherwise the list of them."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower)
    if close:
        # Of equally close names the one that was only cut short: `shard` is `shards` and not `shared`.
        best = next((name for name in close if name.startswith(wrong.lower())), close[0])
        return f"did you mean `{by_lower[best]}`?"
    return f"{listing} {', '.join(known)}"
