"""A table and its index beside the loads: their state, a check, an index built again.

Doors: `status.table_status`, `verify.verify`, `rebuild.rebuild`. Only `rebuild` takes the lock of the loads, and
writes.
"""
