"""Buckets of seen keys, committed window by window."""
