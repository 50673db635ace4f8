"""Checks of the clusters before a job starts: what would stop it later, all at once, each with a remedy.

Door: `examine` (for a person, and `require` for a start) asks the clusters; `rules` judges what they describe.
"""
