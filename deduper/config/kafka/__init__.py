"""The settings of topics: sections of the config, their values, options of librdkafka, Avro schemas."""
