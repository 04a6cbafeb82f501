"""A run as in run.json, without a secret, the request to start or resume it, and the parameters of its tasks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair import backlog
from sbpair.azure.credentials import open_tokens
from sbpair.azure.fetched_secrets import named_secrets, read_secret
from sbpair.errors import ExitCode, NameInvalid, StateRefused, Unsafe, UsageError
from sbpair.model.connection_string import credential_of, read_key_file
from sbpair.model.document import encoded
from sbpair.model.message_state import is_dead_letter_path
from sbpair.model.namespace_clock import MAX_LOCK_SECONDS
from sbpair.model.pair import Endpoint, Identity, Pair
from sbpair.model.proxy import parse_proxy
from sbpair.move.message.route import TimeToLive
from sbpair.replay.archive import DELIVERY_FILE, RUN_FILE, VERSION, Archive
from sbpair.replay.delivery import PRIMARY, ReplayDelivery
from sbpair.replay.outcomes import Proof, ReplayEnd, ReplayReceipt, normalize_destinations, replay_receipt
from sbpair.replay.segment import SEGMENT_BYTES, SEGMENT_MESSAGES
from sbpair.replay.spark import server_name
from sbpair.replay.spark_settings import check_master, check_speculation, is_local_master, local_parallelism
from sbpair.runs.database import identity, namespace_id, state_if_any
from sbpair.runs.run_log import check_returned
from sbpair.runs.run_record import MOVED

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient
    from sbpair.move.raw_destination import RawDestination

Primary = TypeVar("Primary", bound="RawDestination")

SCHEMA = "sbpair/replay-run/1"

LATE_SECONDS = 30.0
"""How long after the last lock should have expired a drain still waits for messages."""

NUMERIC_OPTIONS = ("segment_bytes", "segment_messages", "empty_seconds", "locked_seconds")
_ID = re.compile(r"[\w.-]+")


class DedupMode(StrEnum):
    """Which messages are sent once, besides copies, which have the same key."""

    KEY = "key"
    MESSAGE_ID = "message-id"
    REPORT = "report"


class SessionIds(StrEnum):
    """The common part of the ids of one session, in SQL: Service Bus ignores their case, and older runs did not.

    A run keeps the rule that it began with, as its tasks find what they have sent by the shard.
    """

    ANY_CASE = "lower(session_id)"
    EXACT = "session_id"


class ReplayMode(StrEnum):
    """Whether messages go through an archive, within a task to the primary, or into files that others read."""

    ARCHIVE = "archive"
    DIRECT = "direct"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """Which messages are sent: by default all. Those that are not selected stay in the archive, counted as unsent.

    `destinations` are paths, compared as Service Bus does; `where` is a condition in SQL over columns of the envelope.
    `missing` are destinations as messages name them, which are left out.
    """

    destinations: tuple[str, ...] = ()
    where: str | None = None
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether it may exclude messages."""
        return bool(self.destinations or self.missing) or self.where is not None

    def sql(self) -> str:
        """Return a condition that is never null. A message without a destination matches no named one."""
        parts = []
        if self.destinations:
            names = ", ".join(f"'{name.lower()}'" for name in self.destinations)
            parts.append(f"lower(destination) IN ({names})")
        if self.where is not None:
            # The line break ends a comment.
            parts.append(f"({self.where}\n)")
        if self.missing:
            names = ", ".join(f"decode(unhex('{name.encode().hex()}'), 'UTF-8')" for name in self.missing)
            parts.append(f"coalesce(destination NOT IN ({names}), true)")
        return f"coalesce({' AND '.join(parts)}, false)" if parts else "true"


def read_selection(destinations: list[str], where: str | None) -> ReplaySelection:
    """Return the selection of --destination and --where. Raises NameInvalid, or UsageError for an empty condition."""
    if where is not None and not where.strip():
        raise UsageError("--where is empty", hint="leave it out to send everything")
    return ReplaySelection(normalize_destinations(destinations), where)


