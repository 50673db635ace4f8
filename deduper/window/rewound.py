"""Files that an interrupted `rewind` has left: of windows that the store has no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bucket_store.log.state import LogState
from bucket_store.places.place import Place
from deduper.sinks.names import FinalName


def rewound_to(state: LogState) -> int | None:
    """The window that the last rewind went back to, if no window was judged since; else None.

    Other commands may have placed records since.
    """
    of_rewinds = (note["to_window"] for note in reversed(state.notes) if note.get("action") == "rewind")
    window = next(of_rewinds, None)
    return window if window == state.next_window - 1 else None


def later_files(ports: Iterable[Place], store_id: str, window: int) -> Iterator[Place]:
    """The published files of a store's later windows in these folders of ports."""
    own = store_id[:8]
    for port in ports:
        for name in port.listed(after=f"{own}-{window:012d}"):
            final = FinalName.of(name)
            if final is not None and final.store == own and final.window > window:
                yield port / name
