"""The external index: each key with its files on a Redis server; the list of files in the table's folder.

Doors: `kind.ExternalIndex`. `server` has all that is sent to the server, `state` the bytes of the list and which states
of the server it accepts; `index` writes, `view` asks; `rights` and `tls` find what a server refuses, and why.
docs/tables.md has the layout and the order of the steps.
"""
