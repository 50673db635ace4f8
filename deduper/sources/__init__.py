"""Records in: the new part of a source, as parts that our readers read, or as the rows of a DataFrame.

Doors: `open`, `protocol`; `files` and `kafka` are the kinds of a job, `frames` is that of a `Deduper`. Touches source
files, and brokers through `deduper.kafka`. Never judges, and never commits: the log says what was judged.
"""
