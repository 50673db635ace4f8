"""What every kind of index promises: random histories of a table against a list, and equal answers of all kinds."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable

from deduper.table.errors import VersionGoneError
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index.bloom import BloomIndex
from deduper.table.index.exact import ExactIndex
from deduper.table.index.protocol import Condition
from deduper.table.index.reading import opened
from deduper.table.index.simple import SimpleIndex
from deduper.table.operations.changes import load
from deduper.table.operations.questions import filter_exists, read, tag
from deduper.table.operations.rollback import rollback
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.operations.verify import verify
from deduper.table.settings import load_config
from tests.deduper.table.scene import CHANGE_STEPS, EPOCH, SERVER_STEPS, Place, Row, arrow, dying, foreign
from tests.deduper.table.test_table_change_deaths import Model
from tests.tiers import is_night

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> None:
    """An empty source: it has the types of a plain table's partitions, where no index keeps them."""
    (tmp_path / "in").mkdir()
    pq.write_table(arrow([]), tmp_path / "in/a.parquet")


KINDS = ("exact", "bloom", "simple")
EXTERNAL = pytest.param("external", marks=[pytest.mark.services, pytest.mark.night], id="external")


def setting_of(name: str, request: pytest.FixtureRequest) -> str:
    """The setting `index` of a kind; that of `external` has the URL of a server."""
    if name != "external":
        return name
    return f"{{kind: external, options: {{url: '{request.getfixturevalue('redis_server').url}'}}}}"


@pytest.fixture(params=[*KINDS, EXTERNAL])
def kind(request: pytest.FixtureRequest) -> str:
    """The setting `index`."""
    return setting_of(request.param, request)


def holders(place: Place, scope: str) -> dict[tuple[int, int], set[str]]:
    """The files of each (key, day), read by nothing of ours; with scope `global` the day is 0."""
    found: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for path in place.files():
        day = (EPOCH.fromisoformat(path.split("/")[0].removeprefix("d=")) - EPOCH).days
        for key in pq.ParquetFile(place.root / path).read(["k"])["k"].to_pylist():
            if key is not None:
                found[key, day if scope == "partition" else 0].add(path)
    return found


def check_answers(place: Place, model: Model, scope: str, seed: str, kinds: Sequence[str]) -> None:
    """`tag`, `filter_exists` and `read` by every kind, whatever it has kept, are those of the files and of the rows."""
    asked: list[Row] = [(key, "", day) for key in range(40) for day in (range(3) if scope == "partition" else [0])]
    held = holders(place, scope)
    in_table = Counter(row for row in model.rows if row[0] < 40)
    for index in kinds:
        config = Place(place.root.parent, place.format, index).config(f"scope: {scope}\n")
        tags = tag(arrow(asked), config)
        for (key, _, day), action, files in zip(
            asked, tags["action"].to_pylist(), tags["files"].to_pylist(), strict=True
        ):
            assert set(files or ()) == held.get((key, day), set()), f"{seed}, {index}: {key}, {day}"
            assert len(files or ()) == len(set(files or ()))
            assert action == ("update" if files else "insert")
        new = filter_exists(arrow(asked), config).to_pylist()
        assert new == [action == "insert" for action in tags["action"].to_pylist()]
        rows = read(arrow(asked), config)
        days = [(day - EPOCH).days for day in rows["d"].to_pylist()]
        assert Counter(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), days, strict=True)) == in_table


def histories() -> Iterator[ParameterSet]:
    """(index, seed); `mixed`: another kind each time. Those with a server take more time."""
    for index in (*KINDS, "mixed", "external", "mixed with external"):
        for seed in range({"external": 2, "mixed with external": 1}.get(index, 6)):
            marks = [pytest.mark.services] * ("external" in index)
            yield pytest.param(index, seed, marks=marks, id=f"{index}-{seed}")


