"""The error port read back: what the errors are, and their records sent through the job once more.

Doors: `report.errors_report`, `replay.replay_errors`, `rows.Windows`. Touches the error port, files of the source (old
ones of Parquet are read, new ones written), topics by `deduper.sources.kafka` and `deduper.kafka`, and `replays/` in
the store.
"""
