"""Topics: the new offsets between what the store has judged and what the brokers hold, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `plain_topics` (how records are read); in workers `topic_reading` with
`fetching`, `partition_queue` and `avro_values`.
"""
