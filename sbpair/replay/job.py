"""A run from its first phase to its last: check, drain, plan, send, verify. Whatever is done already is not done again.

The law: the driver decides and waits; it counts by the archive. One mover of a pair at a time: the lease is held from
before the first message is taken until the last is settled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import token_getter
from sbpair.errors import EntityMissing, SbpairError, Unsafe, UsageError
from sbpair.move.message import dead_letters
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay import progress
from sbpair.replay import selection as choosing
from sbpair.replay import spark as sparks
from sbpair.replay.archive import DRAINED, PROVED, SEGMENTS, STOP_FILE, SWEPT, Archive
from sbpair.replay.archive_check import answer, question, read_by_spark
from sbpair.replay.dedup import write_off
from sbpair.replay.direct_task import move
from sbpair.replay.drain_task import drain, is_left, keep_accepted, remaining_in_queues, tasks_of
from sbpair.replay.plan import plan
from sbpair.replay.plan_sql import DEDUPLICATED
from sbpair.replay.progress import Expected, PhaseWatcher, ReplayPhase, Tell
from sbpair.replay.retry import patiently
from sbpair.replay.run import DedupMode, NamespaceAccess, ReplayMode, ReplayOptions, ReplayRun, TaskJob, load, save
from sbpair.replay.schema import PROGRESS
from sbpair.replay.send_task import send
from sbpair.replay.spark_action import translated, watched
from sbpair.replay.task_lease import HeldLease, holding
from sbpair.replay.verify import Proof, check_segments, left_at_drain, swept, verify
from sbpair.runs.database import identity, state_if_any
from sbpair.runs.journal import accepted_keys
from sbpair.runs.run_log import new_id

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.replay.selection import Selection

log = logging.getLogger(__name__)

SHARDS_A_TASK = 2
"""More shards than tasks, so that one that is larger than others keeps nobody waiting for long."""


@dataclass(frozen=True)
class ReplayRequest:
    """What the command line said. `variables` are those that the keys of primary and secondary came from, if any.

    `package` is a zip of sbpair for executors that have none. `tasks` is how many may run at once; None for what a
    local master has. `lease` is whether other movers of this machine are kept off; `lease_queue` names what keeps those
    of other machines off too.
    """

    pair: Pair
    archive: str
    variables: tuple[str | None, str | None]
    state: Path
    master: str = "local[2,4]"
    tasks: int | None = None
    shared_archive: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    lease: bool = True
    lease_queue: str | None = None
    verbose: bool = False
    package: str | None = None

    @property
    def parallelism(self) -> int:
        return self.tasks or sparks.local_cores(self.master) or 2


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`stopped` is whether somebody asked for it to stop before it was done."""

    run: ReplayRun
    proof: Proof
    seconds: float
    stopped: bool

    def document(self) -> dict[str, Any]:
        told = {"run": self.run.id, **document(self.proof, self.run)}
        return {**told, "seconds": round(self.seconds, 3), "stopped": self.stopped}


def document(proof: Proof, run: ReplayRun) -> dict[str, Any]:
    """The proof as the JSON contract has it. What a direct run has taken was never archived."""
    numbers = ("archived", "acknowledged", "expired", "quarantined", "deduplicated", "unsent", "copies")
    told: dict[str, Any] = {"mode": run.options.mode.value, **{name: getattr(proof, name) for name in numbers}}
    queues = proof.queues
    if run.direct:
        told |= {"archived": None, "unsent": None, "received": proof.archived, "in_doubt": proof.unsent}
        names = {"archived": "received", "unsent": "in_doubt"}
        queues = {queue: {names.get(name, name): n for name, n in each.items()} for queue, each in queues.items()}
    return {
        **told,
        "balanced": proof.balanced,
        **{name: getattr(proof, name) for name in ("contradictions", "unknown", "segments")},
        "queues": queues,
        **{name: getattr(proof, name) for name in ("destinations", "reasons", "doubtful", "doubtful_total")},
        **{name: getattr(proof, name) for name in ("remaining_in_queues", "unreadable")},
    }


