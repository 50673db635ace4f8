"""Which file has a key: an exact index of a table's keys, in pieces of the bucket store.

Doors: `index.KeyIndex`, brought up to a table's files and asked for keys; `keys`, digests and buckets of Arrow columns.
Touches the folder of the index, and reads the files of the table. The caller holds the table's lock.
"""
