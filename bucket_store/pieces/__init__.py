"""Immutable runs of keys, and the backends that hold them.

Doors: `open.open_backend`, `store.PieceStore`, `piece`, `reader`, `compaction`. Touches the store's `pieces/`. A
backend stores opaque bytes. Never knows which pieces are live: only the log does.
"""