def start(
    request: ReplayRequest, options: ReplayOptions, queues: list[str], shards: int | None, tell: Tell
) -> ReplayResult:
    """Begin a run. Raises what is wrong before anything is received."""
    settings = _checked(request)
    _check_direct(options, queues)
    started_ms = int(time.time() * 1000)
    run_id = new_id(started_ms)
    archive = Archive(request.archive, run_id)
    count = len(queues) if options.mode is ReplayMode.DIRECT else shards or request.parallelism * SHARDS_A_TASK
    run = ReplayRun(run_id, identity(request.pair), tuple(queues), count, started_ms, options)
    with _lease(request, archive) as held:
        try:
            archive.create()
            archive.check_writable()
            save(archive, run)
            _keep_journal(request, archive)
            return _go_on(request, settings, archive, run, held, tell)
        except SbpairError:
            if not held.used:
                with suppress(SbpairError):
                    archive.delete("")
            raise


def resume(request: ReplayRequest, run_id: str, tell: Tell, selection: Selection | None = None) -> ReplayResult:
    """Go on with a run from where it is, however it ended: with what it was to send, or with another selection."""
    settings = _checked(request)
    archive = Archive(request.archive, run_id)
    run = load(archive, request.pair)
    if selection is not None:
        if run.direct:
            raise UsageError(
                f"run {run.id} is direct, and has left nothing out", hint="leave out --all, --destination and --where"
            )
        run = replace(run, options=replace(run.options, selection=selection))
    archive.check_writable()
    with _lease(request, archive) as held:
        archive.remove(STOP_FILE)
        _keep_journal(request, archive)
        return _go_on(request, settings, archive, run, held, tell)


def _go_on(
    request: ReplayRequest, settings: dict[str, str], archive: Archive, run: ReplayRun, held: HeldLease, tell: Tell
) -> ReplayResult:
    began = time.monotonic()
    tell(ReplayPhase("check", f"run {run.id}: checking the archive", run.id))
    check_segments(archive)
    before = verify(archive, run)
    if archive.exists(DRAINED) and (before.balanced or run.direct) and not before.remaining_in_queues:
        tell(ReplayPhase("verify", "everything has been sent before; nothing is left to do"))
        return _prove(archive, run, began)
    _unprove(archive)
    job = TaskJob(run, request.archive, *_reaches(request), request.parallelism, held.beacon)
    _check_named(job, tell)
    tell(ReplayPhase("spark", f"starting Spark on {request.master}, which takes some ten seconds"))
    settings = {"spark.sql.shuffle.partitions": str(run.shards), **settings}
    with sparks.session(request.master, settings, verbose=request.verbose, package=request.package) as spark:
        choosing.check(spark, run.options.selection)
        if request.shared_archive:
            _probe(spark, job)
        if not (archive.is_local or run.direct):
            read_by_spark(spark, archive)
        # No more of them than there are shards, or than cores; of a cluster, those that have come by now.
        job = replace(job, senders=min(run.shards, spark.sparkContext.defaultParallelism))
        if run.direct:
            _move(spark, job, archive, request.pair, held, tell)
        else:
            _drain(spark, job, archive, request.pair, held, tell)
        if not run.direct and not archive.stopped() and archive.files(SEGMENTS):
            try:
                _send(spark, job, archive, held, tell)
            except sparks.errors() as error:
                raise translated(error, archive) from error
        tell(ReplayPhase("verify", "counting what is in the archive"))
        with sparks.ending(spark):
            return _prove(archive, run, began)


def _unprove(archive: Archive) -> None:
    """What a run came to before is not what it comes to now: until it has ended again, nothing is taken away."""
    try:
        said = archive.read(PROVED)
    except FileNotFoundError:
        return
    archive.remove(PROVED)
    if archive.exists(SWEPT):  # somebody takes it away at this moment
        archive.write(PROVED, said)
        raise swept(archive)


def _prove(archive: Archive, run: ReplayRun, began: float) -> ReplayResult:
    result = ReplayResult(run, verify(archive, run), time.monotonic() - began, archive.stopped())
    archive.write_json(PROVED, result.document())
    return result


# What is checked before Java is started.


def _checked(request: ReplayRequest) -> dict[str, str]:
    """Raise what can be known to be wrong. Answers Spark's settings."""
    sparks.check(request.settings.get("spark.speculation", "false"))
    remote = not sparks.is_local(request.master)
    if remote and Archive(request.archive, "probe").is_local and not request.shared_archive:
        raise Unsafe(
            f"the archive {request.archive} is a directory of this machine, and {request.master} runs on others",
            hint="say --shared-archive where all of them have it at that path, or name a URL such as s3://bucket/backlog",
        )
    _reaches(request)
    return dict(request.settings)


