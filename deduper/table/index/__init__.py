"""Which file has a key: the indexes of a table's keys, of several kinds, behind one interface.

Idea: an index is an accelerator and never the truth. Whatever its kind, an answer is for the files of one version, and
exact. `protocol` is the interface; the setting `index` names the kind.

Doors: `kinds.index_of`, the index of a setting; `protocol`; `keys`, digests and buckets of Arrow columns; `reading`,
the keys of files; `matching`, their rows with some keys.
    exact     every key with its file, in pieces of the bucket store
    bloom     a filter and a range of each file; files that may have a key are read
    external  every key with its file, on a Redis server
    simple    nothing is kept; files whose partitions and statistics may have a key are read
Touches the folder of the index, or its server, and reads the files of the table. The caller holds the table's lock.
"""
