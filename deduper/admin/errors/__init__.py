"""The error port read back: which errors there are, and their records written out for the source they came from.

Doors: `report.errors_report`, `report.WindowRange`, `export.export_errors`. Touches the error port; an export writes a
new folder of this machine, or produces to a topic by `deduper.sources.kafka` and `deduper.kafka`.
"""