@pytest.mark.night(
    but=[
        *("delta-exact-0-global", "parquet-bloom-0-partition", "parquet-simple-0-global"),
        *("delta-mixed-0-partition", "parquet-mixed-0-global", "delta-external-0-partition"),
    ]
)
@pytest.mark.parametrize("scope", ["partition", "global"])
@pytest.mark.parametrize(("index", "seed"), list(histories()))
def test_random_histories(index: str, seed: int, scope: str, place: Place, request: pytest.FixtureRequest) -> None:
    """Loads, upserts, deletes, deaths at each step, foreign commits, removals, rollbacks, lost indexes.

    `mixed`: another kind each time, so each comes to a table that others have changed.
    A server is emptied and restored, too.
    """
    rng = random.Random(f"{index}{seed}{scope}{place.format}")
    server = request.getfixturevalue("redis_server") if "external" in index else None
    is_mixed = index.startswith("mixed")
    saved: bytes | None = None
    kinds = KINDS if server is None else (*KINDS, setting_of("external", request))
    name = f"seed {seed}"
    more = f"scope: {scope}\nsmall_file_bytes: {rng.choice(['1B', '1MiB'])}\n"
    model = Model(scope, moves=True)
    place.index = KINDS[0] if is_mixed else setting_of(index, request)
    place.load([(1, "first", 0)], scope=scope)
    model.rows = [(1, "first", 0)]
    done: Counter[str] = Counter()
    for step in range(12 if is_night() else 7):
        if is_mixed:
            place.index = rng.choice(kinds)
        if server is not None and rng.random() < 0.15:
            if saved is None or rng.random() < 0.5:
                saved = server.snapshot()
            else:
                server.restore(saved)
        kind = rng.random()
        if kind < 0.1:
            key = rng.randrange(40) if scope == "partition" else 1000 + step
            if not (place.root / f"d=1970-01-03/foreign-{key}.parquet").exists():
                foreign(place, key, 2)
                model.rows.append((key, "foreign", 2))
        elif kind < 0.18 and place.format == "parquet" and len(place.files()) > 1:
            (place.root / rng.choice(place.files())).unlink()
            model.rows = place.rows()
        elif kind < 0.18 and place.format == "delta":
            DeltaTable(str(place.root)).delete("d = '1970-01-02'")
            model.rows = place.rows()
        elif kind < 0.3 and place.format == "delta":
            version = table_status(place.config(more)).version
            try:
                rollback(place.config(more), rng.randint(0, version))
                done["rollback"] += 1
            except VersionGoneError:
                done["no rollback"] += 1
            model.rows = place.rows()
        elif kind < 0.35:
            if server is not None and rng.random() < 0.4:
                server.client.flushall()
                continue
            for kept in ("index", "bloom", "external"):
                shutil.rmtree(place.root / PRIVATE / kept, ignore_errors=True)
        else:
            batch: list[Row] = [(rng.randrange(40), f"v{step}.{n}", rng.randrange(3)) for n in range(rng.randrange(12))]
            batch += [(None, "x", 0)] * rng.randrange(2)
            what = rng.choice(["load", "upsert", "upsert", "delete"]) if place.rows() else "load"
            old, new = Counter(model.rows), Counter(getattr(model, what)(batch))

            def run(what: str = what, batch: list[Row] = batch) -> None:
                if what == "load":
                    place.load(batch, scope=scope)
                else:
                    getattr(place, what)(batch, more)

            if rng.random() < 0.5:
                steps = CHANGE_STEPS if server is None else (*CHANGE_STEPS, *SERVER_STEPS)
                with dying(rng.choice(steps), rng.randint(1, 2)) as died:
                    run()
                done["death"] += len(died)
                if place.format == "delta":
                    assert Counter(place.rows()) in (old, new), f"{name}, step {step}"
            run()
            model.rows = list(new.elements())
            assert place.leftovers() == [], f"{name}, step {step}"
        if place.files():
            assert Counter(place.rows()) == Counter(model.rows), f"{name}, step {step}"
            if step % 3 == 2:
                check_answers(place, model, scope, f"{name}, step {step}", kinds)
    if place.files():
        place.load([], scope=scope)
        report = verify(place.config(more))
        assert (report.missing, report.extra) == (0, 0), name
        assert (report.not_compared is None) == (place.index != "simple")
    assert done, "no death and no rollback"


def test_an_entry_of_a_commit_that_failed_is_not_believed(kind: str, place: Place) -> None:
    """Nor one of a commit that was rolled back, or whose files were removed: the rows load again."""
    place.index = kind
    place.load([(1, "a", 0)])
    version = table_status(place.config()).version
    before = place.files()
    place.load([(2, "a", 0), (3, "a", 1)])
    config = place.config()
    if place.format == "delta":
        rollback(config, version)
    else:
        for path in set(place.files()).difference(before):
            (place.root / path).unlink()
    assert filter_exists(arrow([(1, "", 0), (2, "", 0), (3, "", 1)]), config).to_pylist() == [False, True, True]
    with dying("table.5.placed" if place.format == "delta" else "table.3.staged") as died:
        place.load([(2, "b", 0)])
    assert died
    assert filter_exists(arrow([(2, "", 0)]), config).to_pylist() == [True]
    assert place.load([(1, "c", 0), (2, "c", 0), (3, "c", 1)]).inserted == 2
    assert place.load([(1, "c", 0), (2, "c", 0), (3, "c", 1)]).found == 3


def test_a_death_between_data_and_index(kind: str, place: Place) -> None:
    """The next write reads what the index lacks, and adds no row again."""
    place.index = kind
    place.load([(1, "a", 0)])
    with dying("table.6.published") as died:
        place.load([(2, "a", 0), (3, "a", 1)])
    assert died
    receipt = place.load([(2, "b", 0), (3, "b", 1), (4, "b", 1)])
    assert (receipt.found, receipt.inserted) == (2, 1)
    assert receipt.read_files == (0 if kind == "simple" else 2)
    assert verify(place.config()).is_sound


