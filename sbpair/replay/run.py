"""What a run is: its pair, its queues, its shard count and its options, as run.json has them. No secret is in it."""

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
from sbpair.replay.archive import RUN_FILE, Archive
from sbpair.replay.plan_preview import named
from sbpair.replay.schema import VERSION
from sbpair.replay.selection import EVERYTHING, Selection
from sbpair.runs.database import identity

SCHEMA = "sbpair/replay-run/1"

HASTY_SECONDS, HASTY_STRANGERS_SECONDS = 0.25, 2.0
"""How long nothing may come from a queue that is looked at afterwards: where it shows nothing, and where it does. The
latter is long for a busy namespace, which has much to settle before it sends on."""


NUMBERS = ("segment_bytes", "segment_messages", "empty_seconds", "strangers_seconds")
"""Of the options, those that are some number."""

_ID = re.compile(r"[\w.-]+")


class DedupMode(StrEnum):
    """What counts as the same message, besides a copy, which is what has the same key."""

    KEY = "key"
    MESSAGE_ID = "message-id"
    REPORT = "report"


class ReplayMode(StrEnum):
    """Whether messages go by way of an archive, or from the backlog to the primary within a task."""

    ARCHIVE = "archive"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`rate` is messages a second, all tasks together. `ordered` keeps the order of each session, across queues.

    `strangers_seconds` is how long a queue may show messages and give none: somebody has them locked, until locks run
    out.
    `selection` is what is sent; what it leaves out is archived all the same.
    """

    dedup: DedupMode = DedupMode.KEY
    ttl: TimeToLive = TimeToLive.ORIGINAL
    ordered: bool = True
    rate: float | None = None
    allow_missing: bool = False
    segment_bytes: int = 64 * 1024 * 1024
    segment_messages: int = 100_000
    empty_seconds: float = 2.0
    strangers_seconds: float = 150.0
    selection: Selection = EVERYTHING
    mode: ReplayMode = ReplayMode.ARCHIVE


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """`pair` tells which two namespaces it is about; `started_ms` is the cut-off of the drain, in ms since 1970."""

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


def save(archive: Archive, run: ReplayRun) -> None:
    archive.create()
    archive.write_json(RUN_FILE, run.document())


def load(archive: Archive, pair: Pair | None = None) -> ReplayRun:
    """Raises UsageError where there is no such run, StateRefused for one of another pair or version."""
    none = UsageError(
        f"there is no run {archive.run} in {archive.url}", hint="check --archive, and the id that the run has told"
    )
    if not _ID.fullmatch(archive.run):
        raise none
    try:
        document = archive.read_json(RUN_FILE)
    except FileNotFoundError:
        raise none from None
    if document.get("schema") != SCHEMA or document.get("version") != VERSION:
        raise StateRefused(
            f"run {archive.run} has the schema {document.get('schema')}, version {document.get('version')}, and not"
            f" {SCHEMA}, version {VERSION}",
            hint="use the version of sbpair that made it",
        )
    run = _read(archive, document)
    if run.id != archive.run:
        raise StateRefused(
            f"{archive.root}/{RUN_FILE} is of run {run.id}, and not of {archive.run}",
            hint="call a run by the name that it told; a copy of its directory has to have that name too",
        )
    if pair is not None and run.pair != identity(pair):
        raise StateRefused(
            f"run {run.id} is of {run.pair.get('primary')} and {run.pair.get('secondary')}, and not of"
            f" {' and '.join(identity(pair).values())}",
            hint="choose its pair with --pair",
        )
    return run


def _read(archive: Archive, document: Mapping[str, Any]) -> ReplayRun:
    try:
        said = document["options"]
        chosen = said.get("selection", {"destinations": (), "where": None})
        where = None if chosen["where"] is None else str(chosen["where"])
        kinds = {
            "dedup": DedupMode(said["dedup"]),
            "ttl": TimeToLive(said["ttl"]),
            "selection": Selection(named(chosen["destinations"]), where),
            "mode": ReplayMode(said.get("mode", ReplayMode.ARCHIVE)),
        }
        usual = ReplayOptions()
        numbers = {name: type(getattr(usual, name))(said[name]) for name in NUMBERS if name in said}
        rate = None if said.get("rate") is None else float(said["rate"])
        options = ReplayOptions(**{**said, **kinds, **numbers, "rate": rate})
        pair = {str(side): str(name) for side, name in document["pair"].items()}
        shards, started_ms = int(document["shards"]), int(document["started_ms"])
        return ReplayRun(str(document["id"]), pair, _names(document["queues"]), shards, started_ms, options)
    except (KeyError, TypeError, ValueError, AttributeError, NameInvalid) as error:
        raise StateRefused(
            f"{archive.root}/{RUN_FILE} cannot be read", hint="bring it back from a copy: the run cannot go on without"
        ) from error


def _names(said: object) -> tuple[str, ...]:
    if isinstance(said, list):
        return tuple(map(str, said))
    raise TypeError("they are no list")


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """A namespace as tasks on other machines find it: no secret, but the name of the variable that they have it in.

    `variable` is None for an identity, which each machine has for itself.
    """

    place: Mapping[str, Any]
    variable: str | None

    @classmethod
    def of(cls, endpoint: Endpoint, variable: str | None) -> NamespaceAccess:
        """Raises UsageError for a key that came from nowhere that a task could look."""
        if variable is None and not isinstance(endpoint.credential, Identity):
            raise UsageError(
                f"the key of {endpoint.name} is in no environment variable",
                hint="a replay passes its name to its tasks",
            )
        bare = replace(endpoint, credential=Identity())
        place = {name: getattr(bare, name) for name in Endpoint.__slots__ if name != "credential"}
        return cls(place, variable)

    def endpoint(self, environ: Mapping[str, str] = os.environ) -> Endpoint:
        """Raises UsageError where this machine has not the variable."""
        if self.variable is None:
            return Endpoint(**self.place, credential=Identity())
        said = environ.get(self.variable)
        if not said:
            raise UsageError(
                f"the environment of this worker has no {self.variable}",
                hint=f"start Spark's workers with {self.variable}, or sign in with an identity",
            )
        return Endpoint(**self.place, credential=endpoint_from_connection_string(said).credential)


@dataclass(frozen=True, slots=True)
class TaskJob:
    """All that a task is told. It is pickled, and travels: `archive` is a URL, and `beacon` a path in it.

    `senders` is how many tasks share the rate, where Spark may run more of them at once than were asked for.
    """

    run: ReplayRun
    archive: str
    primary: NamespaceAccess
    secondary: NamespaceAccess
    tasks: int
    beacon: str | None = None
    senders: int = 1

    def in_haste(self) -> TaskJob:
        """The same for tasks that wait for nothing: whether the queues are empty is looked at afterwards."""
        options = self.run.options
        hasty = replace(
            options,
            empty_seconds=min(options.empty_seconds, HASTY_SECONDS),
            strangers_seconds=min(options.strangers_seconds, HASTY_STRANGERS_SECONDS),
        )
        return replace(self, run=replace(self.run, options=hasty))

    def open(self) -> Archive:
        return Archive(self.archive, self.run.id)

    def pair(self) -> Pair:
        """For whoever wants to know how to sign in."""
        return Pair("replay", self.primary.endpoint(), self.secondary.endpoint())
