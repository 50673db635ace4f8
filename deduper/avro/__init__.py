"""Avro data as columns of the declared types. PURE.

Doors: `program` (a schema made ready, in the driver), `decode` (its data to Arrow columns, in the tasks),
`framing` (the header before a datum).

May touch: nothing but the bytes it is given.
"""
