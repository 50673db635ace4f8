"""One key of a store: its values as typed, its entries, the verdict of a next copy, and every copy seen.

Doors: `values` (a key or expiry key from texts), `entries`, `forecast` (a next copy), `explain` (the copies seen).
"""
