"""What a stream takes from the ports of two jobs: published windows of a folder, or records of topics.

Doors: `folders.Input` (what an input is), `open.open_inputs` (both, at the positions of the committed windows). Never
writes to the ports of a job.
"""
