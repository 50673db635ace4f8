"""Judges what a source has in the order of time, whatever its files or partitions are, by the windows of the job.

Doors: `run.plan_replay`, `run.replay`, `settings.Asked`. A survey and one shuffle by time make a plan of parts in their
order; a source hands them out to the job's own query. Touches the source, a store without windows, and slices beside
the first port. Judges nothing itself.
"""
