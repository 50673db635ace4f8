"""The compiled code that a job loads before its first window is what its windows call."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import sys
from numba.core import event
from deduper.service.kernels import load_all

load_all()

class Late(event.Listener):
    def on_start(self, found):
        print(found.data["dispatcher"].py_func.__name__, found.data["args"])
    def on_end(self, found):
        pass

event.register("numba:compile", Late())
import pyarrow as pa
from deduper.columns import ColumnType
from deduper.core.digest_kernels import array_digest

kinds = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "binary": pa.binary()}
for (kind, arrow), value in zip(kinds.items(), ("a", 1, 1, 0.5, b"a"), strict=True):
    for values in ([value], [None, value]):
        for secure in (False, True):
            array_digest([pa.array(values, arrow)], [ColumnType(kind, kind)], b"s" * 16, secure=secure)
"""


@pytest.mark.night
def test_no_digest_is_compiled_after_all_kernels_are_loaded() -> None:
    """Arrow's memory is read-only, and that of an array with nulls is not: one kernel serves both."""
    ran = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
