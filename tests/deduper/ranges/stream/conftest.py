"""Where the stores of streams are."""

from __future__ import annotations

import pytest

from tests.deduper.ranges.stream.stream_scene import Scene


@pytest.fixture(params=["file", pytest.param("objects", marks=pytest.mark.slow)])
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage of the stores of scenes."""
    monkeypatch.setattr(Scene, "storage", request.param)
    found: str = request.param
    return found
