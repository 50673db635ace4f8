"""The checks before a start: one list, which `run` requires and `check` shows.

Doors: `checks.require`, `checks.examine`, `machine.file_system_of`, `connections.cannot_listen`, `disk_room.disk_room`,
and for commands without a job's config `elsewhere.reachable`, `hadoop.here`. Reads the machine, the store, the ports'
folders and the cluster; starts no Spark, and changes nothing: a probe in a store that is no folder of this machine is
removed again.
"""