def _check_direct(options: ReplayOptions, queues: Sequence[str]) -> None:
    """Raise UsageError for what a direct run cannot do."""
    if options.mode is not ReplayMode.DIRECT:
        return
    said = {
        f"--dedup {options.dedup}": options.dedup is not DedupMode.KEY,
        "--destination": bool(options.selection.destinations),
        "--where": options.selection.where is not None,
        "--dead-letters": any(map(dead_letters.is_dead_letter_path, queues)),
    }
    for name, asked in said.items():
        if asked:
            raise UsageError(
                f"{name} does not go with --mode direct",
                hint="a direct run sends each message as it comes: leave it out, or use --mode archive",
            )


def _reaches(request: ReplayRequest) -> tuple[NamespaceAccess, NamespaceAccess]:
    pair, (primary, secondary) = request.pair, request.variables
    return NamespaceAccess.of(pair.primary, primary), NamespaceAccess.of(pair.secondary, secondary)


def _lease(request: ReplayRequest, archive: Archive) -> AbstractContextManager[HeldLease]:
    """One mover of the pair at a time: on this machine, and on all of them where a queue for that is named."""
    directory = request.state if request.lease else None
    return holding(request.pair, archive.run, archive, directory=directory, queue=request.lease_queue)


def _keep_journal(request: ReplayRequest, archive: Archive) -> None:
    state = state_if_any(request.state, request.pair)
    if state is None:
        return
    with state:
        keep_accepted(archive, accepted_keys(state))


def _probe(spark: Any, job: TaskJob) -> None:
    """See that the executors have the same archive, and may write to it."""
    archive = job.open()
    nonce = question(archive)
    said = spark.range(0, job.tasks, 1, job.tasks).mapInArrow(answer(job, nonce), "answer string").collect()
    missing = [row.answer for row in said if not archive.exists(row.answer)]
    if missing or len(said) < job.tasks:
        raise Unsafe(
            f"the executors do not see the archive {job.archive} that this machine sees",
            hint="mount it at the same path on every one of them, or name a URL such as s3://bucket/backlog",
        )
    for path in (nonce, *(row.answer for row in said)):
        archive.remove(path)


# The phases.


def _drain(spark: Any, job: TaskJob, archive: Archive, pair: Pair, held: HeldLease, tell: Tell) -> None:
    if archive.exists(DRAINED) and not left_at_drain(archive):
        return
    tell(ReplayPhase("drain", f"draining {len(job.run.queues)} backlog queues into {archive.root}"))
    _empty(spark, job, pair, drain, progress.drained(archive), held, tell)


def _move(spark: Any, job: TaskJob, archive: Archive, pair: Pair, held: HeldLease, tell: Tell) -> None:
    """From the backlog to the primary within each task: nothing is planned, and no body is kept."""
    tell(ReplayPhase("move", f"moving {len(job.run.queues)} backlog queues to {job.primary.place['name']}"))
    _empty(spark, job, pair, move, progress.moved(archive), held, tell)


def _empty(
    spark: Any,
    job: TaskJob,
    pair: Pair,
    act: Callable[[TaskJob], Any],
    watch: PhaseWatcher,
    held: HeldLease,
    tell: Tell,
) -> None:
    """Have tasks empty the queues, in haste and, where that leaves anything, with patience; write down what is left."""
    archive = job.open()
    before = watch.look()
    tell(Expected(before.phase, asyncio.run(_expected(pair, job.run.queues, before.by))))
    for each in (job.in_haste(), job):
        tasks = len(tasks_of(each))
        held.used = True
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(act(each), PROGRESS)
        watched(watch, archive, rows.collect, held, tell)
        if archive.stopped():
            return
        if not asyncio.run(is_left(job)):
            break
    left = asyncio.run(remaining_in_queues(job))
    said = {"at_ms": int(time.time() * 1000), "messages": check_segments(archive), "remaining_in_queues": left}
    archive.write_json(DRAINED, said)


