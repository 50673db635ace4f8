"""Where the tables of a job lie: users of one machine keep theirs apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deduper.window.table_folder import _own_folder


def test_users_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first user's has the plain name and keeps it; the uid tells the others."""
    first = os.geteuid()
    assert _own_folder(tmp_path) == tmp_path / "deduper-tables"
    (tmp_path / "deduper-tables").mkdir()
    assert _own_folder(tmp_path) == tmp_path / "deduper-tables"
    monkeypatch.setattr(os, "geteuid", lambda: first + 1)
    assert _own_folder(tmp_path) == tmp_path / f"deduper-tables-{first + 1}"
