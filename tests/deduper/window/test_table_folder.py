"""Where the tables of a job lie: users of one machine keep theirs apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deduper.tasks.table_room import own_folder


def test_users_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first user's has the plain name and keeps it; the uid tells the others."""
    first = os.geteuid()
    assert own_folder(tmp_path) == tmp_path / "deduper-tables"
    (tmp_path / "deduper-tables").mkdir()
    assert own_folder(tmp_path) == tmp_path / "deduper-tables"
    monkeypatch.setattr(os, "geteuid", lambda: first + 1)
    assert own_folder(tmp_path) == tmp_path / f"deduper-tables-{first + 1}"
