"""A run of writes: its files in the ledger directory, and the driver's part before and after the tasks.

`LEDGER/RUN/` has the kinds of files that a replay's archive has, and their layout. Invariant: one job of a run sends at
a time. Its tasks claim the run, and send only while they have lately confirmed that it is theirs.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.azure.credentials import token_getter
from sbpair.errors import EntityMissing, LeaseHeld, SbpairError, StateRefused, UsageError
from sbpair.model.pair import Ends
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import LEDGER, REPORT, RUN_FILE, VERSION
from sbpair.replay.secret_references import named_secrets
from sbpair.runs.run_log import new_id
from sbpair.spark.row_messages import MessageColumns, check_schema
from sbpair.spark.write_options import BATCH_CHECKS, STREAM_CHECKS, RowCheck, WriteOptions, default_ledger

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint
    from sbpair.replay.run import NamespaceAccess

RUN_SCHEMA, EVENT_SCHEMA = "sbpair/spark-run/1", "sbpair/spark-event/1"
WRITE_FILE, OWNER_FILE, CLAIMS = "write.json", "owner.json", "claims"
BATCH_SCOPE = "batch"
"""The scope of a job that is no stream. That of a stream's batch is QUERY/BATCH."""

SILENT_SECONDS = 10.0
"""How long a claim stays unchanged before its task counts as dead. Longer than a task trusts its last confirmation."""

POLL_SECONDS = 0.25
READERS = 8
"""How many files of a ledger are read at once."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """The pickled parameters of a job's tasks. `number` counts the jobs of the run: a later one may take it over.

    `mark` is that of the run's directory as the driver sees it. `resumed` is whether earlier jobs may have sent
    messages. `shared` is whether all workers should see the ledger, because it was named or is not used.
    """

    run: str
    job: str
    number: int
    mark: str
    ledger: str
    access: NamespaceAccess
    columns: MessageColumns
    keep_refused: bool
    allow_discard: bool
    resumed: bool
    shared: bool
    check: RowCheck

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
    job = WriteJob(
        run=run,
        job=uuid.uuid4().hex[:12],
        number=number,
        mark=mark,
        ledger=ledger,
        access=parsed.access,
        columns=MessageColumns(parsed.destination, has_ids),
        keep_refused=parsed.keep_refused,
        allow_discard=parsed.allow_discard,
        # A job that owned the run may write its ledger later than now.
        resumed=not only and (stream or number > 1 or bool(archive.sizes(LEDGER))),
        shared=only or parsed.ledger is not None,
        check=parsed.check,
    )
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
    try:
        found = archive.read_json(WRITE_FILE)
    except FileNotFoundError:
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
    try:
        return str(archive.read_json(WRITE_FILE).get("mark"))
    except FileNotFoundError:
        return None


class RunOwner(NamedTuple):
    """The job that may send. `number` is 0 if there was none."""

    job: str = ""
    number: int = 0


def read_owner(archive: Archive) -> RunOwner:
    try:
        found = archive.read_json(OWNER_FILE)
        return RunOwner(str(found["job"]), int(found["number"]))
    except FileNotFoundError:
        return RunOwner()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise archive.broken(OWNER_FILE, error) from error


def refuse_job(job: WriteJob, error: SbpairError) -> None:
    """Record that a row of a job is wrong, for its other tasks: they send no more. The first error stays."""
    archive = job.open()
    if not archive.exists(path := _refusal_path(job)):
        archive.write_json(path, {"error": error.message, "hint": error.hint})


def read_refusal(job: WriteJob, archive: Archive) -> UsageError | None:
    """Return the error that a task of the job has recorded."""
    try:
        found = archive.read_json(_refusal_path(job))
    except FileNotFoundError:
        return None
    return UsageError(str(found.get("error")), hint=str(found.get("hint")))


def _refusal_path(job: WriteJob) -> str:
    return f"{REPORT}/refused/{job.job}.json"


def still_going(run: str) -> str:
    return f"run {run} is still going: another job of it sends"


def wait_silent(
    archive: Archive,
    under: str,
    message: str,
    *,
    but: str | None = None,
    seconds: float = SILENT_SECONDS,
    patience_seconds: float = 0.0,
) -> None:
    """Wait until no claim but those of one job has changed for so long, and remove them. No-op without a claim.

    Raises LeaseHeld if one changes, after `patience_seconds` in which its task may end.
    """

    def claims() -> dict[str, bytes]:
        found = {}
        for path in archive.sizes(under):
            with suppress(FileNotFoundError):
                if but is None or f"/{but}." not in path:
                    found[path] = archive.read(path)
        return found

    before, began = claims(), time.monotonic()
    changed_at = began
    while before and time.monotonic() < changed_at + seconds:
        time.sleep(POLL_SECONDS)
        now = claims()
        if any(before.get(path) != content for path, content in now.items()):
            changed_at = time.monotonic()
            if changed_at >= began + patience_seconds:
                raise LeaseHeld(message, hint="wait for its end, or stop it; each run sends one job at a time")
        before = now
    for path in before:
        archive.remove(path)


async def _check_destination(endpoint: Endpoint, destination: str) -> None:
    async with token_getter(Ends("write", endpoint, endpoint)) as get_token:
        primary = RawPrimary(endpoint, get_token=get_token)
        try:
            await primary.ready(destination)
        except EntityMissing:
            raise missing_destination("option destination", destination, endpoint) from None
        finally:
            await primary.close()


def missing_destination(place: str, destination: str, endpoint: Endpoint) -> UsageError:
    """Return the error for a destination that does not exist. It ends a task: no other message is sent."""
    return UsageError(
        f"{place}: there is no queue or topic {destination!r} in {endpoint.name}",
        hint="create it, or correct the name; then run the job again",
    )


def in_own_loop(run: Callable[[], Any]) -> Any:
    """Run a coroutine in a thread with a loop of its own: a notebook's thread has a loop already."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(run())).result()


def record_event(job: WriteJob, name: str, **facts: object) -> None:
    """Write one event of the driver as a file."""
    now_ms = int(time.time() * 1000)
    document = {"schema": EVENT_SCHEMA, "event": name, "time_ms": now_ms, "run": job.run, "job": job.job, **facts}
    job.open().write_json(f"{REPORT}/events/{now_ms}-{job.job}-{name}.json", document)
