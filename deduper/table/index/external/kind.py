"""The external index as a kind; see `TableIndex`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deduper.table.columns import KeyColumns
from deduper.table.errors import IndexServerError, ServerRefusedError
from deduper.table.index.external.settings import server_address
from deduper.table.index.external.state import FORM, ServedState
from deduper.table.index.kept import REBUILDING, KeptKind, NumberedFile, Part
from deduper.table.index.protocol import Condition

if TYPE_CHECKING:
    from deduper.table.index.external.index import ServedIndex
    from deduper.table.index.external.view import ServedView


class ExternalIndex(KeptKind[ServedState]):
    """Every key with its file on a Redis server, the list of files in `_deduper/external` of the table's folder."""

    kind = "external"
    form = FORM
    folder_name = "external"

    def __init__(
        self,
        url: str = "",
        password: str | None = None,
        *,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
    ) -> None:
        """`url`: `redis://`, `rediss://` or `unix://`; a `password` in it is percent-encoded. Files are of PEM.

        Raises:
            SettingError: they are no server.
        """
        self._address = server_address(
            url,
            password,
            ca_file=ca_file,
            certificate_file=certificate_file,
            key_file=key_file,
            key_password=key_password,
        )

    def open(self, root: Path, columns: KeyColumns) -> ServedIndex:
        """See `TableIndex`.

        Raises:
            ServerRefusedError: the server cannot hold an index, or the package redis is not installed.
            IndexServerError: the server is away.
        """
        from deduper.table.index.external.index import ServedIndex  # redis need not be installed

        return ServedIndex(root, self.folder(root), columns, self._address)

    def view(self, root: Path, columns: KeyColumns) -> ServedView:
        """See `TableIndex`.

        Raises: as `open`.
        """
        from deduper.table.index.external.view import ServedView

        return ServedView(self.folder(root), columns, self._address)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> ServedIndex:
        from deduper.table.index.external.index import ServedIndex

        return ServedIndex(root, self.folder(root), columns, self._address, REBUILDING)

    def _parts(self, folder: Path, state: ServedState) -> list[Part]:
        """One: the entries on the server, which takes no room in the folder."""
        return [Part(folder / state.index_id, sum(file.keys for file in state.files), 0)]

    def _checked(
        self,
        folder: Path,  # noqa: ARG002  the base's
        state: ServedState,
    ) -> tuple[Sequence[NumberedFile], tuple[Condition, str] | None]:
        from deduper.table.index.external.server import ServedEntries

        try:
            head = ServedEntries(self._address, state.index_id).head()
        except (IndexServerError, ServerRefusedError) as error:
            return state.files, (Condition.AWAY, str(error))
        step = None if head is None else state.step_of(head.token)
        if step is None:
            why = "the server has none, or another state of it; the next load builds the index from the table"
            return (), (Condition.ABSENT, why)
        return state.files_up_to(step), None
