"""Tables without duplicates: a batch adds the rows that are new, and changes or removes those of its keys.

Idea: an exact index says which keys the table has, and in which file. It is an accelerator and never the truth: an
entry counts only if the table has its file in the version at hand. Data first, then the index. docs/tables.md has the
promises and the numbered steps.

Doors: the names that `deduper` exports, `operations`, `settings.load_config`, `errors`. Three floors, each on those
below it:
    operations  loads, upserts, deletes, rollbacks, questions, checks
    index       which file has a key: pieces of the bucket store, filters, a server
    formats     Delta tables and folders of Parquet files: their files, and how a write becomes part of them
Below them stand `batch` (the rows of a write), `schema`, `columns`, `stored_times`; `settings` is between `operations`
and `index`. Touches the table's folder and the folders of the ports. A write runs in one process, on Arrow, without
Spark.
"""
