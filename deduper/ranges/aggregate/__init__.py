"""For every event an aggregate of the ranges that cover it, without a join; and the mirror image.

Ranges become an index: per id, starts and ends cut the time axis into cells in which each aggregate is constant. An
event is answered by one binary search, so events stream through unsorted.

Doors: `range_index.RangeIndex` and `event_index.EventIndex` (Arrow arrays in and out), `aggregates`, `points.ENDS`. The
room is pure: it touches no file, no store and no Spark; `ranges.batch` runs it there.
"""
