"""Questions to a table before anything is written: which rows are new, which change others, the rows of some keys.

Doors: `filter.filter_exists`, `tag.tag`, `read.read`; `present.of_one_version` for plans and checks. No lock is taken
and nothing is written, so an answer holds for the version at hand.
"""
