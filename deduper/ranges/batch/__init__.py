"""Range aggregates: events with their aggregates out, on Spark, or without it where both give the same answers.

Doors: `frames.range_aggregate`; for the command `settings.RangeJob`, `job.run`, `report`. A small set of ranges is one
index that every worker has; a large one is cut into parts, one a task. Never keeps anything after the call.
"""
