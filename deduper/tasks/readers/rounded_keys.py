"""Warns about key columns that are shorter than numbers in texts: different numbers become one key."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from deduper.arrow_columns import DeclaredColumn

logger = logging.getLogger(__name__)


class RoundedKeys:
    """Warns about each key column of a job's source, or of a batch of a table, once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def warn(self, columns: Iterable[DeclaredColumn]) -> None:
        """Warn about the key columns that a reader has found."""
        for column in sorted(columns, key=lambda one: one.name):
            if column.name in self._known:
                continue
            self._known.add(column.name)
            wider = "`decimal(38,18)` or `string`" if column.kind.name == "decimal" else "`string`"
            logger.warning(
                "the key column %s is a %s, and a text of it has more digits, which are rounded: values that differ in "
                "them alone are one key, and all but the first are duplicates; if they are other keys, declare it %s, "
                "in a new store or table",
                column.name,
                column.kind.text,
                wider,
            )
