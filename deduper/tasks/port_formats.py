"""PURE. The formats of a port's files, and the endings of their names: each file's name says how it is read."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Format(StrEnum):
    """What the rows of a port's files are."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"

    @classmethod
    def of(cls, name: str) -> Format | None:
        """The format that a name's ending says; None for another ending."""
        return next((form for ending, form in ENDINGS.items() if name.endswith(f".{ending}")), None)


ENDINGS: Final = {form.value: form for form in Format}
"""The formats by the endings of their files, without the point."""
