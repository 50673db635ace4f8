"""The checks before a start: one list, which a start requires and a command shows.

Doors: `checks.require`, `checks.diagnose`, `machine`, `connections`, `folders.disk_room`; without a job's config
`folders`. Reads machine, store, ports and brokers. Never starts Spark; changes nothing: probes are removed.
"""
