"""Damaged pieces and files of sources, rebuilt and proven. Doors: `plan` (what can be done) and `apply`."""
