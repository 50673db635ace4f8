"""Every format against every flipped bit and every truncation: the precise error, or absent; never another value."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import bucket_store
from tests import tiers
from tests.bucket_store.damage import (
    Format,
    all_bits,
    assert_flips_are_found,
    assert_truncations_are_found,
    little_room,
    some_bits,
)
from tests.bucket_store.format_samples import committed_formats, generated_formats

LEAST_FLIPS = 32_768
SOURCES = Path(bucket_store.__file__).parent


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def formats(tmp_path: Path) -> list[Format]:
    """The committed files and those of today."""
    return committed_formats() + generated_formats(tmp_path)


def head(format: Format) -> range:
    """The bits worth flipping one by one: of a table, those of its head and of what stands behind it."""
    return range(8 * min(len(format.data), 600))


def test_damage_to_every_format_is_found(formats: list[Format]) -> None:
    """Magic and version bit by bit, and a sample of the rest; a fifth of the truncations. At night all of both."""
    flips = 0
    with little_room():
        for seed, format in enumerate(formats):
            bits, lengths = some_bits(format.data[:600], seed), range(0, len(format.data), 1 + len(format.data) // 40)
            if tiers.is_night():
                bits = head(format) if format.name == "table" else all_bits(format.data)
                lengths = range(len(format.data))
            flips += assert_flips_are_found(format, bits)
            assert_truncations_are_found(format, [*lengths, len(format.data) - 1])
    assert flips >= (LEAST_FLIPS if tiers.is_night() else 1000)


def test_every_format_of_a_store_is_among_them(formats: list[Format]) -> None:
    """A magic that the product writes and that nothing here reads would go unguarded."""
    sources = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    magics = {ast.literal_eval(found) for found in re.findall(r"^\w*MAGIC = (b\"[^\"]+\")$", sources, re.MULTILINE)}
    assert len(magics) >= 8
    assert magics <= {format.data[:8] for format in formats}
