"""Stores with published outputs, made without Spark: every window judged by the real shard code, its rows written out.

What the pieces hold comes from all rows of a window, duplicates and all, through `judge_shard`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.log.sources_file import SourcePartition, write_sources
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import append_piece
from deduper.admin.open_store import OpenStore, open_store
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry
from deduper.core.categories import CategoryState, arrange
from deduper.core.clock import POSITION_BITS, PartitionClock
from deduper.core.digests import shards_of
from deduper.core.judge import ShardRows, judge_shard
from deduper.core.verdict import TupleVerdict
from deduper.sinks.names import Attempt, final_name
from deduper.sources.files.source_file import source_digest
from deduper.window.policy import CATEGORIES, clock_rules, fixed_settings, judge_rules
from tests.deduper.digest_oracle import key_digest
from tests.deduper.engine import DictMemory

WALL_US = 1_700_000_000_000_000

CONFIG = """\
name: clicks
source: {{format: files, path: in/, file_format: json, schema: "k string, t {type}, v string"}}
key: {key}
null_keys: allow
digest: {digest}
expiry: {expiry}
store: {{url: "{backend}:state", shards: 2, first_seen: {first_seen}, tables: tables}}
sinks:
  unique: {{format: {format}, path: out/unique}}
  duplicate: {{format: none}}
  expired: {{format: none}}
  error: {{format: none}}
