"""What fuzzing has found so far, tried again without the fuzzer, and the decoders that it must not forget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bucket_store
import deduper
from tests.bucket_store.damage import little_room
from tests.fuzz import shapes
from tests.fuzz.targets import RECORDS, TARGETS

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 300_000
_WITHOUT_FILES_OF_THEIR_OWN = {
    "bucket_store.log.records": "the values of log.codec, without bytes",
    "bucket_store.log.state": "folds what log.codec has read; its target folds too",
    "bucket_store.tables.view": "travels between processes of one job, by pickle, and lies nowhere",
    "deduper.tasks.judge": "travels from a task to its driver, by Spark, and lies nowhere",
    "bucket_store.wire": "what the decoders look at their fields with",
}


def test_every_decoder_has_a_target() -> None:
    """A module that takes msgpack, JSON or structs apart, or that reads what people type, is fuzzed."""
    fuzzed = {module.__name__ for target in TARGETS.values() for module in target.modules}
    found = set()
    for package in (bucket_store, deduper):
        root = Path(package.__file__ or "").parent.parent
        for path in (root / package.__name__).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"^def (decode_|read_document|parse_|unseal)|^MAGIC = |unpackb\(", text, re.MULTILINE):
                found.add(".".join(path.relative_to(root).with_suffix("").parts))
    assert len(found) >= 12
    assert found - fuzzed - _WITHOUT_FILES_OF_THEIR_OWN.keys() == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_of_the_fuzzer_keep_the_promises(name: str) -> None:
    """Sound inputs, and each field of a sound one with an odd value in its place."""
    count = 0
    with little_room():
        for data in TARGETS[name].seeds():
            TARGETS[name].run(data)
            count += 1
    assert count > 0


@pytest.mark.night
@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_keeps_the_promises(name: str) -> None:
    """Every input that was worth keeping, and of broken promises the inputs that broke them."""
    files = sorted((CORPUS / name).iterdir())
    assert files
    with little_room():
        for file in files:
            TARGETS[name].run(file.read_bytes())
            TARGETS[name].run(file.read_bytes()[:-1])


@pytest.mark.night
@pytest.mark.parametrize("name", ["manifest", "record", "intent", "mark", "sources", "heartbeat", "generation"])
def test_every_odd_value_in_every_field_keeps_the_promises(name: str) -> None:
    """Behind a right checksum: another type is corruption, and what is let through is right in every type."""
    target, count = TARGETS[name], 0
    places, step = {bytes([shapes.CHANGES]): 24}, 1
    if name == "record":
        step = 3  # in a list of pieces the same field comes again and again
        places = {bytes([shapes.CHANGES, kind]): shapes.count_of_nodes(tree) for kind, (_, tree) in RECORDS.items()}
    for head, nodes in places.items():
        for position in range(nodes):
            for value in range(position % step, len(shapes.ODD_VALUES) + len(shapes.ODD_BYTES), step):
                target.run(head + shapes.replacing(position, value)[1:])
                count += 1
    assert count > 500


def test_the_corpus_is_small() -> None:
    """It is cloned by everybody."""
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_BYTES
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
