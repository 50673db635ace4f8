"""The calls of a query's functions, and the checks of its ports, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from bucket_store.log.records import OutputFile
from deduper.config.query import BATCH, COUNTS, TXN_VERSION
from deduper.errors import UsageError
from deduper.query.ports import FunctionCalls, Window, require_json

OUTPUT = OutputFile(port="unique", staged="/s", final="function:unique", size_bytes=1, checksum=1, rows=1)


class Called:
    """Functions for two ports, and the windows that they got."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        state = SimpleNamespace(extra={BATCH: ["q", 4], COUNTS: {"unique": 1}, TXN_VERSION: 1700})
        log: Any = SimpleNamespace(state=state, manifest=SimpleNamespace(store_id="cd"))
        self.checked: list[int] = []
        rows: Any = SimpleNamespace(
            of=lambda port, outputs: None, require=lambda window, outputs: self.checked.append(window)
        )
        functions = dict.fromkeys(("unique", "error"), lambda _, window: self.windows.append(window))
        self.calls = FunctionCalls(rows, log, functions)


def test_a_window_is_replayed_once_its_functions_were_called() -> None:
    """Also in the process that has judged it, whose marks may fail; then what is staged is looked at again."""
    called = Called()
    called.calls.judging = 7
    called.calls.publish(7, [OUTPUT])
    called.calls.publish(7, [OUTPUT])
    called.calls.publish(6, [])
    assert [window.replayed for window in called.windows] == [False, False, True, True, True, True]
    assert called.checked == [7, 6]


def test_a_transaction_is_of_one_port() -> None:
    """Two ports may go into one table, which takes a version of an id once."""
    called = Called()
    called.calls.publish(7, [OUTPUT])
    transactions = [(window.txn_app_id, window.txn_version) for window in called.windows]
    assert transactions == [("deduper-cd-unique", 1700), ("deduper-cd-error", 1700)]


def test_rows_for_a_port_without_a_function_are_refused() -> None:
    """Before any function is called; unless the user says that the rows were used."""
    called = Called()
    of_other = OutputFile(**{**{name: getattr(OUTPUT, name) for name in OUTPUT.__slots__}, "port": "expired"})
    with pytest.raises(UsageError, match="window 7 was committed for port expired"):
        called.calls.publish(7, [OUTPUT, of_other])
    called.calls.are_used = True
    called.calls.publish(7, [OUTPUT, of_other])
    assert called.windows == []


def test_json_needs_a_zone() -> None:
    """One that Spark has and we have not is refused before anything is written."""
    with pytest.raises(UsageError, match="`SystemV/AST4` is no zone in which JSON has times"):
        require_json(StructType([]), "SystemV/AST4")
    require_json(StructType([]), "Europe/Paris")
