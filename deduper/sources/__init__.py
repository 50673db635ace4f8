"""Records in: the new part of a batch, and its records as tuples.

Doors: `open`, `protocol`, `read_plan`; `files` and `kafka` are the two kinds. Touches source files, and brokers
through `deduper.kafka`.
"""
