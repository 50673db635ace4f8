"""`deduper seed` as a process that tests kill, without a JVM: `python -m tests.crash.seed_driver seed CONFIG …`.

Of files as small as the tests' all are read without Spark, which then does nothing but number the cores.
"""

from __future__ import annotations

from types import SimpleNamespace


def main() -> None:
    """The command line, on a stand-in for a session."""
    from deduper.cli import main as cli
    from deduper.service import job
    from deduper.service.stream import WindowStream
    from tests import triggers

    context = SimpleNamespace(master="local[2]", defaultParallelism=2, getConf=dict)
    job.start_session = lambda *_: SimpleNamespace(sparkContext=context)  # type: ignore[assignment, return-value]
    job.end_session = lambda *_: None
    WindowStream._query = triggers.without_query  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
