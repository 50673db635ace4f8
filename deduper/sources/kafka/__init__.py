"""Topics: Spark's stream gives their ends, this room finds the new offsets before them, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `checkpoint` (Spark's offsets), `plain_topics` and `stream` (the two ways
to read records); in workers `topic_reading` with `fetching` and `partition_queue`, and `places`.
"""
