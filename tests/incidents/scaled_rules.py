"""The rules and alerts of deploy for a night that is played faster than it would pass. PURE.

Every duration (ranges, offsets, `for`, limits in seconds) is divided: those below six hours by the scale, longer ones
by `DAY_SCALE`, so that yesterday is twelve minutes ago. Shares and numbers of records stay.
"""

from __future__ import annotations

import re
from typing import Any

DAY_SCALE = 120
_LONG_S = 6 * 3600
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?<![\w.:])(?:\d+[smhd])+(?![\w:])")
_LIMITS = re.compile(
    r"(?P<what>time\(\) - \w+ [<>] |deduper_window_running_seconds > |instance:deduper_lag_seconds:max > (?:bool )?|"
    r"deduper_source_pending_seconds\[\w+\]\) > |\], )"
    r"(?P<seconds>\d+(?: \* 3600)?)"
)
_SHORTEST_S = 2


def scaled_seconds(seconds: float, scale: float) -> int:
    """A duration of the night that stands for one of so many seconds."""
    return max(_SHORTEST_S, round(seconds / (DAY_SCALE if seconds >= _LONG_S else scale)))


def scaled_expression(expression: str, scale: float) -> str:
    """An expression over the scaled night."""

    def limit(match: re.Match[str]) -> str:
        number, _, hours = match["seconds"].partition(" * ")
        return f"{match['what']}{scaled_seconds(int(number) * int(hours or 1), scale)}"

    return _LIMITS.sub(limit, _DURATION.sub(lambda match: _scaled(match[0], scale), expression))


def scaled_rules(rules: dict[str, Any], scale: float) -> dict[str, Any]:
    """A rules file, read by YAML, over the scaled night; all is evaluated every second."""
    groups = []
    for group in rules["groups"]:
        scaled = []
        for rule in group["rules"]:
            changed = {**rule, "expr": scaled_expression(rule["expr"], scale)}
            if _seconds(str(rule.get("for", "0s"))):
                changed["for"] = _scaled(rule["for"], scale)
            scaled.append(changed)
        groups.append({**group, "interval": "1s", "rules": scaled})
    return {"groups": groups}


def _scaled(duration: str, scale: float) -> str:
    return f"{scaled_seconds(_seconds(duration), scale)}s"


def _seconds(duration: str) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))
