"""`deduper bench`: the service, the same pipeline without it, Spark's own deduplication, side by side."""
