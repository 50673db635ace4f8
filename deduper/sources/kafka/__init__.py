"""Topics: Spark's stream gives their ends, this room finds the new offsets before them, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `checkpoint` (Spark's offsets), `stream`, `places` (in workers).
"""
