"""Runs the examples in a docstring."""

from __future__ import annotations

import doctest
from typing import Any


def run_examples(of: Any, names: dict[str, Any]) -> None:
    """Run those of an object and of its methods; what they print is as it is written there."""
    module = __import__(of.__module__, fromlist=[""])
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder(exclude_empty=True).find(of, of.__name__, globs={**vars(module), **names}):
        runner.run(found)
    ran = runner.summarize(verbose=False)
    assert ran.attempted > 0, of
    assert ran.failed == 0, "the differences are printed above"
