"""Tasks at places that the driver sets: executors by name, a map of shards that stays put, and RDDs with places.

Spark runs a task where its data lies, and data that a shuffle brings lies nowhere in particular. So the shuffled
partitions are zipped with an RDD whose partitions have preferred places (`SparkContext.makeRDD`); Spark waits
`spark.locality.wait` for such a place, and then runs the task anywhere. `spark.shuffle.reduceLocality.enabled` must be
off: a shuffle would prefer the places of its largest outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pyspark import RDD, SparkContext
from pyspark.serializers import CPickleSerializer, PairDeserializer

_T = TypeVar("_T")
_U = TypeVar("_U")


class Executor(NamedTuple):
    """An executor of the session: its number there, and its host as Spark names it."""

    number: str
    host: str

    @property
    def place(self) -> str:
        """The place as Spark's scheduler reads it; it names one of several executors of a host."""
        return f"executor_{self.host}_{self.number}"


class Executors:
    """The executors of a session. One call to the JVM, more only when some came or went."""

    def __init__(self, context: SparkContext) -> None:
        self._spark: Any = context._jsc.sc()
        self._names = ""
        self._known: list[Executor] = []

    def alive(self) -> list[Executor]:
        """Those that Spark has now, in a stable order."""
        names = str(self._spark.getExecutorIds().mkString(","))
        if names != self._names or not self._known:
            numbers = set(names.split(","))
            active = self._spark.statusStore().executorList(True)
            summaries = [active.apply(index) for index in range(active.size())]
            found = (Executor(str(one.id()), str(one.hostPort()).rpartition(":")[0]) for one in summaries)
            self._known = sorted((one for one in found if one.number in numbers), key=_by_number)
            self._names = names if len(self._known) == len(numbers) else ""
        return self._known


def _by_number(executor: Executor) -> tuple[int, str]:
    return (int(executor.number) if executor.number.isdecimal() else 0, executor.number)


class ShardPlaces:
    """The executor of each shard, from window to window. PURE.

    A shard stays while its executor lives and no other has room for two more than it. One that must move goes to the
    executor with the fewest shards, on its old host if there is a choice; those that came last move first.
    """

    def __init__(self, shards: int) -> None:
        self._at: list[Executor | None] = [None] * shards
        self._since = [0] * shards
        self._windows = 0

    def on(self, executors: Sequence[Executor]) -> list[Executor | None]:
        """The places of the shards of the next window; None for all while there is no executor."""
        self._windows += 1
        if not executors:
            return [None] * len(self._at)
        shards_on = {executor: [shard for shard, at in enumerate(self._at) if at == executor] for executor in executors}
        least, more = divmod(len(self._at), len(executors))
        homeless = [shard for shard, at in enumerate(self._at) if at not in shards_on]
        fullest = sorted(executors, key=lambda executor: -len(shards_on[executor]))
        for rank, executor in enumerate(fullest):
            staying = sorted(shards_on[executor], key=lambda shard: (self._since[shard], shard))
            share = least + (rank < more)
            shards_on[executor], leaving = staying[:share], staying[share:]
            homeless += leaving
        room = Counter({executor: -len(shards) for executor, shards in shards_on.items()})
        for shard in sorted(homeless):
            old = self._at[shard]
            most = max(room.values())
            free = [executor for executor in executors if room[executor] == most]
            new = next((one for one in free if old is not None and one.host == old.host), free[0])
            room[new] -= 1
            if new != old:
                self._at[shard], self._since[shard] = new, self._windows
        return list(self._at)


def located(context: SparkContext, payloads: Sequence[_T], places: Sequence[Executor | None]) -> RDD[_T]:
    """An RDD with one payload a partition, each wanted at its place."""
    jvm: Any = context._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    pairs = jvm.java.util.ArrayList()
    serializer: Any = CPickleSerializer()
    for payload, place in zip(payloads, places, strict=True):
        at = jvm.java.util.ArrayList()
        if place is not None:
            at.add(place.place)
        pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(payload)), to_seq(at)))
    java: Any = context._jsc
    made = java.sc().makeRDD(to_seq(pairs), jvm.scala.reflect.ClassTag.AnyRef())
    return RDD(made.toJavaRDD(), context, serializer)


def unbatched(rdd: RDD[_T]) -> RDD[_T]:
    """The same elements, each pickled by itself: what `zipped` needs. Costs nothing before the RDD is made."""
    return rdd._reserialize(CPickleSerializer())


def zipped(first: RDD[_T], second: RDD[_U]) -> RDD[tuple[_T, _U]]:
    """Pairs of two unbatched RDDs with one element a partition; `RDD.zip` would pass both through Python once more."""
    pairs: Any = first._jrdd.zip(second._jrdd)
    pair: Any = PairDeserializer
    deserializer = pair(first._jrdd_deserializer, second._jrdd_deserializer)
    return RDD(pairs, first.ctx, deserializer)


def forget(rdds: Iterable[Any]) -> None:
    """Free what is cached of RDDs or frames; does not wait for it."""
    for rdd in rdds:
        rdd.unpersist(blocking=False)
