"""Which of four verdicts a tuple gets. PURE: no file, no clock, no log, no Spark.

Doors: `verdict` (the verdicts, reasons and the expiry rule), `clock` (the latest point), `judge.judge_shard`,
`categories`, `digests` and `digest_kernels` (keys as 16 bytes), `kernels` (compiled loops).
"""
