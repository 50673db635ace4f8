"""The check of names that a rotation gives, such as `access.log.2.gz`: a file is known by its path, and these move on.

At the next rotation a judged file comes under another path, so its records come again and leave as duplicates or as
expired; under the old path is another file, which is not read because its path was judged.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from typing import Final

from deduper.config.files import FilesSource
from deduper.diagnostics import warning
from deduper.preflight.results import Results, Start
from deduper.sources.files.listing import listed_files

CHECK, _PLACE = "rotation", "source.path"
_MOST_FILES: Final = 1000
_NUMBERED: Final = re.compile(r"(.+)\.(0|[1-9]\d{0,2})(?:\.(?:gz|bz2|zst|deflate))?", re.DOTALL)
_LEFT_OUT = "write names that stay (`dateext` in logrotate), and let `source.path` leave out the file that grows"


def rotated(start: Start) -> Results:
    """The first files of the source have no names that a rotation changes: `access.log` beside `access.log.1`."""
    source = start.config.source
    if not isinstance(source, FilesSource):
        return
    try:
        names = list(islice(listed_files(source), _MOST_FILES))
    except OSError:
        return  # the check of the folder says what is wrong with it
    found = rotated_name(names)
    if found is not None:
        what = (
            f"{found} has a number that a rotation changes: under its next name its records come again, as duplicates "
            "or expired, and the file that gets this name is not read"
        )
        yield warning(CHECK, _PLACE, what, _LEFT_OUT)


def rotated_name(paths: list[str]) -> str | None:
    """A path with the number of a rotation: one of several numbers, or beside the file that grows; None without any."""
    numbers: dict[str, set[str]] = defaultdict(set)
    first: dict[str, str] = {}
    for path in sorted(paths):
        match = _NUMBERED.fullmatch(path)
        base, number = (path, "") if match is None else (match[1], match[2])
        numbers[base].add(number)
        if match is not None:
            first.setdefault(base, path)
    return next((first[base] for base in first if len(numbers[base]) > 1), None)
