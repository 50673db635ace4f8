"""Ranges become an index: per id, starts and ends cut the time axis into cells, in which each aggregate is constant.

Doors: `range_index.RangeIndex`, `event_index.EventIndex` (Arrow arrays in and out), `aggregates`, `cells`, `points`.
One binary search answers an event, so events stream through unsorted. PURE: never touches a file, a store or Spark.
"""
