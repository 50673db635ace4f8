"""Lines on standard error: for people, for programs, and nothing of other packages unless it was asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from deduper.service.logs import configure_logging
from deduper.window.progress import PROGRESS

OURS = logging.getLogger("deduper.some.room")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The loggers as they were."""
    loggers = [logging.getLogger(name) for name in ("", "deduper", "bucket_store", PROGRESS.name)]
    before = [(one, one.handlers, one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def fail(secret: str) -> None:
    """An exception whose frame holds a record."""
    record = secret
    try:
        raise ValueError("a reason")
    except ValueError:
        OURS.warning("the accessory stops", exc_info=True)
    assert record


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("verbose", [False, True])
def test_an_exception_is_a_sentence_and_its_trace_shows_no_record(
    as_json: bool, verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace comes with --verbose, and without the values of variables."""
    configure_logging(as_json=as_json, verbose=verbose)
    fail("canary")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "canary" not in shown.err
    assert ("Traceback" in shown.err) == verbose
    assert "a reason" in shown.err
    if not verbose:
        assert "the accessory stops: ValueError: a reason" in shown.err
        assert len(shown.err.splitlines()) == 1


def test_every_line_is_json_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of other packages too, which are there with --verbose."""
    configure_logging(as_json=True, verbose=True)
    OURS.info("one")
    logging.getLogger("py4j").warning("two")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["one", "two"]


def test_other_packages_are_silent_and_what_is_waited_for_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A plain line, without time and level; JSON leaves it out."""
    configure_logging(as_json=False, verbose=False, waits=True)
    logging.getLogger("py4j.clientserver").error("connection lost")
    logging.exception("Exception while sending command.")
    OURS.info("not shown")
    PROGRESS.info("waiting for %s", "files")
    assert capsys.readouterr().err == "waiting for files\n"
    PROGRESS.handlers, PROGRESS.propagate = [], True
    PROGRESS.setLevel(logging.NOTSET)
    configure_logging(as_json=True, verbose=False)
    PROGRESS.info("waiting")
    assert capsys.readouterr().err == ""
