"""Lines of JSON, CSV and logs as columns of the declared types, and back. PURE: kernel and exact parser, equal values.

Doors: `format` (columns and zone), `block` (bytes to columns), `values`, `written` (columns to lines), `wrong`,
`log_exact`. Never touches a file but the time zones of this machine or of the package tzdata.
"""
