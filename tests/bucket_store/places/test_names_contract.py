"""What every storage promises. A storage joins by a fixture parameter; one that needs a server is marked `services`."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bucket_store import failpoints
from bucket_store.places.local import local_place
from bucket_store.places.new_file import create_own
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from bucket_store.places.probe import demand_refusal
from tests.bucket_store.places.memory_names import memory_place
from tests.s3_server import new_prefix

_WITHOUT_RENAME = ("s3", "gs", "az", "objects")


@pytest.fixture(params=["file", "memory", "objects", pytest.param("s3", marks=pytest.mark.services)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty directory on each kind of storage."""
    if request.param == "file":
        place = local_place(tmp_path / "root")
    elif request.param == "memory":
        place = memory_place() / "root"
    elif request.param == "objects":
        place = open_place(f"objects:{tmp_path}/root")
    else:
        place = open_place(new_prefix(request.getfixturevalue("s3_bucket")))
    place.make_directories()
    return place


def test_a_created_file_is_whole_and_stays(root: Place) -> None:
    """A second creation is refused and changes nothing."""
    file = root / "one"
    file.create(b"first")
    with pytest.raises(FileExistsError):
        file.create(b"second")
    assert file.read() == b"first"
    assert [entry.name for entry in root.entries()] == ["one"]


def test_one_of_all_racers_creates(root: Place) -> None:
    """Eight at once, many times: one winner, its bytes."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(25):
            file = root / f"slot-{number}"

            def race(racer: int, file: Place = file) -> int | None:
                try:
                    file.create(bytes([racer]) * 1000)
                except FileExistsError:
                    return None
                return racer

            winners = [racer for racer in pool.map(race, range(8)) if racer is not None]
            assert len(winners) == 1
            assert file.read() == bytes([winners[0]]) * 1000


def test_replacing_ranges_and_stat(root: Place) -> None:
    """The new bytes, whole; ranges end where the file does."""
    file = root / "mark"
    file.replace(b"old")
    file.replace(b"0123456789")
    assert file.read() == b"0123456789"
    assert file.read_range(2, 3) == b"234"
    assert file.read_range(8, 10) == b"89"
    assert file.stat().size == 10
    assert not file.stat().is_directory
    assert [file.exists(), (root / "none").exists(), root.exists()] == [True, False, True]


def test_who_touches_a_file_is_seen_to_live(root: Place) -> None:
    """Its time or its bytes move at each touch, and its bytes are of one of them."""
    file, seen = root / "beat", set[tuple[int, bytes]]()
    for number in range(3):
        file.touch(b"%d" % number)
        seen.add((file.stat().modified_us, file.read()))
        time.sleep(1.1 if root.names.scheme in ("s3", "gs", "az") else 0.02)
    assert len(seen) == 3
    assert {data for _, data in seen} <= {b"0", b"1", b"2"}


def test_names_are_listed_in_order_and_from_a_name_on(root: Place) -> None:
    """As entries; of a directory that is absent there are none."""
    for name in ("b", "a", "d", "c"):
        (root / name).create(b"1")
    assert root.listed() == ["a", "b", "c", "d"] == [entry.name for entry in root.entries()]
    assert root.listed(after="b") == root.listed(after="bb") == ["c", "d"]
    assert (root / "absent").listed() == []


def test_what_a_lower_epoch_prepared_replaces_nothing(root: Place) -> None:
    """Once a higher one has removed what was prepared and put its own in place; each name is for itself."""
    mark = root / "mark"
    mark.prepare(b"first", epoch=1).put()
    sleeper, elsewhere = mark.prepare(b"1", epoch=1), (root / "other").prepare(b"1", epoch=1)
    mark.remove_prepared(below_epoch=2)
    mark.prepare(b"2", epoch=2).put()
    later = mark.prepare(b"3", epoch=3)
    mark.remove_prepared(below_epoch=2)
    with pytest.raises(FileNotFoundError):
        sleeper.put()
    assert mark.read() == b"2"
    later.put()
    elsewhere.put()
    assert [mark.read(), (root / "other").read()] == [b"3", b"1"]


def test_a_first_mark_that_slept_replaces_none(root: Place) -> None:
    """There was no file when it was prepared."""
    mark = root / "mark"
    sleeper = mark.prepare(b"1", epoch=1)
    mark.remove_prepared(below_epoch=2)
    mark.prepare(b"2", epoch=2).put()
    with pytest.raises(FileNotFoundError):
        sleeper.put()
    assert mark.read() == b"2"


def test_a_discarded_replacement_leaves_nothing_and_takes_no_other_with_it(root: Place) -> None:
    """Not a later one of the same epoch, nor the file that was put in place; a second call does nothing."""
    mark = root / "mark"
    put, discarded, other = (mark.prepare(data, epoch=1) for data in (b"1", b"2", b"3"))
    discarded.discard()
    other.put()
    for one in (put, discarded, other) * 2:
        one.discard()
    assert (mark.read(), root.listed()) == (b"3", ["mark"])


def test_a_creation_has_failpoints(root: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the name is taken, and after; in HDFS, whose files are open for a while, before it is closed too."""
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(failpoints, "hit", lambda name: seen.append((name, (root / "a").exists())))
    (root / "a").create(b"1", failpoint="log")
    opened = [("log.open", False)] if root.url.startswith("hdfs:") else []
    assert seen == [*opened, ("log.written", False), ("log.linked", True)]


