"""Data in Avro, by a writer's schema, as Arrow columns of the declared types. PURE: touches only the bytes it is given.

Doors: `program` (a schema made ready, in the driver), `decode` (data to columns, in tasks), `framing` (the header
before a datum). Never reads a file or asks a registry.
"""
