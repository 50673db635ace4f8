"""Parts of a source to records: the bytes of files and values, by the declared columns.

Doors: `reading_tasks` (the parts of a task), `parquet` and `text` (how files of a kind are read), `declared` (values
to records), `plain_file` (a file, and the faults of one), `partition_folders`, `parquet_leaves`, `old_calendar`. Behind
`parquet`: `parquet_columns` (which column is meant), `parquet_values` (values of one type as those of another),
`int96`. Touches source files.
"""