def test_what_is_absent(root: Place) -> None:
    """Reading it is an error by name, removing it none, listing it empty."""
    absent = root / "absent"
    for look in (absent.read, absent.stat, lambda: absent.read_range(0, 1)):
        with pytest.raises(FileNotFoundError):
            look()
    assert not absent.exists()
    absent.remove()
    absent.remove_tree()
    assert absent.entries() == []


def test_a_file_in_an_absent_directory(root: Place) -> None:
    """Where directories are no more than parts of names, it is simply there."""
    inner = root / "absent" / "a"
    if root.names.scheme in _WITHOUT_RENAME:
        inner.replace(b"1")
        assert inner.read() == b"1"
    else:
        with pytest.raises(FileNotFoundError):
            inner.replace(b"1")
        assert root.entries() == []


def test_directories_are_walked_and_removed(root: Place) -> None:
    """All files below, whatever their depth."""
    deep = root / "a/b/c"
    deep.make_directories()
    deep.make_directories()
    (deep / "x").create(b"x")
    (root / "a/y").create(b"y")
    assert {file.name for file in root.walk()} == {"x", "y"}
    assert all(entry == file.stat() for file, entry in root.files()), "a listing says what a look at each file does"
    assert root.entries() == [(root / "a").stat()]
    (root / "a").remove_tree()
    assert list(root.walk()) == []


def test_a_rename_never_replaces(root: Place) -> None:
    """The name moves, or both files stay. A storage without renames does nothing."""
    (root / "from").create(b"1")
    (root / "to").create(b"2")
    if root.names.scheme in _WITHOUT_RENAME:
        with pytest.raises(NotImplementedError):
            (root / "from").rename(root / "elsewhere")
        assert [(entry.name, entry.size) for entry in root.entries()] == [("from", 1), ("to", 1)]
        return
    with pytest.raises(FileExistsError):
        (root / "from").rename(root / "to")
    assert (root / "to").read() == b"2"
    (root / "to").remove()
    (root / "from").rename(root / "to")
    assert (root / "to").read() == b"1"
    assert not (root / "from").exists()
    with pytest.raises(FileNotFoundError):
        (root / "from").rename(root / "elsewhere")


def test_a_place_goes_by_url_and_by_pickle(root: Place) -> None:
    """Another process sees the same file."""
    if root.names.scheme == "memory":
        pytest.skip("the memory of a process is no other's")
    (root / "with space").create(b"1")
    assert open_place((root / "with space").url).read() == b"1"
    assert pickle.loads(pickle.dumps(root / "with space")).read() == b"1"


def test_a_name_of_one_writer_may_be_taken_by_its_earlier_try(root: Place) -> None:
    """The same bytes are its own; others are not."""
    create_own(root / "one", b"first")
    create_own(root / "one", b"first")
    with pytest.raises(FileExistsError):
        create_own(root / "one", b"second")
    assert (root / "one").read() == b"first"


def test_a_file_of_one_writer_is_written_and_removed_with_others(root: Place) -> None:
    """Its folder is made, its name begins as asked for; absent ones are no error."""
    first, second = (root / "pieces" / "0000" / f"{name}.piece" for name in ("a", "b"))
    written = [place.write_own(name) for place, name in ((first, b"first"), (second, b"second"))]
    assert [place.read() for place in written] == [b"first", b"second"]
    assert [place.path.name[:1] + place.path.suffix for place in written] == ["a.piece", "b.piece"]
    root.names.remove_all([written[0].path, (root / "absent").path])
    assert [root / "pieces" / "0000" / entry.name for entry in first.parent.entries()] == written[1:]


def test_a_probe_leaves_nothing(root: Place) -> None:
    """Every storage here refuses a name that is taken. A new store has no directory yet."""
    new = root / "above" / "new"
    demand_refusal(new)
    assert new.entries() == []
