"""The plan of one window: records of some files in, rows with their verdict out, as one DataFrame.

    read -> parse -> keys, digest -> clock -> exchange by shard -> verdict -> port

Catalyst does all of it but the clock and the verdict. The judge is nondeterministic to Spark, so no filter moves below
it and nothing is judged twice, as long as the frame is consumed whole by one write.

No number of one window is a literal in the plan of the judged rows: it would end up in the text of generated code, and
every window would pay for compiling and warming up its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from deduper.categories import CategoryState, PlaceIntervals, arrange
from deduper.clock import POSITION_BITS, ClockRules
from deduper.config import CategoryExpiry, Config
from deduper.digest_columns import fast_digest, secure_digest, shard_of
from deduper.kafka_rows import rows_to_send
from deduper.kafka_source import RECORD
from deduper.output_names import file_sinks, topic_sinks
from deduper.parse import CATEGORY, EXPIRY, FATE, ORDER, RAW, REC, record_column, with_keys
from deduper.receipts import ReceiptBox
from deduper.shard_task import REASONS, ArrowColumns, BatchTask, clock_function, judge_function, verdict_type
from deduper.source_batch import SourceBatch
from deduper.verdict import INT64_MAX, INT64_MIN, Fate, Verdict

HI, LO, LATEST, SHARD, JUDGED, DEDUP, PORT = "_hi", "_lo", "_latest", "_shard", "_judged", "_dedup", "_port"
_CLOCKED, _CATEGORY_ID = "_clocked", "_category_id"
_AHEAD, _JUMP, _OLDER = "_ahead", "_jump", "_older"
_PORTS = [verdict.port for verdict in Verdict]
_FIRST_ERROR = int(Fate.MALFORMED)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tuples of a window before the clock: REC, RAW, FATE, ORDER, HI, LO and EXPIRY or CATEGORY."""

    frame: DataFrame
    rows_in: Observation


@dataclass(frozen=True, slots=True)
class Categories:
    """The live categories after the window, their places in it, and the id that stands for each value in the plan."""

    after: CategoryState
    places: PlaceIntervals
    ids: dict[str, int]


def prepare(session: SparkSession, config: Config, salt: bytes, batch: SourceBatch) -> Prepared:
    """Read, parse and digest a batch.

    `rows_in` counts the rows in the same pass, as `rows`.
    """
    counted = Observation()
    frame = batch.tuples(session).observe(counted, F.count(F.lit(1)).alias("rows"))
    keyed = with_keys(frame, config)
    columns = [(record_column(column), column.type.text) for column in config.key_columns]
    hi, lo = (fast_digest if config.digest == "fast" else secure_digest)(columns, salt)
    return Prepared(keyed.withColumn(HI, hi).withColumn(LO, lo), counted)


def arrange_categories(prepared: DataFrame, expiry: CategoryExpiry, state: CategoryState) -> Categories:
    """Which values are live at every point of the window.

    One more pass over the window's tuples, because a shard sees only a slice of them and cannot know.
    """
    admitted = prepared.filter(F.col(FATE) == int(Fate.ADMITTED))
    firsts = admitted.groupBy(CATEGORY).agg(F.min(ORDER).alias(ORDER)).collect()
    first_arrivals = {row[CATEGORY]: int(row[ORDER]) for row in firsts}

    def next_arrival(value: str, from_order: int) -> int | None:
        later = admitted.filter((F.col(CATEGORY) == F.lit(value)) & (F.col(ORDER) >= from_order))
        first = later.agg(F.min(ORDER)).collect()[0][0]
        return None if first is None else int(first)

    after, intervals = arrange(state, first_arrivals, next_arrival, expiry.live_categories, expiry.remember_dropped)
    values = sorted(first_arrivals)
    return Categories(
        after, PlaceIntervals.of(values, intervals), {value: number for number, value in enumerate(values)}
    )


def judged(
    session: SparkSession,
    config: Config,
    prepared: DataFrame,
    clock: ClockRules | None,
    category_ids: dict[str, int] | None,
    task: BatchTask,
    receipts: ReceiptBox,
    *,
    in_order: bool,
) -> DataFrame:
    """What is staged of every row whose port is written somewhere, and PORT.

    For file ports the source's columns and DEDUP, for topics SEND_COLUMNS; both when there are both.

    `in_order` runs the clock tuple by tuple; otherwise all tuples meet the latest point at the window's start.
    """
    frame = _with_clock(session, prepared, config, clock, in_order=in_order)
    if category_ids is not None:
        frame = _with_category_ids(session, frame, category_ids)
    with_latest = clock is not None and in_order and config.lookup == "all_live"
    frame = _exchanged(frame, config, with_latest=with_latest)
    inputs = [HI, LO, ORDER, FATE, _CATEGORY_ID if category_ids is not None else EXPIRY]
    if with_latest:
        inputs.append(LATEST)
    floats = task.rules.float_domain
    judge = _arrow_udf(
        judge_function(task, receipts), verdict_type(float_domain=floats, keep_first_seen=config.store.first_seen)
    )
    verdicts = frame.withColumn(JUDGED, judge(*inputs))
    kept = [verdict for verdict in Verdict if getattr(config.sinks, verdict.port).format != "none"]
    if kept and len(kept) < len(_PORTS):
        verdicts = verdicts.filter(F.col(f"{JUDGED}.verdict").isin([int(verdict) for verdict in kept]))
    port = F.element_at(_strings(_PORTS), F.col(f"{JUDGED}.verdict") + 1)
    dedup = _dedup_column(config, task)
    return _to_stage(verdicts.withColumn(DEDUP, dedup).withColumn(PORT, port), config, task)


