"""Range aggregates: DataFrames or files of events and ranges in, events with their aggregates out.

A small set of ranges becomes one index, which every worker has whole; a large one is cut into parts, one a task.
Files of the command need no Spark where the result is the same (`plain_files`).

Doors: `frames.range_aggregate`; `settings.RangeJob` and `job.run` for the command. The room touches Spark and the
files that the command names.
"""
