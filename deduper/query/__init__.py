"""The deduper in somebody else's query: a function for `foreachBatch`, with a store of its own.

Doors: `dedup.Deduper`, and what its arguments are made of: `rules`, `ports`. `deduper` itself gives them all by name.
Touches a Spark session that is not ours: it starts none, sets nothing in it and ends nothing of it.
"""
