"""Kernels: compiled at their first use, for the declared types, with a line before it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types

from bucket_store.compiled import _Lines, kernel, ready

_IN = types.Array(types.int64, 1, "C", readonly=True)


@kernel(types.int64(types.int64))
def _doubled(number: Any) -> Any:
    return number * 2


@kernel(types.int64(_IN))
def _sum_of_doubled(numbers: Any) -> Any:
    total = 0
    for number in numbers:
        total += _doubled(number)
    return total


@kernel(types.int64(types.int64))
def _tripled(number: Any) -> Any:
    return number * 3


def signatures(function: Any) -> list[Any]:
    return list(function.signatures)


def test_a_kernel_is_compiled_at_its_first_use_for_its_declared_types_alone() -> None:
    """By Python, by another kernel, or by `ready`; arrays may be read-only or not."""
    assert signatures(_sum_of_doubled) == signatures(_doubled) == signatures(_tripled) == []
    numbers = np.arange(4, dtype=np.int64)
    assert _sum_of_doubled(numbers) == 12
    numbers.flags.writeable = False
    assert _sum_of_doubled(numbers) == 12
    assert _doubled(np.uint8(200)) == 400  # as the declared int64, not as a byte
    ready(_tripled)
    ready(_tripled)
    assert signatures(_sum_of_doubled) == [(_IN,)]
    assert signatures(_doubled) == signatures(_tripled) == [(types.int64,)]
    with pytest.raises(TypeError, match="No matching definition"):
        _doubled("text")  # type: ignore[arg-type]


def test_a_long_compilation_is_said_before_it_and_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of kernels it is."""
    times = iter([100.0, 101.0, 111.0, 112.0, 125.0])
    monkeypatch.setattr("bucket_store.compiled.time.monotonic", lambda: next(times))
    said = _Lines()
    with caplog.at_level(logging.WARNING, "bucket_store.compiled"):
        for report in (said.on_start, said.on_start, said.on_end, said.on_start, said.on_end):
            report(None)
    assert [record.getMessage() for record in caplog.records] == [
        "deduper: compiling for this processor, once after an installation: up to half a minute",
        "deduper: still compiling, for 11 s",
        "deduper: still compiling, for 25 s",
    ]


@pytest.mark.night
def test_an_import_compiles_nothing_and_a_second_process_neither(tmp_path: Path) -> None:
    """With an empty cache: the first job compiles what it calls, and a line says so; the next one loads it."""
    code = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s")
import deduper.service.job, deduper.text.block, deduper.avro.decode
print("imported")
from deduper.core import clock
clock.warm(float_domain=False)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [one.stdout for one in ran] == ["imported\n"] * 2
    assert [one.stderr.splitlines()[:1] for one in ran] == [["bucket_store.compiled"], []]
    assert not list(tmp_path.rglob("kernels.parse_json_lines*"))


@pytest.mark.night
@pytest.mark.slow
def test_processes_that_compile_one_kernel_for_two_types_keep_both(tmp_path: Path) -> None:
    """Neither takes the other's name, and the index names no code of another type."""
    (tmp_path / "one.py").write_text(
        """
import sys, time
from pathlib import Path
from bucket_store.compiled import kernel
import numpy as np

@kernel()
def first(values):
    return values[0]

while not Path("go").exists():
    time.sleep(0.001)
print(first(np.array([1.5 if sys.argv[1] == "float" else 7])))
"""
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(Path.cwd())}
    for kinds in (("float", "int"), ("int", "float")):
        running = [
            subprocess.Popen([sys.executable, "one.py", kind], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
            for kind in kinds
        ]
        (tmp_path / "go").touch()
        answers = [process.communicate(timeout=120)[0].decode().strip() for process in running]
        assert answers == [{"float": "1.5", "int": "7"}[kind] for kind in kinds]
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    assert len([*index.parent.glob("*.nbc")]) == 2
