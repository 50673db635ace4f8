"""A write to a table: a batch is judged and staged, a plan names what is staged, the table takes it all or nothing.

Doors: `steps.WriteSteps` with an `operation.Operation` (what a load, an upsert or a delete does with a batch),
`lock.locked`, `plan` (what writes have staged). Touches the table's folder and the folders of the ports.
"""
