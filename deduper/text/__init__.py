"""Lines of text as columns of the declared types, and back: the meaning of a record of JSON or CSV. PURE.

Doors: `format` (the columns and the session's zone), `block` (a block of bytes to Arrow columns), `written` (Arrow
columns to lines). A kernel parses plain lines; an exact parser in Python parses all others. Both give the same values.

May touch: nothing but the bytes it is given, and the time zones of this machine or of the package tzdata.
"""
