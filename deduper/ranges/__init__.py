"""Aggregates of the ranges that cover an event: `aggregate` in one process, `batch` of files and frames, `stream`."""
