"""How many copies a look-up misses, estimated on a sample of the keys: docs/leaks.md has the statistics. PURE.

Doors: `sample` (the sampled records of a shard), `meter` (counts them, window by window), `estimate` (intervals),
`advice` (what other settings would find). No I/O: the file of the sample is `bucket_store.log.leak_sample`, and
`window.accessories.leak_watch` joins the two.
"""
