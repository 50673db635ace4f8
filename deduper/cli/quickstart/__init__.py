"""`deduper quickstart`: a web log with known answers through the real job, and a report to look at."""
