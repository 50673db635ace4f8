"""Streaming deduplication: every tuple leaves as unique, duplicate, expired or an error, exactly once.

    cli      what a person types and sees          bench    the service beside the others
    service  the process that runs a job           admin    looks at a store, checks it, mends it
    table    loads of tables without duplicates
    window   one window, from intent to mark; recovery; policy
    sources  records in                            sinks    rows out
    tasks    what runs in Spark's workers          kafka    how brokers are spoken to
    core     the verdict, pure                     config   settings                 spark  the engine

A room imports rooms on lower lines only; rooms on one line do not import each other, but for cli and bench. The import
linter checks it (pyproject.toml). The command line is the interface; the public names are the two below.
"""

__version__ = "0.1.0"
DISTRIBUTION = "stream-deduper"
"""The name to install, as in `pip install stream-deduper`: another project has `deduper` on the package index."""
