"""Lines of text as columns of the declared types: what a JSON record means. PURE.

Doors: `format` (the columns and the session's zone), `block` (a block of bytes to Arrow columns). Every line is parsed by
a kernel or, where that cannot vouch for it, by an exact parser in Python; both give the same values.

May touch: nothing but the bytes it is given.
"""
