"""The process that runs a job: start, windows, stop, metrics.

Doors: `job.run`, `stop`, `metrics`, `window_metrics`, `logs.configure_logging`. Touches signals,
threads and the port of the metrics. Never looks at a record: `window` judges.
"""
