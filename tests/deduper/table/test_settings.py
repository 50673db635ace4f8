"""The configuration of a load: what is wrong, where, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.load import load_config as load_job
from deduper.config.problems import ConfigError
from deduper.table.settings import Greatest, load_config

PAGE = Path(__file__).parent.parent.parent.parent / "docs/tables.md"
PLAIN = "source: {path: in}\ntable: {path: t}\nkey: k\n"


def headlines(text: str, tmp_path: Path) -> list[str]:
    """The mistakes of a text, without the file's name."""
    file = tmp_path / "load.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_config(file, environment={})
    return [problem.headline.removeprefix(f"{file}:") for problem in raised.value.problems]


def test_the_config_of_the_page_is_valid(tmp_path: Path) -> None:
    """Relative paths start at its folder."""
    text = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    (tmp_path / "load.yaml").write_text(text, encoding="utf-8")
    config = load_config(tmp_path / "load.yaml", environment={}).config
    assert config.key == ("user", "id")
    assert config.table.path == tmp_path.resolve() / "tables/payments"
    assert config.source.path == tmp_path.resolve() / "in/*.parquet"


def test_short_forms(tmp_path: Path) -> None:
    """One column is a list of one; Delta, by partition, the first one are the defaults."""
    (tmp_path / "load.yaml").write_text(PLAIN + "keep: {greatest: v}\n", encoding="utf-8")
    config = load_config(tmp_path / "load.yaml", environment={}).config
    assert (config.key, config.table.format, config.scope) == (("k",), "delta", "partition")
    assert config.keep == Greatest(greatest="v")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("source: {}\nsinks: {}\n", "a job (`deduper run`)"),
        ("aggregates: {}\n", "`deduper range-aggregate`, or of a range stream (`deduper run`)"),
    ],
)
def test_the_file_of_another_command_is_one_mistake(text: str, kind: str, tmp_path: Path) -> None:
    """It is named as that; a job's reader names a table's."""
    assert headlines(text, tmp_path) == [f" is the config file of {kind}; docs/tables.md has one to copy"]
    (tmp_path / "load.yaml").write_text(PLAIN, encoding="utf-8")
    with pytest.raises(ConfigError, match="is the config file of `deduper table`; `deduper init` writes the file of a"):
        load_job(tmp_path / "load.yaml", environment={})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PLAIN + "keys: [a]\n", "4:1: keys: unknown setting; did you mean `key`?"),
        (PLAIN + "keep: newest\n", "4:7: keep: `newest` is not a valid choice; write `first`, `last` or"),
        (PLAIN + "keep: {greatest: 5}\n", "4:18: keep.greatest: must be text, found `5`; put it in quotes"),
        (PLAIN + "partition_by: 5\n", "4:15: partition_by: must be a list, found `5`; write"),
        ("table: {path: t}\nkey: k\n", "1:1: source: is missing; write `source: {path: in/*.parquet}`"),
        (PLAIN.replace("path: t", "path: t, format: iceberg"), "2:26: table.format: `iceberg` is not a valid choice"),
        (PLAIN.replace("path: in", "paths: in"), "1:10: source.paths: unknown setting; did you mean `path`?"),
        (
            PLAIN + "duplicates: out\nerrors: x/../out\n",
            "5:9: errors: is the folder of `duplicates`; write an",
        ),
        (
            PLAIN + "small_file_bytes: 200MiB\n",
            "4:19: small_file_bytes: files are filled up to `target_file_bytes`, 128MiB; write less than that, or more",
        ),
        (PLAIN + "duplicates: t/twice\n", "4:13: duplicates: overlaps `table` ("),
        (PLAIN + "duplicates: t\n", "4:13: duplicates: is the folder of `table`; write another one"),
        (PLAIN + "errors: in\n", "4:9: errors: is the folder of `source`; write another one"),
        (PLAIN.replace("in}", "in/*.csv}") + "errors: in\n", "4:9: errors: is the folder of `source`"),
        (PLAIN.replace("in}", "in/**/*.csv}") + "errors: in/err\n", "4:9: errors: overlaps `source` ("),
        (PLAIN.replace("in}", "in/**}") + "errors: in/err\n", "4:9: errors: overlaps `source` ("),
        (PLAIN + "errors: link/one\nduplicates: there/one\n", "4:9: errors: is the folder of `duplicates`"),
        ("- a\n", "1:1: is not a mapping; write `name: value` lines"),
        ("a: [\n", "2:1: "),
    ],
)
def test_mistakes_have_their_place(text: str, found: str, tmp_path: Path) -> None:
    """File, line, column, what is wrong, what to write instead."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there", target_is_directory=True)
    assert [line for line in headlines(text, tmp_path) if line.startswith(found)], headlines(text, tmp_path)


def test_ports_beside_the_files_of_a_source(tmp_path: Path) -> None:
    """A pattern for the files of one folder may have ports below, under names that it passes over."""
    for source in ("*.parquet", "in/*.parquet", "in/[!te]*"):
        text = PLAIN.replace("path: in", f"path: {source!r}") + "duplicates: in/twice\nerrors: in/errors\n"
        (tmp_path / "load.yaml").write_text(text, encoding="utf-8")
        assert load_config(tmp_path / "load.yaml").config.errors == tmp_path / "in/errors"


@pytest.mark.parametrize("source", [".", "in", "i?", "in/*", "in/**"])
def test_ports_that_a_source_would_read_are_refused(source: str, tmp_path: Path) -> None:
    """At once, and not at the second load, when there are files in them."""
    text = PLAIN.replace("path: in", f"path: {source!r}") + "duplicates: in/twice\n"
    assert [line for line in headlines(text, tmp_path) if "duplicates: overlaps `source`" in line]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Or is no text."""
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; docs/tables\.md has one to copy"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "load.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="save the file as UTF-8"):
        load_config(tmp_path / "load.yaml")
