"""Log, pieces, keys and outputs against each other: one function, run by `deduper verify` and by every crash test.

It reads everything and changes nothing. `findings.Check` lists all checks, each with its name and promise:

| module | |
|---|---|
| `admin.verify.log` | the log with itself, the counts, the source partitions |
| `admin.verify.pieces` | pieces with their records, indexes with their entries, what should be gone |
| `admin.verify.keys` | no key twice where it is looked up |
| `admin.verify.outputs` | the files and marks of the ports with the log |
| `admin.orphans` | files that no record names: counted, never a finding |

Beside a running job things move while they are read. A pass with findings is made a second time, with the
log read again, and only findings of both passes count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bucket_store.errors import CorruptionError, StoreError, UnknownFormatError
from bucket_store.framing import unframe
from bucket_store.log.heartbeat import FILE_NAME as HEARTBEAT_NAME
from bucket_store.log.heartbeat import MAGIC as HEARTBEAT_MAGIC
from bucket_store.log.heartbeat import read_beat
from bucket_store.log.last_end import FILE_NAME as ENDED_NAME
from bucket_store.log.last_end import decode_end
from bucket_store.log.manifest import Manifest, read_manifest
from bucket_store.log.marks import INTENT_MAGIC, INTENTS_DIRECTORY
from bucket_store.log.profile import FILE_NAME as PROFILE_NAME
from bucket_store.log.profile import decode_profiles
from bucket_store.log.records import LogState
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore, named_store, open_store, root_of
from deduper.admin.orphans import Orphan, OrphanKind, inside, orphans
from deduper.admin.verify.findings import Check, Finding, Findings, Level, confirmed
from deduper.admin.verify.keys import check_keys, slice_edges
from deduper.admin.verify.log import LOG_CHECKS, LogHistory, check_log, check_sources, check_totals
from deduper.admin.verify.outputs import OUTPUTS_CHECKS, PublishedFiles, check_outputs
from deduper.admin.verify.pieces import check_listed, check_overdue, check_pieces
from deduper.as_json import AsJson
from deduper.errors import ExitCode
from deduper.window import policy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CheckResult(AsJson):
    """The result of one check: whether it ran, its number of findings, why it was skipped."""

    check: Check
    promise: str
    ran: bool
    findings: int
    skipped: str | None


@dataclass(frozen=True, slots=True)
class Verification(AsJson):
    """The result of a verification; without `findings` every check that ran has passed.

    `unlisted` counts the findings of a check beyond those that are listed. `skipped` says why checks were not
    made, or not for everything.
    """

    json_names = (
        *("store", "is_sound", "records", "pieces", "entries", "size_bytes", "sources", "outputs", "output_bytes"),
        *("unnamed_pieces", "findings", "unlisted", "notes", "checks", "orphans"),
    )

    store: str
    findings: tuple[Finding, ...]
    unlisted: Mapping[Check, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ran: frozenset[Check] = frozenset()
    skipped: Mapping[Check, str] = field(default_factory=dict)
    orphans: tuple[Orphan, ...] = ()
    records: int = 0
    pieces: int = 0
    entries: int = 0
    size_bytes: int = 0
    sources: int = 0
    outputs: int = 0
    output_bytes: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def unnamed_pieces(self) -> int:
        """Pieces that no record names: of broken attempts, or of a running one."""
        return sum(orphan.kind is OrphanKind.PIECE for orphan in self.orphans)

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """All of them, made or not."""
        return tuple(
            CheckResult(check, check.promise, check in self.ran, self._count_of(check), self.skipped.get(check))
            for check in Check
        )

    @property
    def exit_code(self) -> ExitCode:
        """OK, INTEGRITY when stored bytes, counts or keys are wrong, UNHEALTHY when only order is missing."""
        levels = {finding.check.level for finding in self.findings}
        return ExitCode.INTEGRITY if Level.DAMAGE in levels else ExitCode.UNHEALTHY if levels else ExitCode.OK

    def _count_of(self, check: Check) -> int:
        return sum(finding.check is check for finding in self.findings) + self.unlisted.get(check, 0)


def verify_target(target: str) -> Verification:
    """The store that a person names, as `open_store` takes it; one whose log cannot be followed is reported too.

    Raises:
        ConfigError, UsageError, StoreMissingError: there is nothing to verify.
    """
    try:
        store = open_store(target)
    except (CorruptionError, UnknownFormatError) as error:
        return _unopened(root_of(named_store(target)[0]), error)
    return verify_store(store)


def verify_store(store: OpenStore) -> Verification:
    """Every check over the whole store and, with the job's config (`store.config`), its outputs."""
    findings = Findings()
    findings.run(Check.MANIFEST)
    manifest = store.log.manifest
    history = _made_twice(lambda found: _log_pass(store, manifest, found), findings)
    state = store.log.state
    source_rows = _made_twice(lambda found: check_sources(_refreshed(store), store.root, history, found), findings)
    sound = check_pieces(store, state, history, source_rows, slice_edges(state), findings)
    check_keys(store, state, history, sound.blocks, findings)
    check_overdue(store, state, history, findings)
    found_orphans = _orphans(store, findings)
    files = _outputs(store, history, findings)
    _check_heart(store, history, findings)
    return Verification(
        store=store.url,
        findings=tuple(findings.found),
        unlisted=findings.unlisted,
        notes=tuple(findings.notes),
        ran=frozenset(findings.ran),
        skipped=findings.skipped,
        orphans=found_orphans,
        records=history.records,
        pieces=sound.read,
        entries=sound.entries,
        size_bytes=sound.size_bytes,
        sources=len(state.sources),
        outputs=files.files,
        output_bytes=files.size_bytes,
    )


