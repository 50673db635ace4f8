"""One window in seven numbered steps, and what a start does about a half-done one.

Doors: `runner.WindowRunner`, `recovery.owned_store`, `policy` (what settings and state say about a window), `attempt`,
`jobs`, `progress`, `table_folder`, `exchange_folder`, `owner_alive`, `present_clock`. Touches the store, through
bucket_store.
"""
