"""The bucket manager: the keys of live buckets, in memory and in files that one machine's tasks share.

Doors: `manager.ShardTables`, `matches`, `view.ShardView`, `generation.table_folder`, `kernels` (to compile ahead).
Touches the folder of tables, and reads pieces. Never the truth: all of it can be rebuilt from the pieces.
"""
