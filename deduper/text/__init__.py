"""Lines of JSON and CSV as columns of the declared types, and back. PURE: a kernel and an exact parser, equal values.

Doors: `format` (columns and zone), `block` (bytes to columns), `values`, `written` (columns to lines), `wrong`. Never
touches a file but the time zones of this machine or of the package tzdata.
"""
