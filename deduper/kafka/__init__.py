"""Brokers: clients, what their errors mean, how long to wait, what a cluster holds.

Doors: `cluster`, `offsets`, `client`, `calls`, `retry`, `errors`, `error_actions`, `preflight`, `librdkafka` (for
kernels). `errors`, `retry` and `offsets` need no Kafka client. Has no notion of windows. Touches the network.
"""
