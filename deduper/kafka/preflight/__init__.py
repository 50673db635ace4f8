"""Checks of the clusters before a job starts: what would stop it later, all at once, each with a remedy.

Doors: `examine` (for a person, and `require` for a start). `rules` judges what `described` holds; `probe` asks one
server.
"""
