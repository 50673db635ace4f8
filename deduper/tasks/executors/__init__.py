"""`read`, `judge` and `write` on executors, which share no folder with each other or the driver.

Doors: `steps` (the partitions of Spark's jobs), `exchange_blobs`, `host_folder`, `merge`. Never judges by another rule:
the three tasks are those of `tasks`.
"""
