"""Work beside the windows: dead pieces are deleted, small ones merged.

Doors: `worker_process.MaintenanceWorker`, `compactions.Compactions`, `deletions.Deletions`, `unnamed_pieces`,
`background_task`. Knows bytes and epochs. Never decides what is live, and no window waits for it.
"""
