"""The Apex operators' own cases through the real job, tuple by tuple, for several numbers of shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.harness import Job

pytestmark = pytest.mark.spark

CASES = json.loads((Path(__file__).parent.parent / "data" / "apex_cases.json").read_text())
_US = {"ms": 1_000, "s": 1_000_000}


def _expiry(case: dict[str, Any]) -> dict[str, Any]:
    match case["by"]:
        case "event_time":
            scale = _US[case["unit"]]
            return {
                "by": "event_time",
                "field": "t",
                "unit": case["unit"],
                "period": f"{case['period'] * scale}us",
                "span": f"{case['span'] * scale}us",
                "max_ahead_of_now": "off",
            }
        case "ordered":
            return {"by": "ordered", "field": "t", "period": case["period"], "span": case["span"]}
        case "category":
            return {"by": "category", "field": "t", "live_categories": case["live_categories"]}
    return {"by": "never"}


@pytest.mark.night(
    but=[
        "DedupUsingCategoricalExpiryTest.testDedup-2",
        "TimeBasedBucketManagerTest.testExpiration-2",
        "DedupUsingOrderedExpiryTest.testDedup-2",
        "derived: same key, other bucket-2",
    ]
)
@pytest.mark.parametrize("shards", [2, *(pytest.param(shards, marks=pytest.mark.night) for shards in (1, 5))])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_tuple_leaves_by_the_port_that_apex_gives_it(
    case: dict[str, Any], shards: int, new_job: Callable[..., Job]
) -> None:
    """The verdict of every tuple of the case, one window a batch, and the totals."""
    column = "string" if case["by"] == "category" else "long"
    job = new_job(
        source={"schema": f"k string, t {column}", "max_files_per_batch": 1},
        expiry=_expiry(case),
        store={"shards": shards},
    )
    files = [job.add_records({"k": key, "t": expiry} for key, expiry in batch) for batch in case["batches"]]
    summary = job.run()
    assert job.verdicts(files) == case["verdicts"]
    assert Counter(verdict for window in case["verdicts"] for verdict in window) == case["counts"]
    assert summary.windows == len(files)
