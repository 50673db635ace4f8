"""Rows out: staged, durable, public, exactly once.

Doors: `staging` (files of ports), `published` (the same read back), `names` (of files and topics), `open.open_topics`,
`publish_state.OnUnknown`. A *slot* is one writer of a topic with one transactional id. Never publishes a row that no
commit record names.
"""
