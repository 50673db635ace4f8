"""The one truth: committed windows, published windows, and the owner of the store.

Doors: `commit_log.CommitLog`, `records`, `state`, `marks`, `manifest`, `heartbeat`, `sources_file`, `sources_archive`,
`judged_files`, `wall_clock`. Touches log, intents, marks, sources and optional files. Never reads or writes a piece.
"""
