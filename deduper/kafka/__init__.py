"""Brokers: clients, what their errors mean, how long to wait, what a cluster holds.

Doors: `cluster`, `offsets`, `client`, `calls`, `retry`, `errors`, `error_actions`, `spark_failures`, `preflight`,
`librdkafka` (for kernels). `errors`, `retry`, `offsets` and `spark_failures` need no Kafka client. Has no notion of
windows. Touches the network.
"""
