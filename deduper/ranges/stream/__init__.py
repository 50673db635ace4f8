"""Range aggregates on a stream: two ports of jobs in, every event once with the aggregates of the ranges known by then.

Idea: a window takes windows of both jobs, or offsets of their topics. Ranges are kept in levels, each a durable piece
and an index in memory, and the commit record names the pieces: the state is a function of committed windows.
docs/range-aggregates.md has what a user sees and what is stored.

Doors: `settings.StreamJob`, `job.run`, `status.stream_status`, `report`.
    inputs   the published windows of a job's port in a folder, or its records in topics
    rows     good, bad and late rows; PURE
    levels   which pieces become one; PURE
    ranges   ranges by levels: what is open, what is withdrawn, what covers an event; PURE
    functions  the names of aggregates of one's own
    own      their answers, from the ranges that overlap a window's events; PURE
    events   answered events that a correction may need; PURE
    pieces   the files of levels
    ports    rows as the bytes of a file of a port; PURE
    judge    a window: rows and state in, rows of ports and the next state out
    runner   the steps of a window; the start
    metrics  the page for Prometheus
    status   the state of a store, read beside its owner
Touches the folders and topics that its settings name, through the log, sources and sinks of jobs. One process,
without Spark.
"""
