"""The check of names for topics: the fields of their last records beside the declared columns; see `first_file`."""

from __future__ import annotations

import json
from collections import Counter

from deduper.config.kafka.sections import KafkaSource
from deduper.diagnostics import warning
from deduper.errors import DeduperError
from deduper.kafka.errors import is_client_installed
from deduper.preflight.first_file import BY_NAME, CHECK, lacks
from deduper.preflight.first_records import would_be_errors
from deduper.preflight.results import Results, Start

PLACE = "source.value.schema"
_ANSWER_S = 2.0


def columns(start: Start) -> Results:
    """Each topic's last records have the fields of the schema, and values that it takes.

    Topics without records have none to compare. Brokers that do not answer are a matter of `kafka`.
    """
    source = start.config.source
    if not isinstance(source, KafkaSource) or source.value.format in ("text", "avro") or not is_client_installed():
        return
    from deduper.kafka.last_records import last_values

    try:
        values = last_values(source, seconds=_ANSWER_S)
    except DeduperError:
        return
    needed = {*start.config.key, *(() if start.config.expiry_column is None else (start.config.expiry_column.name,))}
    declared = [(column.name, column.name in needed) for column in source.value.parsed_columns]
    for topic, of_topic in sorted(values.items()):
        records = [names for names in map(_names, of_topic) if names] if source.value.format == "json" else []
        met = Counter(name for names in records for name in names)
        lacking = lacks(declared, met, (name for name, count in met.items() if 2 * count >= len(records)))
        if records and lacking:
            yield warning(CHECK, PLACE, f"the last records of {topic} have {lacking}", BY_NAME)
        else:
            yield from would_be_errors(start.config, PLACE, f"last records of {topic}", of_topic)


def _names(value: bytes) -> frozenset[str]:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(record) if isinstance(record, dict) else frozenset()
