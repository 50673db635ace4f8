"""Where files of a store and of ports lie, on any kind of storage, and how a name is taken exactly once.

Doors: `Place` (a name and its storage), `Names` (what a storage must do), `open_place` (a URL's place), `local_place`
(a path's), `open_file` (a place as a stream of bytes). Modules above this room touch shared files through it alone.
`local` builds on `bucket_store.filesystem`; files that belong to one machine (tables, exchange files, a RocksDB) have
no place and stay `Path`s.
"""
