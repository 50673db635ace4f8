"""Topics: the new offsets between what the store has judged and what the brokers hold, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `plain_topics` and `stream` (the two ways to read records); in workers
`topic_reading` with `fetching` and `partition_queue`, and `places`.
"""
