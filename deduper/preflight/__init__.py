"""The checks before a start: one list, which `run` requires and `doctor` shows.

Doors: `checks.require`, `checks.examine`, `machine.file_system_of`, `connections.cannot_listen`. Reads the machine, the
store, the ports' folders and the cluster; starts no Spark, and changes nothing: a probe in a store that is no folder of
this machine is removed again.
"""
