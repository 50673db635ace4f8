"""Read, judge, write: the three tasks of a window, in Spark's workers or, for small windows, in the driver.

Doors: `read`, `judge`, `write`, `exchange` (files between the three), `layout` (columns of a record),
`found_partitions` (sources that only rows name), `row_files` (files of ports, written and read
back), `readers`, `executors`, `errors`. Touches source files, exchange files, pieces and files of ports. Never imports
settings.
"""
