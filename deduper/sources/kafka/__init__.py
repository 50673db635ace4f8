"""Topics: the new offsets between what the store has judged and what the brokers hold, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `reading` (how records are read), `fetching`; in workers
`topic_reading` and `fetching`. Never begins at a group's offset: the log has the judged ends.
"""
