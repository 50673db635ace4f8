"""The health of a job in one line: what `status` says first, and why. PURE.

The line is for the person on call: the first rule that applies counts, the worst first. It is a view of the store and
the source at one moment; alerts watch over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from deduper.as_json import AsJson
from deduper.core.verdict import PORT_OF_REASON
from deduper.errors import NO_RESTART
from deduper.preflight.folders import LEAST_FREE_BYTES
from deduper.units import counted, span
from deduper.window.expired_causes import AHEAD_S
from deduper.window.progress import MANY_ERRORS, MANY_EXPIRED

BEHIND_S = 60.0
"""More waiting work than is done in this time makes a job behind."""
STUCK_S = 300.0
"""A window in work, a publication or a silence with waiting records for longer than this is stuck."""
STUCK_TIMES = 10.0
"""A window may take this many times as long as the usual one."""
SHARES = {"error": 0.05, "expired": MANY_EXPIRED}
"""Larger shares of a port are unusual, as for the alerts."""
_ROWS = {"error": "errors", "expired": "expired"}
_CLOCK = "is a producer's clock ahead, or this machine's behind"
_QUESTIONS = {"ahead_of_now": _CLOCK, "jump_too_far": _CLOCK}
TIMES_DUPLICATES = 3.0
"""So many times as many duplicates for each unique record as in all windows are unusual."""
FEWEST_DUPLICATES = 0.01
STANDS_S = 300.0
MANY_STARTS = 4
STARTS_WITHIN_S = 1800.0
"""So many starts within this time are a crash loop."""
FEWEST_FREE = 0.05
"""The least share of a port's disk that has to be free, as for the alert; in a small disk the bytes say nothing."""
LEAKED = 0.001
"""A larger share of records that are copies which were not found is unusual."""


class State(StrEnum):
    """The verdict; the text is what people read."""

    HEALTHY = "healthy"
    BEHIND = "behind"
    STUCK = "stuck"
    NOT_RUNNING = "not running"
    NEEDS_A_PERSON = "needs a person"


@dataclass(frozen=True, slots=True)
class Health(AsJson):
    """The verdict and its reason."""

    state: State
    why: str

    def __str__(self) -> str:
        return f"{self.state}: {self.why}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the source has and no window has judged: `count` things of the kind `noun`; `count` is None if unknown.

    `error` says why it is unknown; `is_broken` when that needs a person, such as a topic that was made anew.
    """

    count: int | None
    noun: str
    error: str = ""
    is_broken: bool = False

    def __str__(self) -> str:
        return counted(self.count or 0, self.noun)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the verdict rests on; ages and times in seconds.

    `since_window`: since the newest window began, None before the first. `in_work`: the window that is being judged and
    its age. `usual`, `rate`: seconds of a usual window, and waiting things judged a second, 0 when unknown.
    `unpublished`: committed windows that are not published. `newest`, `reasons`: rows of the newest windows by port
    and by reason; `total`: of all windows by port. `ahead`: of the latest point, over the clock; `stands`: for how long
    event time has stood still while rows came. `waiting` is None without a config. `differing`: the settings in which
    the config differs from the store. `left_beat`: the last owner's name if it left its heartbeat; `left_exists`:
    its process is there. `exit_code`: of the last owner, None of one that left none; `ended` says it in words.
    `starts`: of the last half hour. `leaked`: the share of records that are copies which were not found, at least.
    `broken`: what is wrong with the outputs' folders. `free_bytes` of `place`, the disk with the least room.
    """

    epoch: int
    is_running: bool
    left_beat: str
    left_exists: bool
    exit_code: int | None
    ended: str
    windows: int
    since_window: float | None
    in_work: tuple[int, float] | None
    usual: float
    rate: float
    unpublished: tuple[int, ...]
    newest: Mapping[str, int]
    reasons: Mapping[str, int]
    total: Mapping[str, int]
    ahead: float
    stands: float
    starts: int
    waiting: Waiting | None
    differing: tuple[str, ...]
    free_bytes: int | None
    place: str
    broken: str
    leaked: float


def health(facts: Facts) -> Health:
    """The verdict on a job."""
    person = _for_a_person(facts)
    if person:
        return Health(State.NEEDS_A_PERSON, person)
    if not facts.is_running:
        needs_one = facts.exit_code in NO_RESTART
        state = State.NEEDS_A_PERSON if needs_one else State.NOT_RUNNING
        return Health(state, _why_not_running(facts) + _unusual(facts))
    stuck = _why_stuck(facts)
    if stuck:
        return Health(State.STUCK, stuck + _starts(facts))
    errors = share(facts.newest, "error")
    if errors > MANY_ERRORS:
        reason = _reason(facts, "error")
        mostly = f", most of them {reason}" if reason else ""
        question = _QUESTIONS.get(reason, "does the config fit the data")
        share_of = f"{errors:.0%} of the rows of the newest windows are errors{mostly}"
        return Health(State.NEEDS_A_PERSON, f"{share_of}: {question}?")
    waiting, unusual = facts.waiting, _unusual(facts)
    if waiting is not None and waiting.count and facts.rate and waiting.count / facts.rate > BEHIND_S:
        late = f"{waiting} wait, which takes {span(waiting.count / facts.rate)} at this rate"
        return Health(State.BEHIND, late + unusual)
    if facts.since_window is None:
        return Health(State.HEALTHY, "running, and no window was committed yet" + _waits(waiting))
    return Health(State.HEALTHY, f"the last window began {span(facts.since_window)} ago" + _waits(waiting) + unusual)


