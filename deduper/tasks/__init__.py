"""Read, judge, write: the three tasks of a window, in Spark's Python workers.

Doors: `read`, `judge`, `write` (the three tasks, with their receipts), `merge` (of small pieces), `exchange` (the files
between the three), `layout` (the columns of a record), `row_files` (the formats of ports), `readers` (parts of a source
to records), `worker_daemon`. Never imports settings, pydantic or PySpark, except in the daemon. Touches exchange files,
source files, pieces and staged files.
"""
