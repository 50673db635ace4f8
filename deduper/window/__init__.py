"""One window in seven numbered steps, and the recovery of a half-done one at a start.

Doors: `runner.WindowRunner`, `publishing.TopicPorts`, `recovery`, `policy` (the rules of a window, from settings and
state), `attempt`, `jobs`, `progress`, `table_folder`, `exchange_folder`, `owner_alive`, `present_clock`. Touches the
store, through bucket_store.
"""
