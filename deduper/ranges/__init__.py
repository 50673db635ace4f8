"""Aggregates of the ranges that cover an event.

Doors: `aggregate` (one process, pure), `batch` (DataFrames and files), `stream` (the unique rows of two jobs). `batch`
and `stream` stand on `aggregate` and `settings`, not on each other. Never writes to the store or the ports of a job.
"""