def _to_stage(verdicts: DataFrame, config: Config, task: BatchTask) -> DataFrame:
    topics = topic_sinks(config)
    columns: list[Column] = []
    if file_sinks(config):
        columns += [record_column(column).alias(column.name) for column in config.source.parsed_columns]
        columns.append(F.col(DEDUP))
    slot = F.col(SHARD)
    if any(sink.preserve_order for sink in topics.values()):
        # A writer for each source partition; what a task gets of one is put back into its order.
        slot = F.element_at(_integers(task.source_slots), F.shiftright(ORDER, POSITION_BITS).cast("int") + 1)
        verdicts = verdicts.repartitionById(config.store.shards, F.pmod(slot, F.lit(config.store.shards)).cast("int"))
        verdicts = verdicts.sortWithinPartitions(ORDER)
    if topics:
        columns += rows_to_send(DEDUP, slot, keep_first_seen=config.store.first_seen)
    return verdicts.select(*columns, PORT)


def dedup_type(config: Config) -> str:
    """The DDL of the struct DEDUP."""
    first = f", first_seen: struct<window: bigint, source: string, position: bigint, expiry: {_expiry_ddl(config)}>"
    return (
        "struct<verdict: string, reason: string, window: bigint, source: string, position: bigint, raw: string"
        f"{first if config.store.first_seen else ''}>"
    )


def _with_clock(
    session: SparkSession, frame: DataFrame, config: Config, rules: ClockRules | None, *, in_order: bool
) -> DataFrame:
    """FATE after the guards and the expiry rule, and LATEST where the look-up depends on it."""
    if rules is None:
        return frame
    if not in_order:
        return _with_batch_fate(session, frame, rules)
    with_latest = config.lookup == "all_live"
    domain = "double" if rules.float_domain else "bigint"
    returns = f"struct<fate: tinyint, latest: {domain}>" if with_latest else "tinyint"
    run = _arrow_udf(clock_function(rules, with_latest=with_latest), returns)
    clocked = frame.withColumn(_CLOCKED, run(ORDER, EXPIRY, FATE))
    if not with_latest:
        return clocked.withColumn(FATE, F.col(_CLOCKED)).drop(_CLOCKED)
    return (
        clocked.withColumn(FATE, F.col(f"{_CLOCKED}.fate"))
        .withColumn(LATEST, F.col(f"{_CLOCKED}.latest"))
        .drop(_CLOCKED)
    )


def _with_batch_fate(session: SparkSession, frame: DataFrame, rules: ClockRules) -> DataFrame:
    """`clock: batch`: every tuple against the latest point at the window's start; the twin of `clock.batch_clock`.

    The bounds of a window come as a row beside every tuple, because numbers in the plan are new code.
    """
    ahead = None if rules.max_ahead_of_now_us is None else rules.now_us + rules.max_ahead_of_now_us
    jump = older = None
    if rules.latest is not None:
        older = rules.latest - rules.period
        jump = None if rules.max_jump is None else rules.latest + rules.max_jump + rules.quiet_us
    values = ", ".join(_bound(bound, rules) for bound in (ahead, jump, older))
    bounds = session.sql(f"SELECT * FROM VALUES ({values}) AS bounds({_AHEAD}, {_JUMP}, {_OLDER})")
    expiry = F.col(EXPIRY)
    # A bound that is off is null, and nothing compares with null.
    fate = (
        F.when(F.col(FATE) != int(Fate.ADMITTED), F.col(FATE))
        .when(expiry > F.col(_AHEAD), int(Fate.AHEAD_OF_NOW))
        .when(expiry > F.col(_JUMP), int(Fate.JUMP_TOO_FAR))
        .when(expiry <= F.col(_OLDER), int(Fate.OLDER_THAN_PERIOD))
        .otherwise(int(Fate.ADMITTED))
    )
    return frame.crossJoin(F.broadcast(bounds)).withColumn(FATE, fate.cast("tinyint"))


