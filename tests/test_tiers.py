"""The tiers, parts and guards are what their pages say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests import changed, parts, tiers

ROOT = Path(__file__).parent.parent
GUARDS = changed.guards()
TESTS = """\
import os, pytest
from tests.tiers import examples, seed

def test_quick(): assert (examples(300), seed()) == {sizes}

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.spark
def test_with_spark(): pass

@pytest.mark.night
def test_by_night(): pass

@pytest.mark.night(but=["b", {but}])
@pytest.mark.parametrize("x", "abc")
def test_of_variants(x): pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.night)])
def test_one_by_night(x): pass
"""
CHECK = ["test_quick", "test_one_by_night[1]", "test_of_variants[b]"]
CHANGE = [*CHECK, "test_slow", "test_with_spark"]
NIGHT = [*CHANGE, "test_by_night", "test_of_variants[a]", "test_of_variants[c]", "test_one_by_night[2]"]


def collected(directory: Path, *words: str, but: str = "") -> subprocess.CompletedProcess[str]:
    """pytest with the project's conftest over a file of tests with all marks."""
    file = directory / "test_marks.py"
    sizes = {"night": (300, 7), "change": (100, 7)}.get(words[1] if words else "change", (20, tiers.FIXED_SEED))
    file.write_text(TESTS.format(sizes=sizes, but=but), encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [*command, f"--rootdir={directory}", *words, str(file)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--tier", "check"], CHECK),
        (["--tier", "change", "--seed", "7"], CHANGE),
        (["--tier", "night", "--seed", "7"], NIGHT),
    ],
    ids=tiers.TIERS,
)
def test_a_tier_has_its_tests_and_sizes(words: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Marks leave tests out, and names of variants keep some of them in."""
    done = collected(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split(" ")[0].rpartition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line]
    assert sorted(ran) == sorted(wanted)


@pytest.mark.slow
def test_a_mark_that_names_no_variant_is_refused(tmp_path: Path) -> None:
    """Otherwise a renamed variant would leave the tests of every change unseen."""
    done = collected(tmp_path, "--tier", "change", but='"gone"')
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names variants that it does not have: ['gone']" in done.stderr


@pytest.mark.slow
def test_a_failure_says_how_to_see_it_again(tmp_path: Path) -> None:
    """One command, with tier and seed."""
    done = collected(tmp_path, "--tier", "night", "--seed", "8")
    assert done.returncode == 1
    assert "-m pytest --tier night --seed 8 test_marks.py::test_quick" in done.stdout


def test_every_room_has_its_guards() -> None:
    """Each room of the product is in the table; each test that is named exists; no room takes more than ten minutes."""
    rooms = [path for package in ("bucket_store", "deduper") for path in (ROOT / package).iterdir() if path.is_dir()]
    names = [path.relative_to(ROOT).as_posix() for path in rooms if (path / "__init__.py").exists()]
    assert [name for name in names if not changed.rooms_of([f"{name}/x.py"], GUARDS)] == []
    assert [room for room in GUARDS if not (ROOT / room).exists()] == []
    files = {test.partition("::")[0] for tests in GUARDS.values() for test in tests}
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert [room for room, tests in GUARDS.items() if sum(tests.values()) > changed.MOST_S] == []


def test_what_does_not_fit_into_ten_minutes_is_left_out() -> None:
    """The first tests of each room go before the second ones."""
    table = {"a": {"1": 300.0, "2": 290.0}, "b": {"3": 290.0, "1": 300.0}, "b/c": {"4": 1.0}}
    assert changed.rooms_of(["b/c/x.py", "a/x.py", "ab.py"], table) == ["a", "b/c"]
    assert changed.chosen(["a", "b"], table) == (["1", "3"], ["2"])


@pytest.mark.slow
def test_the_workflow_of_the_night_has_every_part() -> None:
    """One machine a part, and nothing else than README's command for a change."""
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "tests.yml")
    jobs = workflow["jobs"]
    assert jobs["night"]["strategy"]["matrix"]["part"] == [
        f"{part}/{parts.COUNT}" for part in range(1, parts.COUNT + 1)
    ]
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert runs == {"change": ["sudo -E .ci/run"], "night": ["sudo -E make all PART=${{ matrix.part }}"]}


@pytest.mark.slow
def test_parts_are_of_folders_that_exist() -> None:
    """And their number is in the table."""
    assert [folder for folder in parts.FOLDERS if not list(ROOT.glob(f"{folder}*"))] == []
    assert {*parts.FOLDERS.values(), *parts.COMMANDS, parts.OTHERS} == set(range(1, parts.COUNT + 1))
    assert len(set(parts.SIDE_BY_SIDE[0])) == len(parts.SIDE_BY_SIDE[0]), "no part runs twice"
    assert not {*parts.SIDE_BY_SIDE[0]} & {*parts.COMMANDS}, "what is timed runs alone"
    assert parts.part_of("tests/services/test_hdfs_job.py") != parts.part_of("tests/services/test_kafka_job.py")
