"""A store's birth certificate: who it is, its secret, and the settings that must never change. Written once.

Layout of `manifest` (framed, magic `BSMANIF\\n`, version 1): the body is one JSON object in UTF-8, readable for people.
Its names are the fields of `Manifest`; `salt` is hex. It is created after record 0 of the log, so a directory with a
manifest has a log; of two creators one wins. A damaged manifest is a CorruptionError: without the salt no key of
the store can be recognised, so it is never guessed.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from bucket_store.errors import CorruptionError, StoreError, StoreMissingError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place

MAGIC = b"BSMANIF\n"
VERSION = 1
FILE_NAME = "manifest"


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON object."""

    store_id: str
    incarnation: str
    salt: str
    settings: dict[str, Any]
    snapshot_every: int
    created_us: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts fixed for the life of a store.

    `store_id` is 16 random bytes in hex. `incarnation`, 8 random bytes in hex, is drawn at init, and no check
    depends on it. `salt`, 16 secret bytes, goes into every digest and is kept out of the
    repr. `settings` is a JSON object of the upper package's. A log record whose number is a multiple of
    `snapshot_every` is a snapshot.
    """

    store_id: str
    incarnation: str
    salt: bytes = field(repr=False)
    settings: dict[str, Any]
    snapshot_every: int
    created_us: int


def new_manifest(settings: dict[str, Any], *, snapshot_every: int, created_us: int) -> Manifest:
    """A manifest with a new identity and a new salt.

    Raises:
        ValueError: snapshot_every < 2 (other records need numbers too), or settings that JSON would change.
    """
    if snapshot_every < 2:
        raise ValueError(f"snapshot_every must be 2 or more, not {snapshot_every}")
    if json.loads(json.dumps(settings)) != settings:
        raise ValueError(f"settings do not survive JSON: {settings!r}")
    return Manifest(
        store_id=secrets.token_hex(16),
        incarnation=secrets.token_hex(8),
        salt=secrets.token_bytes(16),
        settings=settings,
        snapshot_every=snapshot_every,
        created_us=created_us,
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the manifest file."""
    body = asdict(manifest) | {"salt": manifest.salt.hex()}
    return frame(MAGIC, VERSION, json.dumps(body, sort_keys=True).encode())


def decode_manifest(data: bytes, *, file: str) -> Manifest:
    """The manifest in these bytes.

    Raises:
        CorruptionError: not what was written.
        UnknownFormatError: of a later release.
    """
    body = unframe(data, magic=MAGIC, version=VERSION, file=file)
    try:
        found = msgspec.convert(json.loads(body), _Body)
        sizes = [len(bytes.fromhex(text)) for text in (found.store_id, found.incarnation, found.salt)]
        if sizes != [16, 8, 16] or found.snapshot_every < 2:
            raise ValueError(f"ids and salt of {sizes} bytes, a snapshot every {found.snapshot_every}")
        return Manifest(**msgspec.structs.asdict(found) | {"salt": bytes.fromhex(found.salt)})
    except (ValueError, RecursionError) as exc:
        raise CorruptionError("fields", file=file, offset=BODY_OFFSET, expected="a manifest", found=str(exc)) from exc


def place_manifest(root: Place, manifest: Manifest) -> None:
    """Put the manifest in place, durable on return.

    Raises:
        StoreError: there is one already.
    """
    try:
        create_own(root / FILE_NAME, encode_manifest(manifest))  # with a random id
    except FileExistsError as exc:
        raise StoreError(f"{root} is a store already") from exc


def read_manifest(root: Place) -> Manifest:
    """The manifest of the store at `root`.

    Raises:
        StoreMissingError: no store there.
        CorruptionError, UnknownFormatError: as `decode_manifest`.
    """
    path = root / FILE_NAME
    try:
        data = path.read()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise StoreMissingError(f"{root}: no store here (no {FILE_NAME})") from exc
    return decode_manifest(data, file=str(path))
