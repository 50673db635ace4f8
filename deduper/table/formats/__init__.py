"""Tables in a folder: the files of a version, and how staged files become part of the next one.

Doors: `protocol` (a table as a write sees it, and `open_table`), `files` (staging and places of files), `plan` (what
writes have staged, by which the next one completes a dead one). `delta` has Delta tables, `folder` folders of Parquet
files without a log. Touches the table's folder and the folders of the ports; deltalake for Delta.
"""
