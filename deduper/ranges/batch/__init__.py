"""Range aggregates: events with their aggregates out. Files without Spark, DataFrames on Spark, with equal answers.

Doors: `frames.range_aggregate` of DataFrames; `settings.RangeJob`, `job.run` of files. On Spark a small set of ranges
is one index that every worker has; a large one is cut into parts, one a task. Never keeps anything after the call.
"""
