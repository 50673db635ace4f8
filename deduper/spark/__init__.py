"""The engine: the session and its JVM, a pool of tasks, places of tasks, and the meaning of Spark's failures.

Doors: `session`, `installed`, `failures`, `task_pool`, `placing`, `planned_batches`, `dataframes`, `types`,
`allocator`, `hdfs_login`. `failures`, `task_pool` and `allocator` load in workers too. Never sees a `Config` or a
window.
"""
