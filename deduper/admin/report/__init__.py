"""The report of a store: its course over time, the shape of its data, and what its look-up misses.

Doors: `collect` (the numbers), `page` (one HTML file of them). Reads beside a running job, without disturbing it.
"""
