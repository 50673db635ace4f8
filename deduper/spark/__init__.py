"""The engine: the session and its JVM, a pool of tasks, and the meaning of Spark's failures.

Doors: `session`, `java`, `failures`, `columns` (expressions of a plan), `task_pool`, `placing` (on a cluster),
`allocator`. Takes settings by name and value, and no `Config`. `failures`, `task_pool` and `allocator`
load in workers too.
"""
