"""`read`, `judge` and `write` on executors, which share no folder with each other or the driver.

Door: `steps` (the partitions of Spark's jobs). Never judges by another rule: the three tasks are those of `tasks`.
"""
