"""Which of four verdicts a tuple gets. PURE: no file, no clock, no log, no Spark.

Doors: `verdict` (verdicts, reasons, the expiry rule), `clock` (the latest point), `judge.judge_shard`, `categories`,
`statistics`, `digests` and `digest_kernels` (keys as 16 bytes), `versions` (their digests), `kernels`. Never looks at
a record, only at its keys.
"""
