"""Which states of a Redis server the list of an external index accepts, and for which files. PURE.

    <folder>/state  a framed file: magic "BSTABEXT", version 1, `ServedState` as the body; see `persistent`

A token names a state of the entries on the server. The list accepts those that it has: each stands for the entries of
all files up to a step, and perhaps more. It has the next step's token before the server does, so a server that is a
step ahead of the list is accepted. Before numbers of files are dropped from entries, the list is without these files,
and the server has a token that no earlier list has: so readers of an earlier list find that it is out of date.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from deduper.table.columns import KeyColumns
from deduper.table.formats.files import FramedFile
from deduper.table.index.persistent import NumberedFile

_MOST_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class ServedFile(NumberedFile):
    """A file whose keys the server has: their number, the bucket they are in, and the step that brought them."""

    keys: int
    bucket: int
    step: int


@dataclass(frozen=True, slots=True)
class EarlierToken:
    """A token that the server may have come back to: it has the entries of all files up to a step."""

    token: str
    step: int


@dataclass(frozen=True, slots=True)
class ServedState:
    """An index; `columns` and `salt` are fixed for its life.

    The server has `token` after this state's step, and `announced` after the next. The entries of the `discarded`
    indexes are to be deleted.
    """

    index_id: str
    salt: bytes
    columns: KeyColumns
    step: int
    token: str
    announced: str
    earlier: tuple[EarlierToken, ...]
    files: tuple[ServedFile, ...]
    discarded: tuple[str, ...]

    def step_of(self, token: str) -> int | None:
        """The step up to which a server with a token has the files' entries; None: it is not one of this state's."""
        if token in (self.token, self.announced):
            return self.step
        return next((one.step for one in self.earlier if one.token == token), None)

    def files_up_to(self, step: int) -> tuple[ServedFile, ...]:
        """The files of the steps up to one."""
        return tuple(file for file in self.files if file.step <= step)

    def with_files(self, files: Iterable[ServedFile]) -> ServedState:
        """After the next step, with more files; the server has the announced token."""
        return replace(
            self,
            step=self.step + 1,
            token=self.announced,
            announced=new_token(),
            earlier=self._past(),
            files=(*self.files, *files),
        )

    def without(self, gone: Set[int]) -> ServedState:
        """Without the files of some numbers; the server does not have the token yet."""
        return replace(
            self,
            token=new_token(),
            announced=new_token(),
            earlier=(*self._past(), EarlierToken(self.announced, self.step)),
            files=tuple(file for file in self.files if file.number not in gone),
        )

    def _past(self) -> tuple[EarlierToken, ...]:
        return (*self.earlier, EarlierToken(self.token, self.step))[-_MOST_TOKENS:]


def new_token() -> str:
    """A token that no state has had."""
    return secrets.token_hex(8)


FORM = FramedFile(ServedState, b"BSTABEXT", 1, "state of an external index")
