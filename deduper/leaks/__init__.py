"""How many copies a look-up misses, estimated on a sample of the keys: docs/leaks.md has the statistics. PURE.

Doors: `sample` (the sampled records of a shard), `meter` (counts them), `figures` (estimates with intervals). Never
touches a file: `bucket_store.log.leak_sample` does, and `window.accessories` joins both.
"""
