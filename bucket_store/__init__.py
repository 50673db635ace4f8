"""Buckets of seen keys, committed window by window. Depends on nothing of Spark, of records or of verdicts.

    maintenance   deletes and merges pieces beside the windows
    log           the one truth: commit records, snapshots, marks, files of sources
    tables        keys in memory, by bucket
    pieces        immutable runs of keys, and the backends that hold them

A room imports rooms below its own; `log` and `tables` do not import each other. At the root: errors, the file system,
framing of stored bytes, failpoints. FORMAT.md has every byte.
"""