def _send(spark: Any, job: TaskJob, archive: Archive, held: HeldLease, tell: Tell) -> None:
    tell(ReplayPhase("plan", "planning: what is a copy, what is past its time, what goes where"))
    planned = plan(spark, job.run, archive)
    if not job.run.options.allow_missing:
        tell(ReplayPhase("plan", f"asking the primary for {len(planned.destinations)} destinations"))
        resume_it = f"'sbpair replay resume {job.run.id}'"
        asyncio.run(_check_destinations(job, planned.destinations, "everything is safe in the archive", resume_it))
    tell(Expected("send", planned.to_send()))
    tell(ReplayPhase("send", f"sending to {len(planned.destinations)} destinations of {job.primary.place['name']}"))
    watch = progress.sent(archive)
    watched(watch, archive, planned.work().mapInArrow(send(job), PROGRESS).collect, held, tell)
    if planned.has(DEDUPLICATED):
        watched(watch, archive, planned.repeats().mapInArrow(write_off(job), PROGRESS).collect, held, tell)


async def _expected(pair: Pair, queues: Sequence[str], before: dict[str, int]) -> dict[str, int]:
    """How many messages each queue will have given, where that may be asked: what it has, and what it gave before."""
    found = {}
    with suppress(SbpairError):  # nobody's run ends because it cannot be told how long it takes
        async with open_atom(pair.secondary) as control:
            for queue in queues:
                counts = await control.counts(dead_letters.parent_path(queue))
                there = counts.dead_letter if dead_letters.is_dead_letter_path(queue) else counts.active
                found[queue] = before.get(queue, 0) + there
    return found


def _check_named(job: TaskJob, tell: Tell) -> None:
    """Raise EntityMissing for a destination that was named and is not there, before anything is received."""
    named, options = job.run.options.selection.destinations, job.run.options
    if named and not options.allow_missing:
        tell(ReplayPhase("check", f"asking the primary for {len(named)} destinations"))
        asyncio.run(
            _check_destinations(job, [*named], "nothing was received", "run it again, or correct --destination")
        )


async def _check_destinations(job: TaskJob, destinations: list[str], so_far: str, then: str) -> None:
    """Raise EntityMissing for those that the primary does not have: a link to each is opened, and nothing goes over."""
    missing: list[str] = []
    async with token_getter(job.pair()) as get_token:
        primary = RawPrimary(job.primary.endpoint(), get_token=get_token)
        try:
            for destination in destinations:
                try:
                    await patiently(partial(primary.ready, destination))
                except EntityMissing:
                    missing.append(destination)
        finally:
            await primary.close()
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise EntityMissing(
            f"{job.primary.place['name']} has no {some}; {so_far}",
            entity=missing[0],
            hint=f"create them, then {then}; --allow-missing quarantines what is for them",
        )


def status(archive: Archive) -> dict[str, Any]:
    """How far a run is, by its files alone."""
    run = load(archive)
    drained, stopped = archive.exists(DRAINED), archive.stopped()
    archived, sent = progress.drained(archive).look(), progress.sent(archive).look()
    phase = _phase(archive, sent.files)
    if run.direct:
        archived, phase = progress.moved(archive).look(), "moved" if drained else "move"
    return {
        "run": run.id,
        "pair": run.pair,
        "mode": run.options.mode.value,
        "phase": phase,
        "stopped": stopped,
        "archived_rows": 0 if run.direct else archived.messages,
        "segments": 0 if run.direct else archived.files,
        "acknowledged_rows": sent.messages,
        "queues": archived.by,
    }


def _phase(archive: Archive, chunks_sent: int) -> str:
    if archive.exists(SWEPT):
        return "swept"
    if archive.exists(PROVED) and archive.read_json(PROVED).get("balanced") is True:
        return "proved"
    if chunks_sent:
        return "send"
    return "drained" if archive.exists(DRAINED) else "drain"


def proved(archive: Archive) -> tuple[ReplayRun, Proof]:
    """A run's proof, from its files alone. Raises UsageError for a direct one."""
    run = load(archive)
    if run.direct:
        raise UsageError(
            f"run {run.id} was direct: no message was archived that it could be proved from",
            hint=f"'sbpair replay status {run.id}' says what its ledger has",
        )
    return run, verify(archive, run)


def stop(archive: Archive) -> None:
    """Ask a run to stop: its tasks finish what they have in hand."""
    load(archive)
    archive.write(STOP_FILE, b"")
