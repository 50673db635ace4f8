"""Which file has a key: the indexes of a table's keys, of several kinds, behind one interface.

Idea: an index is an accelerator and never the truth. Whatever its kind, an answer is for the files of one version, and
exact.

Doors: `protocol`, the interface and `index_of`, the index of a setting; `keys`, digests and buckets of Arrow columns;
`reading`, keys and rows of files; `matching`, the rows with some keys.
    exact     every key with its file, in pieces of the bucket store (`pieces`)
    bloom     a filter (`bloom_filter`) and a range of each file; files that may have a key are read
    external  every key with its file, on a Redis server (`redis_server`, `external_state`)
    simple    nothing is stored; files whose partitions and statistics may have a key are read
`persistent` is what all kinds but `simple` share. Touches the folder of the index, or its server, and reads the files
of the table. The caller holds the table's lock.
"""
