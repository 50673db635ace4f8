"""Beside a job: inspect a store, check it, repair it. Returns values; `cli` shows them.

Doors: `open_store`, `status`, `inspect`, `diagnosis`, `gc.collect`, `verify.run`, `repair.plan` and
`repair.apply`. Reads everything; writes in `gc` and `repair` only, under an epoch of its own.
"""
