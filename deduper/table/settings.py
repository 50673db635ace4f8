"""The configuration of a load: a YAML file becomes one frozen `LoadConfig`, or a list of mistakes with their places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from deduper.config.apart import before_wildcards, clashes
from deduper.config.files import InputFiles
from deduper.config.load import MergedSettings, OwnFile, load_own_file
from deduper.config.problems import ConfigError
from deduper.config.values import LocalPath, Section, Size, refusal, shown
from deduper.file_formats import SourceFormat
from deduper.table.batch import FileBatch, Keep, TextBatch, require_folder_columns, source_files
from deduper.table.columns import KeyNames
from deduper.table.errors import SettingError
from deduper.table.index.protocol import TableIndex, index_of
from deduper.tasks.readers.path_columns import is_hidden
from deduper.units import format_size

TARGET_FILE_BYTES = 128 << 20
"""About Hudi's 120 MiB, and the 100 MiB of deltalake."""


class LoadSource(InputFiles):
    """The files of a batch."""

    format: SourceFormat = Field(default="parquet", examples=["parquet"])

    def batch(self, keys: Collection[str] = (), *, most_files: int | None = None) -> FileBatch | TextBatch:
        """The files as a batch, or the first ones, whose rows have these keys.

        Raises:
            SettingError: there are none, a column has a type that lines do not have, or folders have columns.
            TableUsageError: a file cannot be read.
        """
        files = source_files(self.path)[:most_files]
        batch: FileBatch | TextBatch
        if self.columns is None:
            batch = FileBatch(files)
        else:
            batch = TextBatch(
                files, self.columns, self.format, header=self.header, keys=keys, name_pattern=self.name_pattern
            )
        require_folder_columns(self.path, files, batch.schema)
        return batch


class LoadTable(Section):
    """The table."""

    path: LocalPath = Field(examples=["tables/payments"])
    format: Literal["delta", "parquet"] = "delta"


class Greatest(Section):
    """Of repeats within the batch the one with the greatest value."""

    greatest: str = Field(examples=["updated_at"])


class IndexSetting(Section):
    """Which files hold a key: the kind of index, with its keyword arguments."""

    kind: str = Field(default="exact", examples=["bloom"])
    options: dict[str, Any] = Field(default={}, repr=False)  # passwords may be among them


class LoadConfig(OwnFile):
    """A load."""

    page = "docs/tables.md"
    mark = "table"

    source: LoadSource = Field(examples=["{path: in/*.parquet}"])
    table: LoadTable = Field(examples=["{path: tables/payments}"])
    key: tuple[str, ...] = Field(min_length=1, examples=["[user, id]"])
    partition_by: tuple[str, ...] = Field(default=(), examples=["day"])
    scope: Literal["partition", "global"] = "partition"
    index: IndexSetting = Field(default=IndexSetting(), examples=["exact"])
    keep: Literal["first", "last"] | Greatest = "first"
    update_partition_path: bool = True
    target_file_bytes: Size = Field(default=TARGET_FILE_BYTES, examples=["128MiB"])
    small_file_bytes: Size | None = Field(default=None, examples=["32MiB"])
    duplicates: LocalPath | None = None
    errors: LocalPath | None = None

    @model_validator(mode="after")
    def _folders_are_apart(self) -> LoadConfig:
        source = self.source.path
        folder = before_wildcards(source)
        ports = {"duplicates": self.duplicates, "errors": self.errors}
        # A pattern for the files of one folder may have ports below, unless it names them too.
        is_flat = folder == source.parent and "**" not in source.name
        is_flat = is_flat and not any(_names(source, port) for port in ports.values() if port is not None)
        for clash in clashes(
            {"source": folder, "table": self.table.path, **ports}, flat=("source",) if is_flat else ()
        ):
            if clash.name != "table":
                raise refusal(clash.what, clash.write, at=(clash.name,))
        return self

    @model_validator(mode="after")
    def _small_files_are_small(self) -> LoadConfig:
        if self.small_file_bytes is not None and self.small_file_bytes > self.target_file_bytes:
            what = f"files are filled up to `target_file_bytes`, {format_size(self.target_file_bytes)}"
            raise refusal(what, "write less than that, or more there", at=("small_file_bytes",))
        return self

    @property
    def rule(self) -> Keep:
        """The rule for repeats within the batch."""
        return Keep("greatest", self.keep.greatest) if isinstance(self.keep, Greatest) else Keep(self.keep)

    @property
    def names(self) -> KeyNames:
        """The columns of the key and its scope."""
        return KeyNames(self.key, self.partition_by, self.scope)

    @property
    def table_index(self) -> TableIndex:
        """The index that `index` names."""
        return index_of(self.index.kind, self.index.options)

    @field_validator("index", mode="before")
    @classmethod
    def _index(cls, value: object) -> object:
        given = {"kind": value} if isinstance(value, str) else value
        if isinstance(given, dict):
            kind, options = given.get("kind", "exact"), given.get("options", {})
            if isinstance(kind, str) and isinstance(options, dict) and all(isinstance(name, str) for name in options):
                try:
                    index_of(kind, options)
                except SettingError as error:
                    name = error.setting.removeprefix("index.")
                    at = (name,) if isinstance(value, dict) and name in value else ()
                    raise refusal(error.what, error.write, at=at) from error
        return given

    @field_validator("key", "partition_by", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("keep", mode="before")
    @classmethod
    def _rule(cls, value: object) -> object:
        if value in ("first", "last") or (isinstance(value, dict) and set(value) == {"greatest"}):
            return value
        raise refusal(f"`{shown(value)}` is not a valid choice", "write `first`, `last` or `{greatest: COLUMN}`")


def _names(pattern: Path, port: Path) -> bool:
    """Whether a pattern without folders names one that a port is, or lies in."""
    if pattern.parent not in port.parents:
        return False
    name = port.relative_to(pattern.parent).parts[0]
    return fnmatchcase(name, pattern.name) and not is_hidden(name)


@dataclass(frozen=True, slots=True)
class LoadedLoad:
    """A configuration, and the places of its settings."""

    config: LoadConfig
    settings: MergedSettings

    def wrong(self, setting: str, what: str, write: str) -> ConfigError:
        """The error of a setting that does not fit the files."""
        return ConfigError([self.settings.problem(tuple(setting.split(".")), what, write)])

    @contextmanager
    def placing_errors(self) -> Iterator[None]:
        """Errors of settings that do not fit the files, with their places."""
        try:
            yield
        except SettingError as error:
            raise self.wrong(error.setting, error.what, error.write) from error


def load_config(
    file: str | Path, *, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> LoadedLoad:
    """The configuration of a file, the environment (default: the process's) and `path=value` overrides.

    Raises:
        ConfigError: everything that is wrong, with places.

    Example:
        >>> table_config("load.yaml", overrides=["keep=last"]).config.keep
        'last'
    """
    return LoadedLoad(*load_own_file(LoadConfig, Path(file), overrides=overrides, environment=environment))
