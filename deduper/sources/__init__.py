"""Records in: the new part of a batch, and its records as tuples.

Doors: `open`, `protocol`, `read_plan`, `checkpoint`; `files` and `kafka` are the two kinds. Touches source
files, brokers through `deduper.kafka`, and Spark's checkpoint.
"""
