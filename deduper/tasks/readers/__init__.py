"""Parts of a source to records: the bytes of files and values, by the declared columns.

Doors: `reading_tasks` (the parts of a task), `parquet`, `text`, `declared` (values to records), `file_parts` (a file,
and its faults), `path_columns`, `parquet_columns`, `old_calendar`, `raw_text`. Touches source files; never judges.
"""
