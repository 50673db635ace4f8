"""A file, the environment and flags become one frozen `Config`, or a list of mistakes with their places.

Doors: `load.load_config`, `model.Config` and its sections, `schema.json_schema`, `problems.ConfigError`,
`kafka.options.librdkafka_options`. Reads the config file and the schema files that it names.
"""