"""


@dataclass(frozen=True)
class Kind:
    """What the job is like."""

    expiry: str = "{by: ordered, field: t, period: 1000, span: 50}"
    type: str = "long"
    key: str = "k"
    digest: str = "fast"
    backend: str = "file"
    first_seen: bool = True
    format: str = "parquet"
    epoch: int = 1
    first_position: int = 0  # of a window in each source partition, as in topics


@dataclass
class PublishedStore:
    """A job's directory with a store of some windows and the outputs of its unique port."""

    directory: Path
    kind: Kind = Kind()
    seed: int = 0
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def make(self, windows: int = 4) -> PublishedStore:
        """Config file, store, outputs."""
        text = CONFIG.format(**{**self.kind.__dict__, "first_seen": str(self.kind.first_seen).lower()})
        self.config_file.write_text(text, encoding="utf-8")
        config = self.config
        log = CommitLog.create(config.store.place, fixed_settings(config), wall_us=WALL_US)
        for _ in range(self.kind.epoch):
            log.claim_epoch("somebody:1", WALL_US)
        (self.directory / "in").mkdir()
        (self.directory / "out" / "unique").mkdir(parents=True)
        memory = DictMemory(config.lookup == "all_live")
        generator = random.Random(self.seed)
        for window in range(windows):
            self._commit(config, log, memory, window, generator)
        return self

    @property
    def config_file(self) -> Path:
        """The config file."""
        return self.directory / "clicks.yaml"

    @property
    def config(self) -> Config:
        """The configuration, read again."""
        from deduper.config.load import load_config

        return load_config(self.config_file, environment={})

    def open(self) -> OpenStore:
        """The store as a command opens it."""
        return open_store(str(self.config_file))

    def live(self) -> list[PieceRef]:
        """The live pieces, by shard and window."""
        state = CommitLog.open(self.config.store.place).state
        return [ref for shard in sorted(state.pieces) for ref in state.pieces[shard]]

    def _commit(
        self, config: Config, log: CommitLog, memory: DictMemory, window: int, generator: random.Random
    ) -> None:
        state = log.state
        wall_us = WALL_US + window * 10_000_000
        files = [self.directory / "in" / f"w{window}-{number}.json" for number in range(2)]
        rows = [self._row(window, generator) for _ in range(60)]
        order = np.array([(row % 2) << POSITION_BITS | row // 2 for row in range(len(rows))], np.int64)
        types = [column.type.text for column in config.key_columns]
        digests = np.array(
            [
                key_digest([row[column.name] for column in config.key_columns], types, log.manifest.salt)
                if self.kind.digest == "fast"
                else key_digest([row[c.name] for c in config.key_columns], types, log.manifest.salt, secure=True)
                for row in rows
            ],
            np.uint64,
        )
        rules = judge_rules(config, state, wall_us)
        expiry, category, admissions, extra = self._expiry(config, log, rows, order)
        latest_before = has_latest = None
        clock = clock_rules(config, state, wall_us)
        if clock is not None:
            in_order = np.argsort(order)
            latest_before, has_latest = np.empty_like(expiry), np.empty(len(rows), np.bool_)
            admissions[in_order], latest_before[in_order], has_latest[in_order] = PartitionClock(clock).run(
                order[in_order], expiry[in_order], admissions[in_order]
            )
        pieces, verdicts = [], np.zeros(len(rows), np.uint8)
        entries_of, admitted, kept = [], [], []
        for shard in range(config.store.shards):
            mine = np.flatnonzero(shards_of(digests, config.store.shards) == shard)
            outcome = judge_shard(
                ShardRows(
                    digests[mine],
                    order[mine],
                    admissions[mine],
                    None if expiry is None else expiry[mine],
                    None if latest_before is None else latest_before[mine],
                    None if has_latest is None else has_latest[mine],
                    None if category is None else category[mine],
                ),
                rules,
                window,
                memory.find(shard),
            )
            verdicts[mine] = outcome.verdict
            entries_of.append(outcome.entries)
            if outcome.max_admitted is not None:
                admitted.append(outcome.max_admitted)
            if outcome.max_remembered is not None:
                kept.append(outcome.max_remembered)
            if outcome.entries is not None:
                pieces.append(self._append(config, log, outcome.entries, shard, window))
        self._publish(config, log, window, rows, verdicts, files, order)
        latest = wall_us if rules.by == "processing_time" else max([*admitted, state.latest_point or 0], default=None)
        memory.commit(window, entries_of, None, None)
        log.place(
            CommitRecord(
                window=window,
                epoch=self.kind.epoch,
                attempt=3,
                query_id="q",
                batch_id=window,
                wall_us=wall_us,
                settings_hash="hash",
                latest_point=latest if rules.has_expiry_key else None,
                latest_moved_us=wall_us,
                counts={verdict.port: int((verdicts == verdict).sum()) for verdict in TupleVerdict},
                reasons={},
                pieces=tuple(pieces),
                outputs=(),
                buckets=tuple(
                    sorted({int(b) for entries in entries_of if entries is not None for b in entries.bucket_keys})
                ),
                timestamp=max(kept, default=None),
                sources=self._sources(log, window, files),
                extra=extra,
            )
        )
        log.forget_outputs(window)
        self.rows[window] = rows

    def _row(self, window: int, generator: random.Random) -> dict[str, Any]:
        key = generator.choice([None, "", "é", *(f"key {number}" for number in range(70))])
        if self.kind.type == "string":
            return {"k": key, "t": f"day {generator.randrange(window, window + 3)}", "v": "x"}
        return {"k": key, "t": window * 40 + generator.randrange(60), "v": 'line\nend, "quoted" '}

    def _expiry(
        self, config: Config, log: CommitLog, rows: Sequence[dict[str, Any]], order: Any
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        admissions = np.zeros(len(rows), np.uint8)
        if isinstance(config.expiry, CategoryExpiry):
            wire = log.state.extra.get(CATEGORIES)
            before = CategoryState() if wire is None else CategoryState.from_wire(wire)
            values = sorted({row["t"] for row in rows})
            numbers = np.array([values.index(row["t"]) for row in rows], np.int32)
            in_order = np.argsort(order)
            first = [order[numbers == number].min() for number in range(len(values))]
            after, places = arrange(
                before,
                values,
                np.array(first, np.int64),
                lambda: (numbers[in_order], order[in_order]),
                config.expiry.live_categories,
                100,
            )
            category, admissions = places.places(numbers, order, admissions)
            return None, category, admissions, {CATEGORIES: after.to_wire()}
        if config.expiry.by in ("never", "processing_time"):
            return None, None, admissions, {}
        unit = 1_000_000 if config.expiry.by == "event_time" else 1
        scaled = [row["t"] * unit for row in rows]
        return np.array(scaled, np.float64 if config.expiry_key_scale.is_float else np.int64), None, admissions, {}

    def _append(self, config: Config, log: CommitLog, entries: Any, shard: int, window: int) -> PieceRef:
        pieces = open_backend(config.store.url)
        try:
            return append_piece(
                pieces,
                entries,
                store_id=bytes.fromhex(log.manifest.store_id),
                shard=shard,
                first_window=window,
                last_window=window,
                epoch=self.kind.epoch,
                attempt=3,
            )
        finally:
            pieces.close()

    def _sources(self, log: CommitLog, window: int, files: Sequence[Path]) -> Any:
        partitions = []
        for file in files:
            file.write_text("{}\n" * 30)
            modified_ms = file.stat().st_mtime_ns // 1_000_000
            size = file.stat().st_size
            partitions.append(
                SourcePartition(
                    str(file), modified_ms, self.kind.first_position, size, 30, source_digest(str(file), modified_ms)
                )
            )
        return write_sources(log.root, window=window, epoch=self.kind.epoch, attempt=3, partitions=partitions)

    def _publish(
        self, config: Config, log: CommitLog, window: int, rows: Any, verdicts: Any, files: Sequence[Path], order: Any
    ) -> None:
        """The unique rows, in no order, over two files."""
        unique = [number for number in range(len(rows)) if verdicts[number] == TupleVerdict.UNIQUE]
        random.Random(window).shuffle(unique)
        for part in range(2):
            shown = [
                {
                    **rows[number],
                    "_dedup": {
                        "verdict": "unique",
                        "window": window,
                        "source": str(files[int(order[number]) >> POSITION_BITS]),
                        "position": self.kind.first_position + (int(order[number]) & ((1 << POSITION_BITS) - 1)),
                    },
                }
                for number in unique[part::2]
            ]
            name = final_name(log.manifest.store_id, Attempt(window, self.kind.epoch, 3), part, self.kind.format)
            write_output(self.directory / "out" / "unique" / name, shown, string_t=self.kind.type == "string")


def write_output(path: Path, rows: Sequence[dict[str, Any]], *, string_t: bool) -> None:
    """Rows as Spark writes them in the format of the file's ending."""
    if path.suffix == ".parquet":
        dedup = pa.struct(
            [("verdict", pa.string()), ("window", pa.int64()), ("source", pa.string()), ("position", pa.int64())]
        )
        schema = pa.schema(
            [("k", pa.string()), ("t", pa.string() if string_t else pa.int64()), ("v", pa.string()), ("_dedup", dedup)]
        )
        parquet.write_table(pa.Table.from_pylist(list(rows), schema), path)
    elif path.suffix == ".json":
        lines = ({name: value for name, value in row.items() if value is not None} for row in rows)
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    else:

        def cell(value: Any) -> str:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            if value is None:
                return ""
            return '"' + text.replace('"', '""') + '"' if text == "" or set(text) & set(',"\n ') else text

        lines = [",".join(["k", "t", "v", "_dedup"]), *(",".join(map(cell, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
