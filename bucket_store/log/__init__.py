"""The one truth: committed windows, published windows, and the owner of the store.

Doors: `commit_log.CommitLog`, `records`, `state`, `marks`, `heartbeat`, `sources_file`, `sources_archive`,
`judged_files`, `profile`, `copies`, `wall_clock`. Touches the store's `log/`, `intents/`, `sources/`, `folded/`,
`profile/` and its marks.
"""
