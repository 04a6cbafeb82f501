"""A run of writes: its options, its files in the ledger directory, and the driver's part before and after the tasks.

`LEDGER/RUN/` has the kinds of files that a replay's archive has, and their layout. Invariant: one job of a run sends at
a time. Its tasks claim the run, and send only while they have lately confirmed that it is theirs. No error repeats the
value of an option that may be a secret.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sbpair.azure.fetched_secrets import named_secrets
from sbpair.config import load
from sbpair.config.file import load_namespace
from sbpair.config.setting import Flags
from sbpair.errors import (
    EntityMissing,
    LeaseHeld,
    SbpairError,
    ServiceRefused,
    StateRefused,
    Unavailable,
    UsageError,
    nearest_hint,
)
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import SIDES, Endpoint
from sbpair.move.raw_destination import RawDestination, RawDestinationLink
from sbpair.operating_system.files import user_directory
from sbpair.replay.archive import DOUBTFUL, LEDGER, QUARANTINE, REPORT, RUN_FILE, VERSION, Archive
from sbpair.replay.digests import for_each_file
from sbpair.replay.ledger import KEY, Key, held_by_attempts, keyed_rows
from sbpair.replay.run_description import NamespaceAccess, open_destination
from sbpair.replay.task_lease import wait_unchanged
from sbpair.runs.run_log import check_run_name, new_id
from sbpair.spark.row_messages import MessageColumns, check_destination, check_schema

WRITE_OPTIONS = ("destination", "pair", "side", "namespace", "config", "ledger", "run", "refused", "check", "discard")
OF_SPARK = ("checkpointlocation", "queryname")
"""Options of a stream that Spark passes on."""

_OF_COMMANDS = re.compile(r"--(pair|config)\b")
RUN_SCHEMA, EVENT_SCHEMA = "sbpair/spark-run/1", "sbpair/spark-event/1"
WRITE_FILE, OWNER_FILE, CLAIMS = "write.json", "owner.json", "claims"
BATCH_SCOPE = "batch"
"""The scope of a job that is no stream. That of a stream's batch is QUERY/BATCH."""

SILENT_SECONDS = 10.0
"""How long a claim stays unchanged before its task counts as dead. Longer than a task trusts its last confirmation."""

RECEIPT_SCHEMA = "sbpair/spark-write/1"
MAX_DOUBTFUL = 1_000
"""How many doubtful messages a receipt names. Their total is exact beyond it."""


class RowCheck(StrEnum):
    """When rows are checked: before the first message of a job, of a task or of a chunk; or nothing is sent."""

    FULL = "full"
    TASK = "task"
    ROW = "row"
    ONLY = "only"


BATCH_CHECKS = (RowCheck.TASK, RowCheck.ROW, RowCheck.ONLY)
STREAM_CHECKS = (RowCheck.TASK, RowCheck.ROW)
FRAME_CHECKS = (RowCheck.FULL, *BATCH_CHECKS)
"""The values of option check, its default first: of a write, of a stream, and of `sbpair.spark.write`."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`destination` is None if a column has it, `run` None for a run that is never resumed.

    `ledger` is None for a directory of this machine. With `keep_refused` a job succeeds although messages were refused.
    With `allow_discard` messages are sent that no subscription of their topic takes.
    """

    destination: str | None
    access: NamespaceAccess
    ledger: str | None
    run: str | None
    keep_refused: bool
    check: RowCheck
    allow_discard: bool

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        environ: Mapping[str, str],
        checks: Sequence[RowCheck] = BATCH_CHECKS,
    ) -> WriteOptions:
        """Read options, and the configuration that they name. Raises UsageError."""
        given = check_names(options, WRITE_OPTIONS, OF_SPARK)
        refused, discard = choice(given, "refused", ("fail", QUARANTINE)), choice(given, "discard", ("fail", "allow"))
        check = choice(
            given, "check", checks, "leave it out; sbpair.spark.write checks all rows before the first message"
        )
        run, destination = given.get("run"), given.get("destination")
        if run is not None:
            check_run_name(run, "option run")
        if destination is not None:
            check_destination("option destination", destination)
        return cls(
            destination,
            NamespaceAccess.from_endpoint(_endpoint(given, environ)),
            given.get("ledger"),
            run,
            keep_refused=refused == QUARANTINE,
            check=RowCheck(check),
            allow_discard=discard == "allow",
        )


def choice(given: Mapping[str, str], name: str, values: Sequence[str], hint: str = "leave it out") -> str:
    """Return an option's value, by default the first of `values`. Raises UsageError for another than these."""
    if (value := given.get(name, values[0])) not in values:
        raise UsageError(f"option {name}: expected {', '.join(values[:-1])} or {values[-1]}, got {value!r}", hint=hint)
    return value