def _made_twice(one_pass: Callable[[Findings], _T], findings: Findings) -> _T:
    """A pass, and a second one when it brings something up."""
    first = Findings()
    result = one_pass(first)
    if first.found:
        second = Findings()
        result = one_pass(second)
        first = confirmed(first, second)
    findings.join(first)
    return result


def _refreshed(store: OpenStore) -> LogState:
    """The newest state that can be read; damage in between is a finding of `admin.verify.log`."""
    try:
        return store.log.refresh()
    except (StoreError, OSError):
        return store.log.state


def _log_pass(store: OpenStore, manifest: Manifest, findings: Findings) -> LogHistory:
    # The state first: what is committed while records are read is beyond it, and no sum of them would fit.
    state = _refreshed(store)
    history = check_log(store.root, manifest, findings)
    check_totals(state, store.root, history, findings)
    return history


def _orphans(store: OpenStore, findings: Findings) -> tuple[Orphan, ...]:
    try:
        listed = {(piece.file, piece.name) for piece in store.pieces.pieces()}
        check_listed(store, _refreshed(store), listed, findings)
        return orphans(store)
    except (StoreError, OSError) as error:
        findings.failed(Check.PIECES_LISTED, error, "listing the pieces", file=store.root / "pieces")
        return ()


def _outputs(store: OpenStore, history: LogHistory, findings: Findings) -> PublishedFiles:
    config = store.config
    if config is None:
        without = "without the job's config the ports are not known"
        findings.skip(without, Check.SETTINGS, *OUTPUTS_CHECKS)
        return PublishedFiles()
    findings.run(Check.SETTINGS)
    for name, (stored, given) in policy.changed_settings(config, store.settings).items():
        findings.wrong(
            Check.SETTINGS,
            f"setting {name}",
            file=store.root / "manifest",
            expected=f"{stored!r}, as the store was made",
            found=f"{given!r} in the config",
        )
    topics = config.topic_ports
    if not config.has_row_ports and not topics:
        findings.skip("no port is written to files", *OUTPUTS_CHECKS)
        return PublishedFiles()
    if config.function_ports:
        listed = ", ".join(config.function_ports)
        findings.note(f"nothing is said of the rows of {listed} once they are handed to functions")
    if topics:
        listed = ", ".join(f"{port} ({sink.topic})" for port, sink in topics.items())
        findings.note(f"topics are not read: nothing is said of the rows of {listed} once they are sent")
    return _made_twice(lambda found: check_outputs(store, _refreshed(store), _known(store, history), found), findings)


def _known(store: OpenStore, history: LogHistory) -> LogHistory:
    """The history with what was committed since: its files are in the ports already."""
    state = store.log.state
    if state.next_window - 1 in history.commits or not state.next_window:
        return history
    return check_log(store.root, store.log.manifest, Findings())


def _check_heart(store: OpenStore, history: LogHistory, findings: Findings) -> None:
    beat = read_beat(store.root)
    claim = history.last_claim
    if beat is not None:
        findings.note(f"the heartbeat of {beat.owner} is there: a job runs, or was killed")
        if claim is not None and claim.owner != beat.owner:
            findings.note(f"the newest claim, of epoch {claim.epoch}, is {claim.owner}'s, the heartbeat {beat.owner}'s")
    # What is replaced whole and never synced may be torn by a power cut: it counts as absent then.
    intents = store.root / INTENTS_DIRECTORY
    of_epochs = [intents / entry.name for entry in inside(intents) if entry.name[0] in "0123456789"]
    for path in [store.root / HEARTBEAT_NAME, *of_epochs]:
        magic = HEARTBEAT_MAGIC if path.name == HEARTBEAT_NAME else INTENT_MAGIC
        try:
            unframe(path.read(), magic=magic, version=1, file=str(path))
        except FileNotFoundError:
            continue
        except StoreError as error:
            findings.note(f"damaged, and counts as absent: {error}")
    # For people: no promise rests on them, and the next window, or the next end, rewrites them.
    for name, decoded in {PROFILE_NAME: decode_profiles, ENDED_NAME: decode_end}.items():
        try:
            decoded((store.root / name).read(), file=str(store.root / name))
        except FileNotFoundError:
            pass
        except (StoreError, ValueError) as error:
            findings.note(f"damaged, and counts as absent: {error}")


def _unopened(root: Place, error: StoreError) -> Verification:
    """The report on a store whose manifest or log does not let it be opened: all that is wrong with these two."""
    findings = Findings()
    findings.run(Check.MANIFEST)
    history = LogHistory()
    try:
        manifest = read_manifest(root)
    except (CorruptionError, UnknownFormatError) as damaged:
        findings.failed(Check.MANIFEST, damaged, file=root / "manifest")
        findings.skip("the manifest cannot be read", *LOG_CHECKS)
    else:
        history = check_log(root, manifest, findings)
    if not findings.found:
        findings.failed(Check.LOG_ORDER, error, file=root / "log")
    skipped = {check: "the log cannot be followed" for check in Check if check not in findings.ran}
    return Verification(
        store=str(root),
        findings=tuple(findings.found),
        unlisted=findings.unlisted,
        ran=frozenset(findings.ran),
        skipped=skipped | findings.skipped,
        records=history.records,
    )
