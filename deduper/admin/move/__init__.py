"""Moves the state of a store, each time with a proof that no key is lost: count and checksum before and after.

Doors: `reshard`, `backup`, `export`, `forget`, `rewind`; each has a plan that changes nothing. Every operation that
changes a store runs under an epoch of its own, while no job runs, and takes effect with one record of the log, a
*rebase* (bucket_store/FORMAT.md, Moving state): broken off before it, nothing has changed.
"""
