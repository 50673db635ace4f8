"""Durations are scaled wherever they stand, and nothing else is."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from tests.incidents.scaled_rules import scaled_expression, scaled_rules
from tests.services.prometheus import RULES


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("changes(deduper_start_timestamp_seconds[30m]) >= 4", "changes(deduper_start_timestamp_seconds[60s]) >= 4"),
        ("avg_over_time(v:records:share1h[1h] offset 23h30m)", "avg_over_time(v:records:share1h[120s] offset 705s)"),
        ("time() - deduper_last_commit_timestamp_seconds > 600", "time() - deduper_last_commit_timestamp_seconds > 20"),
        ("instance:deduper_lag_seconds:max > bool 300", "instance:deduper_lag_seconds:max > bool 10"),
        ("1 and time() - deduper_start_timestamp_seconds < 900", "1 and time() - deduper_start_timestamp_seconds < 30"),
        ("m(deduper_source_pending_seconds[1h]) > 120", "m(deduper_source_pending_seconds[120s]) > 4"),
        ("predict_linear(a[6h], 24 * 3600) < 0", "predict_linear(a[180s], 720) < 0"),
        ("increase(x[15m]) > 1000 and y > 0.05", "increase(x[30s]) > 1000 and y > 0.05"),
    ],
)  # fmt: skip
def test_durations_are_divided(expression: str, expected: str) -> None:
    """And records, shares and names of rules are not."""
    assert scaled_expression(expression, 30) == expected


def test_a_night_has_every_rule_of_deploy() -> None:
    """With its labels and annotations."""
    for path in RULES:
        rules = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        scaled = scaled_rules(rules, 30)
        (before,), (after,) = rules["groups"], scaled["groups"]
        unchanged = [{**rule, "expr": "", "for": ""} for rule in before["rules"]]
        assert [{**rule, "expr": "", "for": ""} for rule in after["rules"]] == unchanged
