"""A file, the environment and flags become one frozen `Config`, or a list of mistakes with their places.

Doors: `load.load_config`, `model.Config`, `sections`, `query`, `values`, `schema`, `problems.ConfigError`,
`kafka.options`. Reads the config file and the schema files that it names. Never opens a store, a broker or Spark.
"""
