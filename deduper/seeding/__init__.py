"""Fills the new store of a job with keys that were seen before the job existed, by the job's own windows.

A seed judges files exactly as the job would: its reader, its digests, its clock. Its windows have no outputs
and stand in the store's log, so it is interruptible, and the job continues as one that had judged those records.

Doors: `run.plan_seed`, `run.seed`, `source.SeedInput`. Touches what `service` and `admin.move` touch.
"""
