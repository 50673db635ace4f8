"""Topics: the new offsets between what the store has judged and what the brokers hold, and the lost ones.

Doors: `batch.KafkaBatches`, `broker_watch`, `reading` (how records are read), `whole_topic`; in workers
`topic_reading`, `fetching`. Never begins at a group's offset: the log has the judged ends.
"""
