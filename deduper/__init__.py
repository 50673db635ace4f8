"""Streaming deduplication: every tuple leaves as unique, duplicate, expired or an error, exactly once."""
