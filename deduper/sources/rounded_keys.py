"""Warns about key columns that are shorter than numbers in texts: different numbers become one key."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from deduper.tasks.readers.reading_tasks import PartRead, PartReading

logger = logging.getLogger(__name__)


class RoundedKeys:
    """Warns about each key column of a job's source once in a run."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def found(self, reading: PartReading[Any], parts: Iterable[PartRead]) -> None:
        """Warn about the columns that the readers of a window have found."""
        for number in sorted({number for part in parts for number in part.noted.rounded} - self._known):
            self._known.add(number)
            column = reading.declared.columns[number]
            wider = "`decimal(38,18)` or `string`" if column.kind.name == "decimal" else "`string`"
            logger.warning(
                "the key column %s is a %s, and a text of it has more digits, which are rounded: values that differ in "
                "them alone are one key, and all but the first leave as duplicates; if they are other keys, declare it "
                "%s, in a new store",
                column.name,
                column.kind.text,
                wider,
            )