EVERYTHING = ReplaySelection()


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a run. `rate` is messages per second of all tasks. `ordered` keeps each session's order across queues.

    `locked_seconds` is how long a drain waits at most, after the last message, for those that others have locked.
    Messages outside `selection` are archived and not sent. While the primary lacks a destination, nothing is sent,
    unless its messages are quarantined (`allow_missing`) or left (`skip_missing`); nor if topics discard more than
    `max_discard` messages; None is no limit. In a direct run, the tasks share that number out.
    """

    dedup: DedupMode = DedupMode.KEY
    ttl: TimeToLive = TimeToLive.ORIGINAL
    ordered: bool = True
    rate: float | None = None
    allow_missing: bool = False
    skip_missing: bool = False
    max_discard: int | None = 0
    segment_bytes: int = SEGMENT_BYTES
    segment_messages: int = SEGMENT_MESSAGES
    empty_seconds: float = 2.0
    locked_seconds: float = MAX_LOCK_SECONDS + LATE_SECONDS
    selection: ReplaySelection = EVERYTHING
    mode: ReplayMode = ReplayMode.ARCHIVE
    delivery: ReplayDelivery = PRIMARY
    sessions: SessionIds = SessionIds.ANY_CASE

    def check(self, queues: Sequence[str]) -> None:
        """Raise UsageError for options that a direct run does not support."""
        unsupported = {
            f"--dedup {self.dedup}": self.dedup is not DedupMode.KEY,
            "--destination": bool(self.selection.destinations),
            "--where": self.selection.where is not None,
            "--dead-letters": any(map(is_dead_letter_path, queues)),
        }
        for name, given in unsupported.items():
            if given and self.mode is ReplayMode.DIRECT:
                raise UsageError(
                    f"{name} cannot be combined with --mode direct",
                    hint="a direct run sends each message as it comes: leave it out, or use --mode archive",
                )


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A run. `pair` identifies its namespaces; `started_ms` is the cut-off of the drain, in ms since 1970.

    `service_time` is whether that is the service's time; otherwise it is by the clock of the machine that began.
    `digests` is whether its files have digests: those of a direct run do not, as its ledger is not synced.
    """

    id: str
    pair: dict[str, str]
    queues: tuple[str, ...]
    shards: int
    started_ms: int
    options: ReplayOptions
    service_time: bool = False
    digests: bool = False

    @property
    def direct(self) -> bool:
        return self.options.mode is ReplayMode.DIRECT

    @property
    def is_stream(self) -> bool:
        """Whether `sbpair replay drain` fills it: nothing is sent from it."""
        return self.options.mode is ReplayMode.STREAM

    @property
    def delivery(self) -> ReplayDelivery:
        return self.options.delivery

    @property
    def kept_out(self) -> str:
        """The primary whose backlog no destination may lead to; "" if messages go to another namespace than that."""
        to_backlog = self.delivery.namespace == self.pair["secondary"]
        return (backlog.primary_of(self.queues[0]) or "") if to_backlog else ""

    def document(self) -> dict[str, Any]:
        found = {"schema": SCHEMA, "version": VERSION, **asdict(self), "queues": list(self.queues)}
        del found["options"]["skip_missing"]  # earlier versions refuse a run with it
        found["options"]["sessions"] = (
            self.options.sessions.name
        )  # they would send twice, and refuse a run with it, too
        if self.delivery == PRIMARY:  # with it, too
            del found["options"]["delivery"]
        return found


def save_run(archive: Archive, run: ReplayRun) -> None:
    archive.create()
    archive.write_json(RUN_FILE, run.document())


def load_run(archive: Archive, pair: Pair | None = None) -> ReplayRun:
    """Read run.json. Raises UsageError if there is no such run, StateRefused for another pair or version, or a link."""
    missing = UsageError(
        f"there is no run {archive.run} in {archive.url}",
        hint="check --archive, and list its runs with sbpair replay list",
    )
    if not _ID.fullmatch(archive.run):
        raise missing
    archive.check_links()
    try:
        document = archive.read_json(RUN_FILE)
    except FileNotFoundError:
        raise (archive.broken(RUN_FILE, "it is missing") if archive.is_run() else missing) from None
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
    if pair is not None and run.is_stream:
        source, namespace = run.queues[0], run.pair["secondary"]
        side = "secondary:" if namespace == identity(pair.ends)["secondary"] else ""
        raise UsageError(
            f"run {run.id} is a stream of {source} in {namespace}: nothing is sent from it",
            hint=f"go on with sbpair replay drain {shlex.quote(side + source)} --run {run.id}",
        )
    if pair is not None and run.pair != identity(pair.ends):
        raise StateRefused(
            f"run {run.id} belongs to {run.pair.get('primary')} and {run.pair.get('secondary')}, not to"
            f" {' and '.join(identity(pair.ends).values())}",
            hint="choose its pair with --pair",
        )
    if (resumed := archive.find_json(DELIVERY_FILE)) is not None:
        run = replace(run, options=replace(run.options, delivery=_read_delivery(archive, DELIVERY_FILE, resumed)))
    return run


def _read_delivery(archive: Archive, path: str, stored: Mapping[str, Any]) -> ReplayDelivery:
    try:
        found = ReplayDelivery(**{**stored, "map": _names(stored["map"])})
        _ = found.renames
    except (KeyError, TypeError, UsageError) as error:
        raise archive.broken(path, "it does not say where messages go") from error
    return found


