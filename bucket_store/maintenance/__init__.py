"""Work beside the windows: dead pieces are deleted, small ones compacted.

Doors: `deletions.Deletions`, `compactions.Compactions`, `worker_process.MaintenanceWorker`, `background_task`. Knows
bytes and epochs, and no configuration. No window waits for it.
"""
