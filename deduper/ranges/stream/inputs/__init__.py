"""What a stream takes from the ports of two jobs.

Doors: `folders.Input` (what an input is), `open.open_inputs` (both, where the committed windows have left them).
    folders  the published windows of a port in a folder
    topics   the records of a port in topics
"""