def test_status_and_rebuild(kind: str, place: Place) -> None:
    """Of each kind: behind after a foreign commit, present after a load, and the same after a rebuild."""
    place.index = kind
    assert table_status(place.config()).files == 0
    place.load([(key, "a", key % 2) for key in range(50)])
    is_kept = kind != "simple"
    assert table_status(place.config()).index.state is (Condition.PRESENT if is_kept else Condition.NOT_KEPT)
    foreign(place, 100, 0)
    status = table_status(place.config()).index
    assert (status.state, status.added) == ((Condition.BEHIND, 1) if is_kept else (Condition.NOT_KEPT, 0))
    receipt = rebuild(place.config())
    assert (receipt.files, receipt.read_files, receipt.keys) == ((3, 3, 51) if is_kept else (3, 0, 0))
    assert table_status(place.config()).index.state is (Condition.PRESENT if is_kept else Condition.NOT_KEPT)
    assert place.load([(key, "b", key % 2) for key in range(50)]).inserted == 0
    assert verify(place.config()).is_sound


def test_another_key(kind: str, tmp_path: Path) -> None:
    """An index of another key or scope is begun anew; composite keys of many types, in several partition columns."""
    place = Place(tmp_path, "parquet", kind)
    rows = pa.table(
        {
            "a": pa.array([1, 2, 3, 4], pa.int32()),
            "b": ["x" * 100, "y", "ü" * 70, None],
            "c": pa.array([1.5, 2.5, None, 3.5]),
            "p": ["eu", "us", "eu", "eu"],
            "day": pc.cast(pa.array([0, 1, 0, 1], pa.int32()), pa.date32()),
        }
    )

    def loaded(key: list[str], scope: str = "partition", part: pa.Table = rows) -> tuple[int, int, int]:
        receipt = load(
            part,
            place.root,
            key=key,
            partition_by=["p", "day"],
            table_format="parquet",
            scope=scope,
            index=place.config().config.table_index,
        )
        return receipt.inserted, receipt.found, sum(receipt.errors.values())

    assert loaded(["b", "a"]) == (3, 0, 1)
    for key, scope, found in (
        (["b", "a"], "partition", (0, 3, 1)),
        (["b"], "global", (0, 3, 1)),
        (["a"], "global", (1, 3, 0)),
        (["c"], "partition", (0, 3, 1)),
        (["p", "a"], "partition", (0, 4, 0)),
        (["day", "p"], "partition", (0, 4, 0)),
    ):
        assert loaded(key, scope) == found, (key, scope)
    moved = rows.set_column(3, "p", pa.array(["us", "eu", "us", "us"]))
    assert loaded(["a"], "partition", moved) == (4, 0, 0)
    assert loaded(["a"], "global", moved) == (0, 4, 0)


def test_dates_that_python_does_not_have(kind: str, tmp_path: Path) -> None:
    """As the bounded column of a key: nothing is left out that has the key."""
    place = Place(tmp_path, "parquet", kind)

    def loaded(days: list[int]) -> tuple[int, int]:
        rows = pa.table({"k": pa.array(days, pa.int32()).cast(pa.date32()), "v": pa.array(days)})
        index = place.config().config.table_index
        receipt = load(rows, place.root, key=["k"], table_format="parquet", index=index)
        return receipt.inserted, receipt.found

    assert loaded([-4_000_000, 0, 4_000_000]) == (3, 0)
    assert loaded([5, 6]) == (2, 0)
    assert loaded([4_000_000, 5, 4_000_001, -4_000_000]) == (1, 3)


