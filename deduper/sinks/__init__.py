"""Rows out: staged, durable, public, exactly once.

Doors: `staging` (files of the ports), `names` (names of files and topics), `published` (files of the ports read back),
`open.open_topics`, `publish_state.OnUnknown`. The other modules send a window to a topic once: a slot is one writer
with one transactional id. Touches the ports' folders and topics.
"""
