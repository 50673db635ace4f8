"""Beside a job: inspect a store, check it, move it. Returns values; `cli` shows them.

Doors: `open_store`, `status`, `inspect`, `gc.collect`, `verify.run`, `errors`, `move`. Reads everything;
writes in `gc` and `move` only, under an epoch of its own, and beside the store in `errors.export`.
"""