def _read(archive: Archive, document: Mapping[str, Any]) -> ReplayRun:
    try:
        stored = document["options"]
        selected = stored["selection"]
        where = None if selected["where"] is None else str(selected["where"])
        known = {
            "dedup": DedupMode(stored["dedup"]),
            "ttl": TimeToLive(stored["ttl"]),
            "selection": ReplaySelection(normalize_destinations(selected["destinations"]), where),
            "mode": ReplayMode(stored["mode"]),
            "sessions": SessionIds[stored.get("sessions", "EXACT")],
            "max_discard": None if (most := stored.get("max_discard", 0)) is None else int(most),
            "rate": None if stored["rate"] is None else _positive(stored["rate"]),
            "delivery": _read_delivery(archive, RUN_FILE, stored["delivery"]) if "delivery" in stored else PRIMARY,
            **{name: type(getattr(ReplayOptions(), name))(stored[name]) for name in NUMERIC_OPTIONS},
        }
        options = ReplayOptions(**{**stored, **known})
        pair = {str(side): str(name) for side, name in document["pair"].items()}
        shards, started_ms = int(_positive(document["shards"])), int(document["started_ms"])
        names, by_service = _names(document["queues"]), document.get("service_time") is True
        digests = bool(document.get("digests", False))
        return ReplayRun(str(document["id"]), pair, names, shards, started_ms, options, by_service, digests)
    except (KeyError, TypeError, ValueError, AttributeError, NameInvalid) as error:
        raise StateRefused(
            f"{archive.root}/{RUN_FILE} cannot be read", hint="restore it from a copy: a run needs it"
        ) from error