def check_names(options: Mapping[str, str], known: Collection[str], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return options by their names in lower case. Raises UsageError for a secret, an unknown or an empty one."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in ignored}
    for name, value in given.items():
        if holds_secret(value) or re.search("connection_?string|password|secret|access_?key|signature", name):
            raise UsageError(
                f"option {name} holds a secret: Spark keeps options in plans and logs",
                hint="put the connection string into SBPAIR_PRIMARY_CONNECTION_STRING on driver and workers, or into a"
                " variable that the configuration file names",
            )
        if name not in known:
            raise UsageError(f"option {name} is unknown", hint=nearest_hint(name, known, f"use {', '.join(known)}"))
        if not value.strip():
            raise UsageError(f"option {name} is empty", hint="give a value, or leave it out")
    return given


def default_ledger(environ: Mapping[str, str]) -> str:
    """Return the directory of ledgers on this machine, without creating it."""
    return str(user_directory("state", environ)[0] / "spark")


def _endpoint(given: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint:
    """Return the namespace to send to: `[namespaces.NAME]`, or a side of a pair, by default its primary."""
    config, name = given.get("config"), given.get("namespace")
    if name is not None and {"pair", "side"} & given.keys():
        raise UsageError("options namespace and pair exclude each other", hint="keep one, and leave out side")
    side = choice(given, "side", SIDES, "leave it out for primary")
    flags = Flags(pair=given.get("pair"), config=None if config is None else Path(config))
    try:
        if name is not None:
            return load_namespace(name, flags, environ).endpoint
        pair = load(flags, environ).pair
    except UsageError as error:
        error.message, error.hint = (_OF_COMMANDS.sub(r"option \1", text) for text in (error.message, error.hint))
        error.args = (error.message,)
        raise
    if side == "secondary":
        return pair.secondary
    pair.require_primary()
    return pair.primary


@dataclass(frozen=True, slots=True)
class WriteJob:
    """The pickled parameters of a job's tasks. `number` counts the jobs of the run: a later one may take it over.

    `mark` is that of the run's directory as the driver sees it. `resumed` is whether earlier jobs may have sent
    messages.
    """

    run: str
    job: str
    number: int
    mark: str
    ledger: str
    options: WriteOptions
    columns: MessageColumns
    resumed: bool

    @property
    def checks_only(self) -> bool:
        return self.options.check is RowCheck.ONLY

    def open(self) -> Archive:
        return Archive(self.ledger, self.run)


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """The rows of one attempt at a partition: each was sent, known as acknowledged, or refused.

    `known` were sent by earlier jobs, `retried` by earlier attempts of this job.
    """

    scope: str
    rows: int = 0
    sent: int = 0
    known: int = 0
    retried: int = 0
    refused: int = 0
    destinations: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


def start_job(
    options: Mapping[str, str],
    schema: Any,
    environ: Mapping[str, str],
    *,
    stream: bool,
    checks: Sequence[RowCheck] = BATCH_CHECKS,
) -> WriteJob:
    """Check all that can be checked before the tasks. Raises SbpairError. A job that only checks has no ledger.

    Of a stream it is called for each batch again: there it connects to nothing, and its tasks check the rest.
    """
    environ = {**environ, **named_secrets(environ)}
    parsed = WriteOptions.parse(options, environ, STREAM_CHECKS if stream else checks)
    has_ids = check_schema(schema, parsed.destination)
    if parsed.run is not None and not (has_ids or stream):
        raise UsageError(
            f"run {parsed.run}: a run that may be resumed needs a column id or message_id",
            hint="add one that is the same whenever the job runs, or leave out option run",
        )
    if stream and parsed.run is None:
        raise UsageError(
            "option run: missing, and a stream needs it to know its ledger when it starts again",
            hint='add .option("run", "NAME"), and keep it as long as the checkpoint',
        )
    endpoint = parsed.access.endpoint(environ)
    ledger, run = parsed.ledger or default_ledger(environ), parsed.run or new_id(int(time.time() * 1000))
    archive, only = Archive(ledger, run), parsed.check is RowCheck.ONLY
    if not stream:
        if parsed.destination is not None:
            in_own_loop(lambda: _check_destination(endpoint, str(parsed.destination)))
        if not only:
            wait_silent(archive, CLAIMS, still_going(run))
    mark = "" if only else _open_run(archive, endpoint)
    number = 0 if only else 1 + read_owner(archive).number
    # A job that owned the run may write its ledger later than now.
    resumed = not only and (stream or number > 1 or bool(archive.sizes(LEDGER)))
    columns = MessageColumns(parsed.destination, has_ids)
    job = WriteJob(run, uuid.uuid4().hex[:12], number, mark, ledger, parsed, columns, resumed)
    if not (stream or only):
        record_event(job, "job-started", resumed=job.resumed)
    return job


def _open_run(archive: Archive, endpoint: Endpoint) -> str:
    """Create a run's directory, and return its mark.

    Raises StateRefused for one of another namespace or version, and for that of a replay.
    """
    if archive.exists(RUN_FILE):
        raise StateRefused(
            f"{archive.root} is a run of sbpair replay, whose ledger has other messages",
            hint="choose another run, or another directory for option ledger",
        )
    archive.create()
    archive.check_links()
    expected = {"schema": RUN_SCHEMA, "version": VERSION, "run": archive.run, "namespace": endpoint.authority.lower()}
    found = archive.find_json(WRITE_FILE)
    if found is None:
        found = {**expected, "mark": uuid.uuid4().hex}
        archive.write_json(WRITE_FILE, found)
    for name, value in expected.items():
        if found.get(name) != value:
            raise StateRefused(
                f"run {archive.run} has {name} {found.get(name)}, not {value}",
                hint="choose another run, or write with the sbpair and to the namespace that it began with",
            )
    return str(found.get("mark"))


def read_mark(archive: Archive) -> str | None:
    """Return the mark of a run's directory; None if it is not there."""
    found = archive.find_json(WRITE_FILE)
    return None if found is None else str(found.get("mark"))


class RunOwner(NamedTuple):
    """The job that may send. `number` is 0 if there was none."""

    job: str = ""
    number: int = 0


def read_owner(archive: Archive) -> RunOwner:
    found = archive.find_json(OWNER_FILE)
    try:
        return RunOwner() if found is None else RunOwner(str(found["job"]), int(found["number"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise archive.broken(OWNER_FILE, error) from error


def refuse_job(job: WriteJob, error: SbpairError) -> None:
    """Record that a row of a job is wrong, for its other tasks: they send no more. The first error stays."""
    archive = job.open()
    if not archive.exists(path := _refusal_path(job)):
        archive.write_json(path, {"error": error.message, "hint": error.hint})


def read_refusal(job: WriteJob, archive: Archive) -> UsageError | None:
    """Return the error that a task of the job has recorded."""
    found = archive.find_json(_refusal_path(job))
    return UsageError(str(found.get("error")), hint=str(found.get("hint"))) if found else None


def _refusal_path(job: WriteJob) -> str:
    return f"{REPORT}/refused/{job.job}.json"


def still_going(run: str) -> str:
    return f"run {run} is still going: another job of it sends"


def wait_silent(
    archive: Archive, under: str, message: str, *, but: str | None = None, patience_seconds: float = 0.0
) -> None:
    """Wait until no claim but those of one job has changed for SILENT_SECONDS, and remove them. No-op without a claim.

    Raises LeaseHeld if one changes, after `patience_seconds` in which its task may end.
    """

    def claims() -> dict[str, bytes]:
        found = {}
        for path in archive.sizes(under):
            with suppress(FileNotFoundError):
                if but is None or f"/{but}." not in path:
                    found[path] = archive.read(path)
        return found

    error = LeaseHeld(message, hint="wait for its end, or stop it; each run sends one job at a time")
    for path in wait_unchanged(claims, SILENT_SECONDS, error, patience_seconds=patience_seconds):
        archive.remove(path)


async def _check_destination(endpoint: Endpoint, destination: str) -> None:
    async with open_destination(partial(RowDestinations, "option destination"), endpoint) as primary:
        await primary.ready(destination)


class RowDestinations(RawDestination):
    """The namespace to send to. A destination that does not exist ends the task before a message of it is sent.

    With `strict`, so does one that takes no message for now. Each send waits for `wait_allowed`.
    """

    wait_allowed: Callable[[], Awaitable[None]] | None = None

    def __init__(self, named_by: str, endpoint: Endpoint, *, strict: bool = False, **options: Any) -> None:
        super().__init__(endpoint, **options)
        self._named_by, self._endpoint, self._strict = named_by, endpoint, strict
        self._loop = asyncio.get_running_loop()

    def check_destination(self, destination: str) -> None:
        """Raise UsageError for a destination that does not exist. For another thread than the loop's."""
        later = () if self._strict else (ServiceRefused, Unavailable)  # the send finds these, and may try again
        with suppress(*later):
            asyncio.run_coroutine_threadsafe(self.ready(destination), self._loop).result()

    async def ready(self, destination: str) -> RawDestinationLink:
        if self.wait_allowed is not None:
            await self.wait_allowed()
        try:
            return await super().ready(destination)
        except EntityMissing:
            raise UsageError(
                f"{self._named_by}: there is no queue or topic {destination!r} in {self._endpoint.name}",
                hint="create it, or correct the name; then run the job again",
            ) from None


def in_own_loop(run: Callable[[], Any]) -> Any:
    """Run a coroutine in a thread with a loop of its own: a notebook's thread has a loop already."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(run())).result()


def record_event(job: WriteJob, name: str, **facts: object) -> None:
    """Write one event of the driver as a file."""
    now_ms = int(time.time() * 1000)
    document = {"schema": EVENT_SCHEMA, "event": name, "time_ms": now_ms, "run": job.run, "job": job.job, **facts}
    job.open().write_json(f"{REPORT}/events/{now_ms}-{job.job}-{name}.json", document)


def commit_job(job: WriteJob, parts: Iterable[WriteCounts], batch: int | None = None) -> dict[str, Any]:
    """Count the messages in the ledger, and write the receipt. Raises if counts differ, or messages were refused."""
    counts = list(parts)
    scope = counts[0].scope if counts else BATCH_SCOPE
    archive = job.open()
    under = f"{LEDGER}/{scope}"
    paths = [path for path in archive.files(under) if path.removeprefix(f"{under}/").startswith(f"{job.job}.")]
    acknowledged = sum(for_each_file(archive.row_count, paths).values())
    totals = {name: sum(getattr(each, name) for each in counts) for name in ("rows", "sent", "known", "retried")}
    refused = sum(each.refused for each in counts)
    reasons: Counter[str] = sum((Counter(each.reasons) for each in counts), Counter())
    doubtful = _doubtful(archive, scope)
    counted = totals["rows"] == totals["sent"] + totals["known"] + totals["retried"] + refused
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "run": job.run,
        "job": job.job,
        "batch": batch,
        "rows": totals["rows"],
        "acknowledged": acknowledged,
        "acknowledged_before": totals["known"],
        "refused": refused,
        "balanced": counted and acknowledged >= totals["sent"] + totals["retried"],
        "destinations": dict(sum((Counter(each.destinations) for each in counts), Counter())),
        "reasons": dict(reasons),
        "doubtful": doubtful[:MAX_DOUBTFUL],
        "doubtful_total": len(doubtful),
    }
    archive.write_json(f"{REPORT}/{'receipt' if scope == BATCH_SCOPE else scope}.json", receipt)
    archive.delete(CLAIMS, [path for path in archive.sizes(CLAIMS) if f"/{job.job}." in path])
    if not receipt["balanced"]:
        raise StateRefused(
            f"run {job.run}: the ledger has {acknowledged} messages of this job, and its tasks {totals}",
            hint=f"compare {archive.root}/{REPORT} with {archive.root}/{LEDGER}: files of it are missing",
        )
    if refused and not job.options.keep_refused:
        reason = _first_reason(archive, job, scope)
        raise ServiceRefused(
            f"{refused} of {totals['rows']} messages were refused, and all others sent: {reason}",
            hint=f"see {archive.root}/{QUARANTINE}; correct the rows and run {job.run} again, or add"
            ' .option("refused", "quarantine")',
        )
    record_event(job, "job-committed", **{name: receipt[name] for name in ("batch", "rows", "acknowledged", "refused")})
    return receipt


def abort_job(job: WriteJob, ended_tasks: int = 0, batch: int | None = None) -> None:
    """Record that a job failed. The ledger has the messages that its tasks sent. No-op for one that only checks."""
    if job.checks_only:
        return
    record_event(job, "job-failed", batch=batch, ended_tasks=ended_tasks)


def _first_reason(archive: Archive, job: WriteJob, scope: str) -> str:
    """Return why the destination refused a message of this job."""
    paths = (path for path in archive.files(f"{QUARANTINE}/{scope}") if f"/{job.job}." in path)
    reasons = (archive.read_table(path, ["reason"]).column("reason")[0].as_py() for path in paths)
    return str(next(reasons, "for an unknown reason"))


def _doubtful(archive: Archive, scope: str) -> list[dict[str, object]]:
    """Name the messages that may have been sent twice: without an answer, or held when a task was killed."""
    held = defaultdict[tuple[int, int], set[str]](
        set
    )  # by number and content: without ids a retry has another message id
    for key, attempt in held_by_attempts(archive):
        if key[0] == scope:
            held[key[1:3]].add(attempt)
    named = dict.fromkeys((key[3], destination) for key, destination, _ in _rows(archive, DOUBTFUL) if key[0] == scope)
    for key, destination, attempt in _rows(archive, f"{LEDGER}/{scope}") if held else ():
        if held.get(key[1:3], set()) - {attempt}:
            named[key[3], destination] = None
    return [{"message_id": message_id, "destination": destination} for message_id, destination in named]


def _rows(archive: Archive, under: str) -> Iterator[tuple[Key, str | None, str]]:
    for path in archive.files(under):
        yield from keyed_rows(archive.read_table(path, [*KEY, "destination", "attempt"]), "destination", "attempt")
