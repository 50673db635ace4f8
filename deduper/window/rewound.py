"""What a rewind leaves: numbers of windows that come again, and, interrupted, files of windows that are undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bucket_store.log.state import LogState
from bucket_store.places.place import Place
from deduper.sinks.names import FinalName


def rewound_to(state: LogState) -> int | None:
    """The window that the last rewind went back to, if no window was judged since; else None.

    Other commands may have placed records since.
    """
    last = _last_rewind(state)
    return last["to_window"] if last is not None and last["to_window"] == state.next_window - 1 else None


def rewind_epoch(state: LogState) -> int:
    """The epoch of the last rewind, 0 without one: numbers of windows have come again since."""
    last = _last_rewind(state)
    return 0 if last is None else int(last["epoch"])


def _last_rewind(state: LogState) -> Mapping[str, Any] | None:
    return next((note for note in reversed(state.notes) if note.get("action") == "rewind"), None)


def later_files(ports: Iterable[Place], store_id: str, window: int) -> Iterator[Place]:
    """The published files of a store's later windows in these folders of ports."""
    own = store_id[:8]
    for port in ports:
        for name in port.listed(after=f"{own}-{window:012d}"):
            final = FinalName.of(name)
            if final is not None and final.store == own and final.window > window:
                yield port / name
