"""The table of metrics in docs/metrics.md and the page that a job serves: the same names, types and labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deduper.service.metrics import JobMetrics
from deduper.service.window_metrics import FAILURES
from tests.deduper.service.test_metrics_page import NOW_US, PLACES, PROGRESS, committed, config, ends, owned_log

ROOT = Path(__file__).parents[3]


def documented() -> Iterator[tuple[str, str, set[str]]]:
    """Name, type and labels of every row of the table; a row may have several names."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for names, kind, labels in re.findall(r"^\| (deduper_[\w, ]+) \| (\w+)[^|]* \| ([^|]*?) ?\|", text, re.MULTILINE):
        own = set(re.findall(r"(\w+) =", labels) or re.findall(r"(?:^|, )(\w+)", labels))
        for name in names.split(", "):
            yield name, kind, own


def in_code() -> tuple[set[str], set[str]]:
    """The names that the service's modules write as texts of their own, and the beginnings of composed ones."""
    modules = (ROOT / "deduper" / "service").glob("*.py")
    nodes = [node for module in modules for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))]
    beginnings = {constant(node.values[0]) for node in nodes if isinstance(node, ast.JoinedStr) and node.values}
    return {constant(node) for node in nodes} - beginnings, beginnings - {""}


def constant(node: ast.AST) -> str:
    """The name of a metric that a node is, without a counter's ending; else an empty text."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value.removesuffix("_total") if isinstance(value, str) and re.fullmatch(r"deduper_\w+", value) else ""


def test_every_metric_is_in_the_reference() -> None:
    """No name is missing there, none is there twice, and none is left over."""
    named = [name.removesuffix("_total") for name, _, _ in documented()]
    names, beginnings = in_code()
    composed = {name for name in named if name.startswith(tuple(beginnings))}
    assert sorted(named) == sorted(names | composed)
    assert all(any(name.startswith(beginning) for name in composed) for beginning in beginnings)


def test_every_kind_of_failure_is_in_the_reference() -> None:
    """Of the two metrics that have it as a label."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| deduper_(?:last_error|errors)_\w+ \|[^|]*\| kind = ([\w, ]+) \|", text, re.MULTILINE)
    assert [tuple(one.strip().split(", ")) for one in kinds] == [FAILURES] * 2


def test_types_and_labels_are_those_of_the_page(tmp_path: Path) -> None:
    """A job of topics that has made a window serves what the table says."""
    settings, registry = config(tmp_path), CollectorRegistry()
    shown = JobMetrics(settings, registry, lambda: NOW_US)
    log = owned_log(settings)
    shown.opened(log)
    with shown.window():
        log.place(committed(log, ends(5, 5)))
    shown.window_ended(PROGRESS)
    shown.source_ends(dict.fromkeys(PLACES, 7))
    shown.failed(FAILURES[0])
    page = generate_latest(registry).decode()
    table = {name.removesuffix("_total"): (kind, labels) for name, kind, labels in documented()}
    checked = 0
    for family in text_string_to_metric_families(page):
        if family.samples:
            labels = {label for sample in family.samples for label in sample.labels}
            assert table[family.name] == (family.type, labels), family.name
            checked += 1
    assert checked > 35
