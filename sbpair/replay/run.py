"""A run: its pair, queues, shard count and options, as in run.json. It holds no secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from sbpair.errors import NameInvalid, StateRefused, UsageError
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.move.message.route import TimeToLive
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import RUN_FILE
from sbpair.replay.plan_preview import normalize_destinations
from sbpair.replay.schema import VERSION
from sbpair.replay.selection import EVERYTHING, Selection
from sbpair.runs.database import identity

SCHEMA = "sbpair/replay-run/1"

SHORT_EMPTY_SECONDS, SHORT_LOCKED_SECONDS = 0.25, 2.0
"""Waits of tasks whose queues are peeked afterwards: for an empty queue, and for one with locked messages. A busy
namespace may settle for a while before it delivers more."""

NUMERIC_OPTIONS = ("segment_bytes", "segment_messages", "empty_seconds", "locked_seconds")
"""Options that are numbers."""

_ID = re.compile(r"[\w.-]+")


class DedupMode(StrEnum):
    """Which messages are sent once, besides copies, which have the same key."""

    KEY = "key"
    MESSAGE_ID = "message-id"
    REPORT = "report"


class ReplayMode(StrEnum):
    """Whether messages go through an archive, or within a task from the backlog to the primary."""

    ARCHIVE = "archive"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a run. `rate` is messages per second of all tasks. `ordered` keeps each session's order across queues.

    `locked_seconds` is how long a drain waits for messages that another receiver has locked. Messages outside
    `selection` are archived and not sent.
    """

    dedup: DedupMode = DedupMode.KEY
    ttl: TimeToLive = TimeToLive.ORIGINAL
    ordered: bool = True
    rate: float | None = None
    allow_missing: bool = False
    segment_bytes: int = 64 * 1024 * 1024
    segment_messages: int = 100_000
    empty_seconds: float = 2.0
    locked_seconds: float = 150.0
    selection: Selection = EVERYTHING
    mode: ReplayMode = ReplayMode.ARCHIVE


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A run. `pair` identifies its namespaces; `started_ms` is the cut-off of the drain, in ms since 1970."""

    id: str
    pair: dict[str, str]
    queues: tuple[str, ...]
    shards: int
    started_ms: int
    options: ReplayOptions

    @property
    def direct(self) -> bool:
        return self.options.mode is ReplayMode.DIRECT

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "version": VERSION, **asdict(self), "queues": list(self.queues)}


def save_run(archive: Archive, run: ReplayRun) -> None:
    archive.create()
    archive.write_json(RUN_FILE, run.document())


def load_run(archive: Archive, pair: Pair | None = None) -> ReplayRun:
    """Read run.json. Raises UsageError if there is no such run, StateRefused for another pair or version."""
    missing = UsageError(
        f"there is no run {archive.run} in {archive.url}", hint="check --archive and the id that the run printed"
    )
    if not _ID.fullmatch(archive.run):
        raise missing
    try:
        document = archive.read_json(RUN_FILE)
    except FileNotFoundError:
        raise missing from None
    if document.get("schema") != SCHEMA or document.get("version") != VERSION:
        raise StateRefused(
            f"run {archive.run} has schema {document.get('schema')}, version {document.get('version')}; expected"
            f" {SCHEMA}, version {VERSION}",
            hint="use the version of sbpair that created it",
        )
    run = _read(archive, document)
    if run.id != archive.run:
        raise StateRefused(
            f"{archive.root}/{RUN_FILE} belongs to run {run.id}, not {archive.run}",
            hint="use the id that the run printed; a copy of its directory must have that name",
        )
    if pair is not None and run.pair != identity(pair):
        raise StateRefused(
            f"run {run.id} belongs to {run.pair.get('primary')} and {run.pair.get('secondary')}, not to"
            f" {' and '.join(identity(pair).values())}",
            hint="choose its pair with --pair",
        )
    return run


def _read(archive: Archive, document: Mapping[str, Any]) -> ReplayRun:
    try:
        stored = document["options"]
        selected = stored.get("selection", {"destinations": (), "where": None})
        where = None if selected["where"] is None else str(selected["where"])
        kinds = {
            "dedup": DedupMode(stored["dedup"]),
            "ttl": TimeToLive(stored["ttl"]),
            "selection": Selection(normalize_destinations(selected["destinations"]), where),
            "mode": ReplayMode(stored.get("mode", ReplayMode.ARCHIVE)),
        }
        default = ReplayOptions()
        numbers = {name: type(getattr(default, name))(stored[name]) for name in NUMERIC_OPTIONS if name in stored}
        rate = None if stored.get("rate") is None else float(stored["rate"])
        options = ReplayOptions(**{**stored, **kinds, **numbers, "rate": rate})
        pair = {str(side): str(name) for side, name in document["pair"].items()}
        shards, started_ms = int(document["shards"]), int(document["started_ms"])
        return ReplayRun(str(document["id"]), pair, _names(document["queues"]), shards, started_ms, options)
    except (KeyError, TypeError, ValueError, AttributeError, NameInvalid) as error:
        raise StateRefused(
            f"{archive.root}/{RUN_FILE} cannot be read",
            hint="restore it from a copy: a run needs it",
        ) from error


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(map(str, value))
    raise TypeError("expected a list")


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """How tasks on other machines reach a namespace: its address, and the environment variable that has its key there.

    `variable` is None for an identity, which each machine has itself.
    """

    address: Mapping[str, Any]
    variable: str | None

    @classmethod
    def from_endpoint(cls, endpoint: Endpoint, variable: str | None) -> NamespaceAccess:
        """Return the access. Raises UsageError for a key that is in no environment variable."""
        if variable is None and not isinstance(endpoint.credential, Identity):
            raise UsageError(
                f"the key of {endpoint.name} is in no environment variable",
                hint="a replay passes the variable's name to its tasks: set one, or sign in with an identity",
            )
        bare = replace(endpoint, credential=Identity())
        address = {name: getattr(bare, name) for name in Endpoint.__slots__ if name != "credential"}
        return cls(address, variable)

    def endpoint(self, environ: Mapping[str, str] = os.environ) -> Endpoint:
        """Return the endpoint with its credential. Raises UsageError if the variable is not set here."""
        if self.variable is None:
            return Endpoint(**self.address, credential=Identity())
        text = environ.get(self.variable)
        if not text:
            raise UsageError(
                f"the environment of this worker has no {self.variable}",
                hint=f"start Spark's workers with {self.variable}, or sign in with an identity",
            )
        return Endpoint(**self.address, credential=endpoint_from_connection_string(text).credential)


@dataclass(frozen=True, slots=True)
class TaskJob:
    """The pickled parameters of a task. `archive` is a URL, `heartbeat` a path in it.

    `senders` is how many tasks share the rate: Spark may run more at once than `tasks`.
    """

    run: ReplayRun
    archive: str
    primary: NamespaceAccess
    secondary: NamespaceAccess
    tasks: int
    heartbeat: str | None = None
    senders: int = 1

    def with_short_waits(self) -> TaskJob:
        """Return the job with short waits, for tasks whose queues are peeked afterwards."""
        options = self.run.options
        shortened = replace(
            options,
            empty_seconds=min(options.empty_seconds, SHORT_EMPTY_SECONDS),
            locked_seconds=min(options.locked_seconds, SHORT_LOCKED_SECONDS),
        )
        return replace(self, run=replace(self.run, options=shortened))

    def open(self) -> Archive:
        return Archive(self.archive, self.run.id)

    def pair(self) -> Pair:
        """Return the pair, to sign in with."""
        return Pair("replay", self.primary.endpoint(), self.secondary.endpoint())
