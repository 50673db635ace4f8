"""The exact index: each key with its file, in pieces of the bucket store, mapped into memory.

Doors: `kind.ExactIndex`. `index` is brought up to a table's files, `view` reads without a lock.
"""
