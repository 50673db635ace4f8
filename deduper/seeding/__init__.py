"""Fills the new store of a job with keys from before its time, by the job's own reader, digests, clock and windows.

Doors: `run.plan_seed`, `run.seed`, `source.SeedInput`. Touches the input and the store, whose log has each window, so a
seed may be interrupted. Never writes a row of a port, and never a store in which a job has judged.
"""
