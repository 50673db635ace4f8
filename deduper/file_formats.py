"""The formats of files by their names in settings: of a source's, and of a port's, whose names say how they are read.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

SourceFormat = Literal["json", "csv", "parquet", "common_log", "combined_log", "logfmt"]
PortFormat = Literal["parquet", "json", "csv"]
PORT_FORMATS: Final[tuple[PortFormat, ...]] = get_args(PortFormat)
ENDINGS: Final[Mapping[str, PortFormat]] = {form: form for form in PORT_FORMATS}
"""The formats of ports by the endings of their files, without the point."""


def format_of_name(name: str) -> PortFormat | None:
    """The format that the ending of a port's file says; None for another ending."""
    return next((form for ending, form in ENDINGS.items() if name.endswith(f".{ending}")), None)
