"""One key of a store: its values as typed, its entries, the verdict of a next copy, and every copy seen.

Doors: `values` (a key or expiry key from texts), `stored` (the key in the store, and a next copy's verdict), `explain`
(the same, and the copies seen).
"""
