"""Files to records without Spark, where the result is the same.

Doors: `reading_tasks` (the files of a task), `parquet` and `text` (how files of a kind are read), `declared` (values
to records), `plain_file` (a file, and the errors that leave it to Spark), `partition_folders`, `parquet_leaves`,
`parquet_numbers`. Touches source files.
"""
