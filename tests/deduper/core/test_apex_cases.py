"""The Apex operators' own cases with known answers, through the engine and the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deduper.testing import Oracle, Row, Settings
from tests.deduper.engine import Engine, Shape, comparable

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent.parent / "data" / "apex_cases.json").read_text())
_US = {"s": 1_000_000, "ms": 1_000}


def _settings(case: dict[str, Any]) -> Settings:
    unit = _US.get(case["unit"], 1)
    return Settings(
        by=case["by"],
        period=case.get("period", 0) * unit,
        span=case.get("span", 0) * unit,
        live_categories=case.get("live_categories", 1),
    )


def _windows(case: dict[str, Any]) -> list[list[Row]]:
    unit = _US.get(case["unit"], 1)

    def row(key: str, expiry: Any) -> Row:
        return Row((key,), expiry * unit if isinstance(expiry, int) else expiry)

    return [[row(*pair) for pair in batch] for batch in case["batches"]]


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_known_answers(case: dict[str, Any], shards: int) -> None:
    """The port of every tuple is the documented one, and the oracle agrees about everything else."""
    settings = _settings(case)
    engine = Engine(settings, ["string"], Shape(shards=shards))
    oracle = Oracle(settings)
    totals: dict[str, int] = {}
    for rows, expected in zip(_windows(case), case["verdicts"], strict=True):
        answers = engine.judge([rows], now_us=0)
        assert [port for port, _, _ in answers[0]] == expected
        assert answers == comparable(oracle.judge([rows], now_us=0), settings, keep_first_seen=True)
        for port in expected:
            totals[port] = totals.get(port, 0) + 1
    assert totals == case["counts"]