def _positive(value: Any) -> float:
    if 0 < (number := float(value)) < inf:
        return number
    raise ValueError("expected a number greater than 0")


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(map(str, value))
    raise TypeError("expected a list")


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """How tasks on other machines reach a namespace: with secrets from environment variables there.

    The `key_source` of `bare` has the key, a file that is there too, or the secret of its identity; any other identity
    each machine has itself. `proxy_variable` has a proxy with its password, "" without one. `bare` has no secret.
    """

    bare: Endpoint
    proxy_variable: str = ""

    @classmethod
    def from_endpoint(cls, endpoint: Endpoint) -> NamespaceAccess:
        """Return the access. Raises UsageError for a secret that is in no environment variable."""
        endpoint.require_one_key()
        proxy = endpoint.proxy if endpoint.proxy and endpoint.proxy.user is not None else None
        identity = endpoint.credential if isinstance(endpoint.credential, Identity) else None
        keyless = not endpoint.key_source and (identity is None or bool(identity.secret))
        if keyless or (proxy and not proxy.source):
            raise UsageError(
                f"the {'key' if keyless else 'proxy password'} of {endpoint.name} is in no environment variable",
                hint="a replay passes the variable's name to its tasks: set one, or sign in with an identity",
            )
        shown = Identity() if identity is None else replace(identity, secret="")
        bare = replace(endpoint, credential=shown, rotated=None, proxy=None if proxy else endpoint.proxy)
        return cls(bare, proxy.source if proxy else "")

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables with secrets."""
        return tuple(filter(None, ("" if self.bare.key_file else self.bare.key_source, self.proxy_variable)))

    def endpoint(self, environ: Mapping[str, str] = os.environ) -> Endpoint:
        """Return the endpoint with its credential. Raises UsageError if a variable is not set here.

        Raises what `read_secret` raises if a variable names a secret that cannot be read.
        """
        endpoint, texts = self.bare, {name: read_secret(environ.get(name, "")) for name in self.variables}
        for name, text in texts.items():
            if not text:
                raise UsageError(
                    f"the environment of this worker has no {name}",
                    hint=f"start Spark's workers with {name}, or sign in with an identity",
                )
        key = read_secret(read_key_file(endpoint.key_file)) if endpoint.key_file else texts.get(endpoint.key_source)
        if isinstance(endpoint.credential, Identity) and endpoint.credential.kind == "client-secret":
            endpoint = replace(endpoint, credential=replace(endpoint.credential, secret=key or ""))
        elif key:
            endpoint = replace(endpoint, credential=credential_of(key))
        if self.proxy_variable:
            endpoint = replace(endpoint, proxy=parse_proxy(texts[self.proxy_variable], self.proxy_variable))
        return endpoint


@asynccontextmanager
async def open_destination(kind: Callable[..., Primary], endpoint: Endpoint) -> AsyncIterator[Primary]:
    """Open the namespace to send to within the block, as `RawDestination` or a class of that kind."""
    async with open_tokens() as get_token:
        primary = kind(endpoint, get_token=get_token)
        try:
            yield primary
        finally:
            await primary.close()


@dataclass(frozen=True, slots=True)
class TaskJob:
    """The pickled parameters of a task. `archive` is a URL, `heartbeat` a path in it; `senders` share the rate."""

    run: ReplayRun
    archive: str
    destination: NamespaceAccess
    secondary: NamespaceAccess
    tasks: int
    heartbeat: str | None = None
    senders: int = 1

    def with_waits(self, locked_seconds: float, empty_seconds: float = inf) -> TaskJob:
        """Return the job with shorter waits, where these are shorter."""
        options = self.run.options
        locked, empty = min(options.locked_seconds, locked_seconds), min(options.empty_seconds, empty_seconds)
        options = replace(options, locked_seconds=locked, empty_seconds=empty)
        return replace(self, run=replace(self.run, options=options))

    def open(self) -> Archive:
        os.environ.update(named_secrets(os.environ))  # pyarrow may need a service principal to open it
        return Archive(self.archive, self.run.id)

    @asynccontextmanager
    async def backlog(self) -> AsyncIterator[Callable[[], AbstractAsyncContextManager[AmqpClient]]]:
        """Yield a function that connects to the secondary, signed in within the block."""
        from sbpair.amqp_client.client import connect  # commands that read files do not need it

        endpoint = self.secondary.endpoint()
        async with open_tokens() as get_token:
            yield lambda: connect(endpoint, get_token=get_token)


@dataclass(frozen=True)
class ReplayRequest:
    """The parameters of a start or resume.

    `tasks` is how many may run at once; None for as many as a local master runs. `lease` excludes other movers of this
    machine, and `lease_queue` names the queue that excludes those of other machines. `package` is a zip of sbpair for
    executors. `wait_for_locks` is whether to wait for messages that others have locked. `remote` is the URL of a Spark
    Connect server, which may have a token, instead of `master`. Messages go `to` a namespace; None for the primary,
    which is never contacted otherwise. `primary_is_back` is that of a RunRequest.
    """

    pair: Pair
    archive: str
    state: Path
    master: str = "local[2,4]"
    tasks: int | None = None
    shared_archive: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    lease: bool = True
    lease_queue: str | None = None
    verbose: bool = False
    package: str | None = None
    wait_for_locks: bool = True
    remote: str | None = field(default=None, repr=False)
    to: Endpoint | None = None
    primary_is_back: bool = False

    @property
    def destination(self) -> Endpoint:
        return self.to or self.pair.primary

    @property
    def namespace(self) -> str:
        """The id of its destination in a delivery."""
        found = namespace_id(self.destination)
        return "" if found == namespace_id(self.pair.primary) else found

    @property
    def parallelism(self) -> int:
        return self.tasks or self.local_tasks or 2

    @property
    def local_tasks(self) -> int | None:
        """How many tasks a local master runs at once; None for any other."""
        return None if self.remote is not None else local_parallelism(self.master)

    def access(self) -> tuple[NamespaceAccess, NamespaceAccess]:
        """Return how tasks reach destination and secondary. Raises UsageError for a key in no environment variable."""
        return NamespaceAccess.from_endpoint(self.destination), NamespaceAccess.from_endpoint(self.pair.secondary)

    def check(self) -> None:
        """Raise Unsafe or UsageError for mistakes that show before Java starts."""
        if self.to is None:
            self.pair.require_primary()
            state = None if self.primary_is_back else state_if_any(self.state, self.pair.ends)
            if state is not None:
                with state:
                    check_returned(state, self.pair.primary.name)
        check_speculation(self.settings.get("spark.speculation", "false"))
        check_master(self.master)
        spark = self.master if self.remote is None else server_name(self.remote)
        if not is_local_master(spark) and Archive(self.archive, "probe").is_local and not self.shared_archive:
            raise Unsafe(
                f"the archive {self.archive} is a directory of this machine, and {spark} runs on others",
                hint="pass --shared-archive if all mount it at that path, or name a URL such as s3://bucket/backlog",
            )
        self.access()


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a start or resume. `later` are queues with messages again, of a run that had ended before."""

    run: ReplayRun
    proof: Proof
    end: ReplayEnd
    later: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the proof, or of an interruption if it was stopped and nothing is wrong."""
        code = self.proof.exit_code
        return ExitCode.INTERRUPTED if self.end.stopped and code in MOVED else code

    def document(self) -> dict[str, Any]:
        """Return the receipt as its JSON contract."""
        found: dict[str, Any] = encoded(self.receipt)
        return found

    @property
    def receipt(self) -> ReplayReceipt:
        return replay_receipt(self.run.id, self.run.options.mode, self.proof, self.end)