def _bound(bound: int | float | None, rules: ClockRules) -> str:
    """A bound as SQL; null when it is off, or beyond what any key can be."""
    if rules.float_domain:
        return "CAST(NULL AS DOUBLE)" if bound is None else f"CAST('{float(bound)!r}' AS DOUBLE)"
    if bound is None or not INT64_MIN <= bound <= INT64_MAX:
        return "CAST(NULL AS BIGINT)"
    return f"CAST('{int(bound)}' AS BIGINT)"


def _with_category_ids(session: SparkSession, frame: DataFrame, ids: dict[str, int]) -> DataFrame:
    table = session.createDataFrame(list(ids.items()) or [("", 0)], f"_value string, {_CATEGORY_ID} bigint")
    return frame.join(F.broadcast(table), F.col(CATEGORY) == F.col("_value"), "left").drop("_value")


def _exchanged(frame: DataFrame, config: Config, *, with_latest: bool) -> DataFrame:
    """Row i of shard s in task s. Errors have no key: they are dealt out by their place, so that no shard drowns."""
    shards = config.store.shards
    is_error = F.col(FATE) >= _FIRST_ERROR
    shard = F.when(is_error, F.pmod(F.col(ORDER), F.lit(shards)).cast("int")).otherwise(shard_of(F.col(LO), shards))
    raw = F.when(is_error, F.col(RAW)).alias(RAW)
    key = _CATEGORY_ID if _CATEGORY_ID in frame.columns else EXPIRY
    kept = [FATE, ORDER, HI, LO, key, *([LATEST] if with_latest else [])]
    # Whole records are the dearest part of the exchange: only what some port writes goes through.
    kept += [REC] if file_sinks(config) else []
    kept += [RECORD] if topic_sinks(config) else []
    return frame.select(*kept, raw, shard.alias(SHARD)).repartitionById(shards, F.col(SHARD))


def _dedup_column(config: Config, task: BatchTask) -> Column:
    fields = [
        F.element_at(_strings(_PORTS), F.col(f"{JUDGED}.verdict") + 1).alias("verdict"),
        F.element_at(_strings(REASONS), F.col(f"{JUDGED}.reason") + 1).alias("reason"),
        F.col(f"{JUDGED}.window").alias("window"),
        F.element_at(_strings(task.source_names), F.shiftright(ORDER, POSITION_BITS).cast("int") + 1).alias("source"),
        _position(task).alias("position"),
        F.col(RAW).alias("raw"),
    ]
    if config.store.first_seen:
        first = F.col(f"{JUDGED}.first_seen")
        seen = F.struct(
            first["window"].alias("window"),
            first["source"].alias("source"),
            first["position"].alias("position"),
            _expiry_value(config, first["expiry"]).alias("expiry"),
        )
        fields.append(F.when(first.isNotNull(), seen).alias("first_seen"))
    return F.struct(*fields)


def _position(task: BatchTask) -> Column:
    """The place in the source partition: a row's number in its file, a record's offset."""
    position = F.col(ORDER).bitwiseAND((1 << POSITION_BITS) - 1)
    if not any(task.source_starts):
        return position
    ordinal = F.shiftright(ORDER, POSITION_BITS).cast("int")
    return position + F.element_at(_integers(task.source_starts), ordinal + 1)


def _integers(values: Sequence[int]) -> Column:
    """As `_strings`."""
    return F.from_json(F.lit(json.dumps(list(values))), "array<bigint>")


def _expiry_ddl(config: Config) -> str:
    scale = config.point_scale
    if scale.is_time:
        return "timestamp"
    if scale.is_float:
        return "double"
    return f"decimal(18,{scale.scale})" if scale.scale else "bigint"


def _expiry_value(config: Config, stored: Column) -> Column:
    """A stored expiry key as a value of the user's world."""
    scale = config.point_scale
    if config.expiry.by in ("never", "category"):
        return F.lit(None).cast("bigint")
    if scale.is_time:
        return F.timestamp_micros(stored)
    if scale.scale:
        return (stored.cast("decimal(18,0)") / F.lit(10**scale.scale)).cast(_expiry_ddl(config))
    return stored


def _strings(values: Sequence[str]) -> Column:
    """An array of strings as one literal, which Spark folds once: a column apiece would cost a call for each."""
    return F.from_json(F.lit(json.dumps(list(values))), "array<string>")


def _arrow_udf(function: Callable[[Iterator[ArrowColumns]], Iterator[pa.Array]], returns: str) -> Callable[..., Column]:
    """An iterator Arrow UDF. Nondeterministic, or Spark might push a filter below it and run it twice."""

    def iterate(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return function(batches)

    # PySpark exports arrow_udf, its type information does not.
    udf: Any = F.arrow_udf(returns)(iterate)  # type: ignore[attr-defined]
    nondeterministic: Callable[..., Column] = udf.asNondeterministic()
    return nondeterministic
