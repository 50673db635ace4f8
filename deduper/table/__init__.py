"""Tables without duplicates: a batch adds the rows that are new, and changes or removes those of its keys.

Idea: an exact index says which keys the table has, and in which file. It is an accelerator and never the truth: an
entry counts only if the table has its file in the version at hand. Data first, then the index. docs/tables.md has the
promises and the numbered steps.

Doors: `load.load`, `job` (loads, upserts and deletes from a config file), `settings.load_config`, `errors`.
    formats  Delta and plain Parquet tables: their files, and how a write becomes part of them
    index    which file has a key: pieces of the bucket store, mapped into memory
    query    which rows are new, which change others, the rows of some keys; nothing is written
    change   upserts and deletes: the files that hold a key are written again, and no others; rollbacks
    write    the steps of every write: lock, verdicts, staged files, plan, commit, index
    upkeep   status, verify and rebuild of a table and its index
Touches the table's folder and the folders of the ports. A write runs in one process, on Arrow, without Spark.
"""
