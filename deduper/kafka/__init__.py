"""Brokers: clients, what their errors mean, how long to wait, what a cluster holds.

Doors: `cluster`, `offsets`, `commands`, `client`, `calls`, `retry`, `errors`, `error_actions`, `preflight.examine`,
`librdkafka` (for kernels). `errors`, `retry` and `offsets` need no Kafka client. Touches the network.
Never knows of a window.
"""
