"""The process that runs a job: start, windows, stop, metrics.

Doors: `job.run`, `logs.configure_logging`. Touches signals, threads and the port of the metrics.
"""
