"""Where files of a store and of ports lie, on any kind of storage, and how a name is taken exactly once.

Doors: `place.Place`, `place.Names` (what a storage must do), `open.open_place`, `local.local_place`, `reading`, and
`outages`, by which a job waits for a storage. Rooms above touch shared files through it alone; files of one machine
stay `Path`s. Never looks into a file.
"""
