"""Tables in a folder: their files, and how a load becomes a part of them.

Doors: `open.open_table`, `protocol` (what a load sees of a table). Touches the table's folder; deltalake for Delta.
"""
