"""How the answers of `deduper table` look."""
