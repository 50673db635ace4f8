"""PURE. The names of the ports' files and folders, staged and published, written and parsed.

A staged file is in `<home>/_staging/<window>-<epoch>-<attempt>/…`, a published one in its port's directory as
`<store id, 8 digits>-<window>-<number>.<ending>`. The port's mark is beside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bucket_store.log.records import OutputFile
from bucket_store.places.place import Place
from deduper.config.files import FileSink
from deduper.config.kafka.sections import KafkaSink
from deduper.file_formats import ENDINGS, PortFormat

STAGING = "_staging"
PUBLISHED = "_published"
"""The name of the mark beside a file port's files; the store's own is called `published`."""
_FOLDER = re.compile(r"(\d{12,})-(\d{6,})-(\d{3,})")
_FINAL = re.compile(rf"([0-9a-f]{{8}})-(\d{{12,}})-(\d{{4,}})\.({'|'.join(map(re.escape, ENDINGS))})")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One judging of a window, as the names of staged files and pieces have it."""

    window: int
    epoch: int
    attempt: int

    @property
    def folder(self) -> str:
        """The name of the attempt's folder in any `_staging`."""
        return f"{self.window:012d}-{self.epoch:06d}-{self.attempt:03d}"

    @classmethod
    def of_folder(cls, name: str) -> Attempt | None:
        """The attempt whose folder has this name; None when it is no attempt's."""
        found = _FOLDER.fullmatch(name)
        return None if found is None else cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class FinalName:
    """The parts of a published file's name; `store` is the beginning of the store's id."""

    store: str
    window: int
    number: int
    format: PortFormat

    @classmethod
    def of(cls, name: str) -> FinalName | None:
        """The parts of this name; None when it is no published file's."""
        found = _FINAL.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]), ENDINGS[found[4]])


def final_name(store_id: str, attempt: Attempt, number: int, ending: str) -> str:
    """The name a staged file is published under: unique to the store and the window, and in their order."""
    return f"{store_id[:8]}-{attempt.window:012d}-{number:04d}.{ending}"


_TOPIC = re.compile(
    r"kafka:(?P<topic>[a-zA-Z0-9._-]+)\?job=(?P<job>[a-z0-9][a-z0-9._-]*)&slots=(?P<slots>\d+(?:,\d+)*)"
)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The topic and writers for a staged file's rows, when they are not published as a file.

    `job` is the name in their transactional ids, as it was at the commit of the window: under another name its
    publication could not be found again.
    """

    topic: str
    slots: tuple[int, ...]
    job: str

    def __str__(self) -> str:
        return f"kafka:{self.topic}?job={self.job}&slots={','.join(map(str, self.slots))}"

    @classmethod
    def of(cls, final: str) -> TopicPlace | None:
        """The topic and writers in a final name of a commit record; None when it is a file's."""
        found = _TOPIC.fullmatch(final)
        return None if found is None else cls(found["topic"], tuple(map(int, found["slots"].split(","))), found["job"])


_FUNCTION = "function:"


def function_place(port: str) -> str:
    """The final name of staged rows for a function: they stay where they are staged."""
    return f"{_FUNCTION}{port}"


def is_of_file(output: OutputFile) -> bool:
    """Whether an output is published as a file."""
    return topic_of(output) is None and not output.final.startswith(_FUNCTION)


@dataclass(frozen=True, slots=True)
class Outputs:
    """A window's outputs by kind.

    Files to publish; staged rows to send, each with its topic and writers; and staged rows for functions.
    """

    files: tuple[OutputFile, ...]
    topics: tuple[tuple[OutputFile, TopicPlace], ...]
    functions: tuple[OutputFile, ...] = ()


def topic_of(output: OutputFile) -> TopicPlace | None:
    """The topic and writers of an output's rows; None for an output that is published as a file."""
    return TopicPlace.of(output.final)


def outputs_of(outputs: Iterable[OutputFile]) -> Outputs:
    """The outputs of a commit record by kind, each kind in the record's order."""
    placed = [(output, topic_of(output)) for output in outputs]
    return Outputs(
        files=tuple(output for output, _ in placed if is_of_file(output)),
        topics=tuple((output, place) for output, place in placed if place is not None),
        functions=tuple(output for output, _ in placed if output.final.startswith(_FUNCTION)),
    )


class HasFilePorts(Protocol):
    """File ports and their store: those of a job's config, or of another command with windows."""

    @property
    def file_ports(self) -> Mapping[str, FileSink]:
        """The ports that are files, by their names. Never changes."""

    @property
    def store_place(self) -> Place:
        """The folder of the store of the windows. Never changes."""


class HasPorts(HasFilePorts, Protocol):
    """All ports, of files, of topics, and of functions, with the name in the transactional ids of topics."""

    @property
    def name(self) -> str:
        """The name of the job. Never changes while it runs."""

    @property
    def topic_ports(self) -> Mapping[str, KafkaSink]:
        """The ports that are topics, by their names. Never changes."""

    @property
    def function_ports(self) -> Collection[str]:
        """The ports whose rows functions take. Never changes."""


def staging_homes(config: HasFilePorts) -> list[Place]:
    """Every directory that may have a `_staging`: those of the file ports, and the store's."""
    return sorted({sink.place for sink in config.file_ports.values()} | {config.store_place}, key=str)


def is_data_file(name: str) -> bool:
    """Whether readers of a port's directory read a file of this name: it begins with no dot and no underscore."""
    return not name.startswith((".", "_"))
