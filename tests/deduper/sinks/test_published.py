"""Published files by their names, opened for readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_store.places.local import local_place
from deduper.errors import IntegrityError
from deduper.sinks.names import Attempt, FinalName, Format, final_name
from deduper.sinks.published import csv_texts, dedup_of_rows, format_of


@pytest.mark.parametrize("form", Format)
def test_a_name_says_its_format(form: Format) -> None:
    """As it was published."""
    name = final_name("ab" * 16, Attempt(7, 1, 0), 3, form.value)
    assert Format.of(name) is form
    assert FinalName.of(name) == FinalName("abababab", 7, 3, form.ending)


@pytest.mark.parametrize("name", ["a", "a.orc", "json", "a.json.gz"])
def test_another_ending_is_no_format(name: str, tmp_path: Path) -> None:
    """No reader takes such a file for one of CSV."""
    with pytest.raises(IntegrityError, match="no ending of a port's format"):
        format_of(local_place(tmp_path / name))


def test_texts_of_csv(tmp_path: Path) -> None:
    """Null and empty text are two; line ends and quotes stand in a field; an empty file has no rows."""
    file = local_place(tmp_path / "a.csv")
    file.local.write_text('k,v,_dedup\n,"","{""n"":1}"\n"a\nb","""c""","{""n"":2}"\n')
    assert csv_texts(file, ["k", "v"]) == {"k": [None, "a\nb"], "v": ["", '"c"']}
    assert list(dedup_of_rows(file)) == [{"n": 1}, {"n": 2}]
    file.local.write_text("")
    assert csv_texts(file, ["k"]) == {"k": []}
