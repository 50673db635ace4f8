"""The checks before a start: one list, which a start requires and a command shows.

Doors: `checks.require`, `checks.examine`, `machine`, `connections`, `disk_room`; without a job's config `elsewhere`,
`hadoop`. Reads machine, store, ports and brokers. Never starts Spark; changes nothing: probes are removed again.
"""
