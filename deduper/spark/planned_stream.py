"""A streaming source of Spark whose batches another process plans: the one that started the query.

Spark asks the source for its newest offset at every trigger, in a Python process of its own. That process passes the
question on to the `Planner`, over a socket of this machine (its port and key are in a file that only this user can
read), and gives Spark the answer as an offset: {"planned": how many batches were planned so far}. If it has not moved,
there is no batch.

A batch has one row for each of its source partitions: `name, start, end`. The judging takes the batch as it was planned
and never reads these rows; they are for tools that show the query.

This module is imported by Spark's processes, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

FORMAT = "deduper_planned"
ADDRESS = "planner"
"""The option with the path of the file that tells where the planner listens."""
_HOST = "127.0.0.1"
_PLANNED = "planned"
_NEXT, _PARTS = "next", "parts"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A source partition of a batch, for a row of the source."""

    name: str
    start: int
    end: int


class PlanError(Exception):
    """The next batch cannot be planned."""


class Planner:
    """Answers the process of a query's source, on a thread of its own, until the query ends.

    `plan` is called at every trigger, never while a batch is under way: the parts of the next batch, None without one.
    What it raises ends the query. `ended` is called once, when the source's process is gone.
    """

    def __init__(
        self, folder: Path, plan: Callable[[], Sequence[PlannedPart] | None], ended: Callable[[], None]
    ) -> None:
        key = secrets.token_bytes(32)
        self._listener = Listener((_HOST, 0), authkey=key)
        self.address = folder / "planner"
        """The file with the port and the key."""
        self.address.touch(0o600, exist_ok=False)
        self.address.write_text(f"{self._listener.address[1]} {key.hex()}", encoding="ascii")
        self._plan = plan
        self._ended = ended
        self._planned = 0
        self._is_closed = False
        self.was_asked = False
        """Whether the source's process has come up."""
        self._parts: Sequence[PlannedPart] = ()
        self._thread = threading.Thread(target=self._serve, name="planner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more. The query is over, or was never started: then nobody has connected."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.address).close()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        try:
            with self._accepted() as asking:
                self.was_asked = True
                while True:
                    asking.send(self._answered(asking.recv()))
        except (EOFError, OSError) as exc:
            logger.debug("the source's process is gone: %r", exc)
        finally:
            self._ended()

    def _accepted(self) -> Connection:
        """The connection of the source's process; any other process that connects has no key."""
        while True:
            try:
                return self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError) as exc:
                if self._is_closed:
                    raise EOFError from exc

    def _answered(self, asked: str) -> Any:
        try:
            return self._answer(asked)
        except Exception as exc:  # noqa: BLE001  raised where the query runs, and kept by who has planned
            return PlanError(str(exc))

    def _answer(self, asked: str) -> Any:
        if asked == _PARTS:
            return self._parts
        parts = self._plan()
        if parts is not None:
            self._planned, self._parts = self._planned + 1, parts
        return self._planned


def _connected(address: Path) -> Connection:
    port, key = address.read_text(encoding="ascii").split()
    return Client((_HOST, int(port)), authkey=bytes.fromhex(key))


class PlannedStream(DataSource):
    """The source, for `readStream.format(FORMAT)`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """A source partition of the batch: a file with its bytes, or a partition of a topic with its offsets."""
        return "name string, start bigint, end bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of the batches that the planner plans."""
        del schema
        return _PlannedReader(self.options[ADDRESS])


@dataclass
class _PlannedPartition(InputPartition):
    part: PlannedPart


class _PlannedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, address: str) -> None:
        self._address = address
        self._planner: Connection | None = None

    def initialOffset(self) -> dict[str, int]:
        return {_PLANNED: 0}

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        del start, limit
        return {_PLANNED: self._ask(_NEXT)}

    def prepareForTriggerAvailableNow(self) -> None:
        """The planner knows where the source ends."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        del start, end
        return [_PlannedPartition(one) for one in self._ask(_PARTS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int]]:
        assert isinstance(partition, _PlannedPartition)
        yield partition.part.name, partition.part.start, partition.part.end

    def _ask(self, question: str) -> Any:
        if self._planner is None:
            self._planner = _connected(Path(self._address))
        self._planner.send(question)
        answer = self._planner.recv()
        if isinstance(answer, PlanError):
            raise answer
        return answer
