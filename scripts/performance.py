"""Fills the tables of docs/performance-notes.md from the documents that `python -m tests.bench` writes.

    python scripts/performance.py broker-100k=kafka/bench.json latency=1000/bench.json latency=20000/bench.json

A table stands between `<!-- figures NAME: begin -->` and `<!-- figures NAME: end -->`. A document fills the table of
its name with contenders or latencies, and that of `NAME-cpu` with CPU times, where the page has them. Latencies of
several documents of one name go into one table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "performance-notes.md"
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")
_PARTS = ("driver", "jvm", "workers", "tasks.read", "tasks.judge", "tasks.write", "driver.send")


def filled(page: str, name: str, document: Mapping[str, Any]) -> str:
    """The page with a document's tables.

    Raises:
        SystemExit: it has no table of this name.
    """
    document = {**document, "lanes": [lane for lane in document["lanes"] if _is_of(name, lane["group"])]}
    names = (name, f"{name}-cpu")
    if not any(f"<!-- figures {one}: begin -->" in page for one in names):
        raise SystemExit(f"{PAGE} has no `<!-- figures {name}: begin -->`")
    body = _latencies(document) if document.get("latency") else _contenders(document)
    page = _replaced(page, name, [*body, "", _about(document)])
    return _replaced(page, names[1], [*_cpu(document), "", _about(document)])


def _is_of(name: str, group: str) -> bool:
    """Whether a lane stands in the table: `formats` has those of all formats, others have the contenders."""
    return group not in ("table", "small-batch", "state") if name == "formats" else group == "table"


def _replaced(page: str, name: str, lines: Iterable[str]) -> str:
    begin, end = f"<!-- figures {name}: begin -->", f"<!-- figures {name}: end -->"
    text = "\n".join([begin, *lines, end])
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: text, page, flags=re.DOTALL)


def _about(document: Mapping[str, Any]) -> str:
    loads = [turn["load"] for lane in document["lanes"] for turn in lane["turns"]]
    loads += [result["load"] for result in document.get("latency", ())]
    between = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown"
    shown = re.sub(r" --(out|bootstrap-servers) \S+", "", " ".join(document["command"]))
    return f"`{shown}`, load {between}, {document['machine']['cores']} cores."


def _contenders(document: Mapping[str, Any]) -> list[str]:
    lines = ["| contender | rows/s, median (least to most) | batches | deduper is |", "|---|---|---|---|"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for lane in document["lanes"]:
        groups.setdefault(lane["group"], []).append(lane)
    for group, lanes in groups.items():
        first = next((lane for lane in lanes if lane["contender"].startswith("deduper")), None)
        ours = None if first is None else first["rows_per_second"]
        for lane in lanes:
            spread = lane["rows_per_second"]
            name = lane["name"] if len(groups) == 1 else f"{group}: {lane['name']}"
            if spread is None:
                lines.append(f"| {name} | failed | 0 | |")
                continue
            is_ours = lane is first
            share = "" if is_ours or ours is None else f"{ours['median'] / spread['median']:.2f} x"
            rates = f"{spread['median']:,.0f} ({spread['minimum']:,.0f} to {spread['maximum']:,.0f})"
            lines.append(f"| {f'**{name}**' if is_ours else name} | {rates} | {spread['count']} | {share} |")
    return lines


def _latencies(document: Mapping[str, Any]) -> list[str]:
    head = ("contender", "records/s", "trigger", "to", *_PERCENTILES)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for result in document["latency"]:
        for end in ("read", "appended"):
            found = result[end]
            cells = [f"{found[part]:,.0f}" if found else "failed" for part in _PERCENTILES]
            row = (result["contender"], f"{result['rate']:,.0f}", result["trigger"], end, *cells)
            lines.append(f"| {' | '.join(row)} |")
    return lines


def _cpu(document: Mapping[str, Any]) -> list[str]:
    lines = [
        "| µs of CPU a row | driver | JVM | workers | all | read | judge | write | send |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for lane in document["lanes"]:
        spent = lane.get("cpu_us") or {}
        if spent:
            processes = [spent.get(name, 0.0) for name in (*_PARTS[:3], "maintenance")]
            steps = ["" if name not in spent else f"{spent[name]:.2f}" for name in _PARTS[3:]]
            cells = [*(f"{value:.2f}" for value in processes[:3]), f"{sum(processes):.2f}", *steps]
            lines.append(f"| {lane['name']} | {' | '.join(cells)} |")
    return lines


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several documents of one kind as one: each with its own latencies, one after another."""
    return {**documents[0], "latency": [result for document in documents for result in document["latency"]]}


def main(words: Sequence[str]) -> None:
    """Fills the page."""
    given: dict[str, list[Mapping[str, Any]]] = {}
    for word in words:
        name, _, file = word.partition("=")
        given.setdefault(name, []).append(json.loads(Path(file).read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    for name, documents in given.items():
        page = filled(page, name, documents[0] if len(documents) == 1 else merged(documents))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
