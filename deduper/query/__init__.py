"""The deduper in a query of your own: a function for `foreachBatch`, with a store of its own.

Doors: `dedup.Deduper`, and what its arguments are made of: `rules`, `ports`; `deduper` exports them. Touches the
session, the store and the ports. Never starts or ends a session, and sets nothing in it.
"""
