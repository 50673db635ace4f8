"""Lines on standard error: for people, for programs, and nothing of other packages unless it was asked for."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger

from deduper.service.logs import configure_logging
from deduper.window.progress import PROGRESS

OF_ERRORS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
OURS = logging.getLogger("deduper.some.room")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The loggers as they were."""
    waits = ("bucket_store.compiled", PROGRESS.name)
    of_pyspark = ("py4j", "py4j.clientserver", "py4j.java_gateway", *OF_ERRORS)
    loggers = [logging.getLogger(name) for name in ("", "deduper", "bucket_store", *waits, *of_pyspark)]
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
    configure_logging(as_json=False, verbose=False)
    logging.getLogger("py4j.clientserver").error("connection lost")
    logging.exception("Exception while sending command.")
    OURS.info("not shown")
    PROGRESS.info("waiting for %s", "files")
    logging.getLogger("bucket_store.compiled").info("compiling")
    assert capsys.readouterr().err == "waiting for files\ncompiling\n"
    configure_logging(as_json=True, verbose=False)
    PROGRESS.info("waiting")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verbose", [False, True])
def test_pyspark_prints_nothing_in_a_form_of_its_own(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a call of its bridge, nor JSON of its loggers of errors, nor its warning about pandas."""
    json_handler = logging.StreamHandler()
    json_handler.setFormatter(logging.Formatter('{"msg": "%(message)s"}'))
    logging.getLogger("py4j.clientserver").handlers = [json_handler]
    logging.getLogger("py4j.clientserver").setLevel(logging.DEBUG)
    with warnings.catch_warnings():
        configure_logging(as_json=False, verbose=verbose)
        logging.getLogger("py4j.clientserver").info("Received command c on object id p0")
        for name in OF_ERRORS:
            PySparkLogger.getLogger(name).exception("a query failed", file="x.py", line="1")
        warnings.warn("PySpark does not yet fully support pandas >= 3.0.0. Some", FutureWarning, stacklevel=1)
        assert capsys.readouterr().err == ""
        logging.getLogger("py4j.clientserver").warning("closed")
        shown = capsys.readouterr().err
    assert ("closed" in shown) == verbose
    assert "{" not in shown
