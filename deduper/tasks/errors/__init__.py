"""Why records are errors: the words of `_dedup.detail`, and the likely causes when there are many of them.

Doors: `detail.ErrorDetails`, `detail.Examination`, `causes.ErrorCounts`. Never quotes a value of a record.
"""
