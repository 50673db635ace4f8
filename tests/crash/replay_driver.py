"""`deduper replay` as a process that tests kill, without a JVM, in small slices and windows of one part."""

from __future__ import annotations

from tests.crash import seed_driver


def main() -> None:
    """The command line, on a stand-in for a session."""
    from deduper.replay import making, source, survey

    making.SLICE_BYTES = 1000
    source.WINDOW_BYTES = 1
    survey._STRIDE = 4
    seed_driver.main()


if __name__ == "__main__":
    main()