def test_only_files_that_may_have_a_key_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By partition and range; the filter of `bloom` leaves out files whose range has the key."""
    place = Place(tmp_path, "parquet", "bloom")
    rng = random.Random(1)
    keys = rng.sample(range(100_000), 4000)
    for part in range(4):
        place.load([(key, "a", 0) for key in keys[part * 1000 : part * 1000 + 1000]])
    place.load([(key, "a", 1) for key in range(200_000, 201_000)])
    files: list[str] = []
    module = "deduper.table.index.simple.opened"
    monkeypatch.setattr(module, lambda root, file: (files.append(file.path), opened(root, file))[1])
    for index, fewest, most in (("bloom", 1, 2), ("simple", 4, 4)):
        config = Place(tmp_path, "parquet", index).config()
        files.clear()
        assert filter_exists(arrow([(keys[0], "", 0)]), config).to_pylist() == [False]
        assert fewest <= len(files) <= most
    files.clear()
    config = Place(tmp_path, "parquet", "bloom").config()
    assert filter_exists(arrow([(200_500, "", 0), (1, "", 1), (300_000, "", 1)]), config).to_pylist() == [True] * 3
    assert files == []


def test_kinds_beside_each_other(place: Place) -> None:
    """A table may change its kind: what another kind has kept is caught up, and none harms another."""
    for number, index in enumerate((*KINDS, *KINDS)):
        place.index = index
        receipt = place.load([(key, "a", 0) for key in range(number + 1)])
        assert (receipt.inserted, receipt.found) == (1, number)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "index: blom\n",
            "1:8: index: `blom` is not a valid choice; write one of exact, bloom, simple, external",
        ),
        ("index: {kind: blom}\n", "1:15: index.kind: `blom` is not a valid choice"),
        ("index: {kind: exact, options: {bits: 5}}\n", "1:31: index.options: `exact` has none; leave them out"),
        (
            "index: {kind: bloom, options: {bits: 5}}\n",
            "1:31: index.options: `bloom` does not take them: BloomIndex.__init__() got an unexpected keyword argument "
            "'bits'; its options are fpp",
        ),
        *(
            (
                f"index: {{kind: bloom, options: {{fpp: {fpp}}}}}\n",
                f"1:31: index.options: `fpp` is {fpp}, and is the share of absent keys for which a file is read all "
                "the same; write a number from 0.00001 to 0.5",
            )
            for fpp in ("0", "0.6", "-1", "'a'", "[1]")
        ),
        (
            "index: {kind: external, options: {uri: 'redis://here'}}\n",
            "1:34: index.options: `external` does not take them: ExternalIndex.__init__() got an unexpected keyword "
            "argument 'uri'; its options are url, password, ca_file, certificate_file, key_file, key_password",
        ),
        ("index: external\n", "1:8: index: `external` needs the server's `url`; write `index: {kind: external"),
        ("index: {kind: external}\n", "1:8: index: `external` needs the server's `url`"),
        (
            "index: {kind: external, options: {url: 'http://me:secret@here'}}\n",
            "1:34: index.options: `http://***@here` is no URL of a server",
        ),
        (
            "index: {kind: external, options: {url: 'redis://h', password: 5}}\n",
            "1:34: index.options: `password` is no",
        ),
        ("index: {kind: external, options: {url: 'redis://h', port: 5}}\n", "1:34: index.options: `external` does not"),
        (
            "index: {kind: external, options: {url: 'redis://h', ca_file: /ca.pem}}\n",
            "1:34: index.options: `redis://` is without TLS and needs no files; write `rediss://`, or leave them out",
        ),
        (
            "index: {kind: external, options: {url: 'rediss://h', ca_file: ca.pem}}\n",
            "1:34: index.options: `ca_file` is `ca.pem`, which is no absolute path; write the whole path",
        ),
        (
            "index: {kind: external, options: {url: 'rediss://h', key_file: /k.pem}}\n",
            "1:34: index.options: `key_file` is without its certificate; name it as `certificate_file`",
        ),
        (
            "index: {kind: external, options: {url: 'rediss://h', key_password: 7}}\n",
            "1:34: index.options: `key_password` is no text; put it in quotes",
        ),
        (
            "index: {kind: external, options: {url: 'rediss://me:secret@h', password: hidden}}\n",
            "1:34: index.options: the URL has a password, and `password` is another; leave one of them out",
        ),
        (
            "index: {kind: external, options: {url: 'rediss://h?ssl_cert_reqs=none'}}\n",
            "1:34: index.options: `ssl_cert_reqs` in the URL is not read; leave it out",
        ),
        ("index: {kinds: bloom}\n", "1:9: index.kinds: unknown setting; did you mean `kind`?"),
        ("index: 5\n", "1:8: index: must be a section of settings, found `5`"),
        ("index: {kind: 5}\n", "1:15: index.kind: must be text, found `5`"),
    ],
)
def test_mistakes_in_the_setting(text: str, found: str, tmp_path: Path) -> None:
    """File, line, column, what is wrong, what to write instead."""
    from tests.deduper.table.test_settings import PLAIN, headlines

    lines = headlines(text + PLAIN, tmp_path)
    assert [line for line in lines if line.startswith(found)], lines
    assert not [line for line in lines if "secret" in line or "hidden" in line]


def test_the_default_is_exact(tmp_path: Path) -> None:
    """Short and long forms."""
    from tests.deduper.table.test_settings import PLAIN

    for text, kind in (("", ExactIndex), ("index: simple\n", SimpleIndex), ("index: {kind: bloom}\n", BloomIndex)):
        (tmp_path / "load.yaml").write_text(PLAIN + text, encoding="utf-8")
        assert type(load_config(tmp_path / "load.yaml", environment={}).config.table_index) is kind
