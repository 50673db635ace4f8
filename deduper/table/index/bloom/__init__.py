"""The bloom index: of each file a filter of its keys and the range of one key column.

Doors: `kind.BloomIndex`. `filter` has the bytes of a filter, `state` those of the list of files.
"""