def share(rows: Mapping[str, int], port: str) -> float:
    """The share of a port; 0 without rows."""
    return rows.get(port, 0) / max(1, sum(rows.values()))


def _unusual(facts: Facts) -> str:
    """What alerts watch over time, as far as the newest windows show it."""
    found = []
    for port, most in SHARES.items():
        if share(facts.newest, port) > most:
            why = f" ({_reason(facts, port)})" if _reason(facts, port) else ""
            found.append(f"{share(facts.newest, port):.0%} of the newest rows are {_ROWS[port]}{why}")
    newest, total = share(facts.newest, "duplicate"), share(facts.total, "duplicate")
    times = _odds(facts.newest) / _odds(facts.total) if _odds(facts.total) else 0.0
    if times > TIMES_DUPLICATES and newest > FEWEST_DUPLICATES:
        found.append(f"{newest:.0%} of the newest rows are duplicates, {total:.0%} of all")
    if facts.ahead > AHEAD_S:
        found.append(f"the latest point is {span(facts.ahead)} ahead of the clock")
    if facts.stands > STANDS_S:
        found.append(f"event time has stood still for {span(facts.stands)}")
    if facts.leaked > LEAKED:
        found.append(f"{facts.leaked:.1%} of the records or more are copies that were not found")
    return _starts(facts) + (f"; unusual: {', '.join(found)}" if found else "")


def _starts(facts: Facts) -> str:
    return f"; {facts.starts} starts in {span(STARTS_WITHIN_S)}" if facts.starts >= MANY_STARTS else ""


def _odds(rows: Mapping[str, int]) -> float:
    """Duplicates for each unique record."""
    return rows.get("duplicate", 0) / max(1, rows.get("unique", 0))


def _reason(facts: Facts, port: str) -> str:
    """The most frequent reason of a port in the newest windows."""
    of_port = {name: rows for name, rows in facts.reasons.items() if PORT_OF_REASON.get(name) == port}
    return max(of_port, key=of_port.__getitem__, default="")


def _for_a_person(facts: Facts) -> str:
    if facts.differing:
        settings = ", ".join(facts.differing)
        return f"the config and the store differ in {settings}, which is fixed for the life of a store" + (
            "; `deduper reshard` changes the shards" if "store.shards" in facts.differing else ""
        )
    if facts.free_bytes is not None and facts.free_bytes < LEAST_FREE_BYTES:
        return f"{facts.free_bytes // 2**20} MiB are free on {facts.place}"
    if facts.broken:
        return facts.broken
    return facts.waiting.error if facts.waiting is not None and facts.waiting.is_broken else ""


def _why_not_running(facts: Facts) -> str:
    if not facts.epoch:
        return "no job has opened this store yet"
    if facts.left_exists:
        ended = f"the process {facts.left_beat} exists and does nothing: it is stopped, or its machine swaps"
    else:
        ended = facts.ended
    last = "" if facts.since_window is None else f"; the last window began {span(facts.since_window)} ago"
    late = f"; the next start publishes {_windows(facts.unpublished)}" if facts.unpublished else ""
    return ended + last + late + _waits(facts.waiting)


def _why_stuck(facts: Facts) -> str:
    limit = max(STUCK_S, STUCK_TIMES * facts.usual)
    if facts.in_work is not None and facts.in_work[1] > limit:
        usual = f", and usually takes {span(facts.usual)}" if facts.usual else ""
        return f"window {facts.in_work[0]} has been in work for {span(facts.in_work[1])}{usual}"
    silence = facts.since_window or 0.0
    if facts.unpublished and silence > limit:
        return (
            f"{_windows(facts.unpublished)} committed and not published for {span(silence)}: an output does not take it"
        )
    waiting = facts.waiting
    if waiting is not None and waiting.error:
        return f"what waits is not known: {waiting.error}"
    if waiting is not None and waiting.count and silence > limit and facts.in_work is None:
        return f"{waiting} wait, and no window has begun for {span(silence)}"
    return ""


def _windows(windows: tuple[int, ...]) -> str:
    if len(windows) == 1:
        return f"window {windows[0]}"
    return f"{len(windows):,} windows ({windows[0]} to {windows[-1]})"


def _waits(waiting: Waiting | None) -> str:
    if waiting is None or waiting.count is None:
        return ""
    if not waiting.count:
        return f"; no {waiting.noun} waits"
    return f"; {waiting} {'waits' if waiting.count == 1 else 'wait'}"
