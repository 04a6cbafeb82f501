"""One task of a run on Spark: the common part of all tasks, and the send.

A send moves the rows of its shards from the archive to the primary by the syphon's mover. The archive is the mover's
source: rows in order become deliveries, and their outcomes become ledger entries. Any other reader of messages with
keys may stand in for the archive, as that of a DataFrame does. Invariant: a chunk of the ledger is written after the
primary has accepted its messages, and none of them comes again. A duplicate by message id is marked as deduplicated
only once the primary has accepted the first copy.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from sbpair.errors import SbpairError
from sbpair.http_tunnel import ask_time
from sbpair.model.message_state import is_dead_letter_path
from sbpair.move.context import MAX_MISSING, MissingDestinations, MoveContext
from sbpair.move.interface import Failures, ReceivedMessage, Sendable
from sbpair.move.message import dead_letters
from sbpair.move.message.decode import Content, Decoded, Decoder
from sbpair.move.message.route import Facts, Send, TimeToLive, router
from sbpair.move.mover import Mover
from sbpair.move.rate_limit import RateLimiter
from sbpair.move.raw_destination import RawDestination
from sbpair.move.receipt import BackingOff, NamedMessage, Tally
from sbpair.replay.archive import DEDUPLICATED, LEDGER, Archive
from sbpair.replay.digests import segment_check
from sbpair.replay.ledger import KEY, Entry, KeySet, Ledger, Shard
from sbpair.replay.ledger import Key as RowKey
from sbpair.replay.run_description import TaskJob, open_destination
from sbpair.replay.segment import RowPosition, SegmentReader
from sbpair.replay.shard_plan import COLUMNS, DUPLICATE_COLUMNS
from sbpair.replay.spark import describe_jobs
from sbpair.replay.task_lease import TaskLease
from sbpair.runs.journal import NO_KEY, Journal, Key

T = TypeVar("T")

MAX_DESTINATION_FAILURES = 5  # failures in a row of a destination after which the task leaves the rest to a resume
WAIT_SECONDS = 1.0
STOP_POLL_SECONDS = 0.5  # how often a task checks whether a stop is requested
MAX_CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024  # read, or recorded as sent, at a time: a file costs 100 sends
CHUNK_SECONDS = 1.0  # accepted messages are recorded after so long, together with the next that is accepted
MAX_NOTES = 20
MAX_DUPLICATES = 10_000  # duplicates marked in one file
DUPLICATE_REASON = "another message with this id went to the same destination before it"


class TaskCounts(NamedTuple):
    """The messages that a task gave back to the backlog. Others are counted by its files.

    `clock_ahead_ms` is how far the service's clock is ahead, if the task has compared them. `note` is for the user.
    `settled` is the attempt at a drain, if it completed every message that it stored. `renamed` are old names of
    destinations that a direct move met.
    """

    released: int = 0
    clock_ahead_ms: int | None = None
    note: str | None = None
    queue: str = ""
    settled: str | None = None
    renamed: Sequence[str] = ()


def run_tasks(
    rows: Any, run: Callable[[Iterator[Any]], Iterable[Mapping[str, Any]]], named: str = ""
) -> list[dict[str, Any]]:
    """Run a function in a task for each partition of the rows. Return its results, which pass as JSON.

    The job is `named` so in Spark's UI, or as its session says.
    """
    if named:
        describe_jobs(rows.sparkSession, named)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for found in run(batches):
            yield pa.RecordBatch.from_pydict({"result": [json.dumps(found)]})

    return [json.loads(row.result) for row in rows.mapInArrow(task, "result string").collect()]


def column_rows(batches: Iterator[Any], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns, row by row."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def run_in_worker(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a worker that does nothing else."""
    # A mover's objects die by reference count: looking for cycles after every 700 objects cost a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    return asyncio.run(task)


class StopPoll:
    """A check for a requested stop, by the archive once in STOP_POLL_SECONDS. Once requested, it stays so."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._checked_at, self._stopped = float("-inf"), False

    def request(self) -> None:
        self._stopped = True

    def requested(self) -> bool:
        now = time.monotonic()
        if not self._stopped and now - self._checked_at >= STOP_POLL_SECONDS:
            self._checked_at, self._stopped = now, self._archive.stop_requested()
        return self._stopped


@dataclass(slots=True, eq=False)
class ArchivedMessage:
    """A message of the archive as a mover's delivery. Its lock never expires."""

    facts: Facts
    partition_key: str | None
    ordinal: int
    row: RowKey
    shard: Shard
    content: Content | None
    payload: bytes
    lock_until: float = float("inf")
    key: Key = NO_KEY


class MessageReader(Protocol):
    """One task's messages, in order. `exhausted` is whether no more will come."""

    exhausted: bool

    def read(self, max_rows: int, max_bytes: int) -> list[ArchivedMessage]:
        """Return the next messages, maybe none. Raises SbpairError. Runs in a thread."""


class ShardReader:
    """The rows of one task as messages without an outcome, each shard in order."""

    def __init__(self, batches: Iterator[Any], archive: Archive, ledger: Ledger, *, digests: bool = False) -> None:
        self.exhausted = False
        self._rows = column_rows(batches, COLUMNS)
        self._segments = SegmentReader(archive, segment_check(archive)) if digests else SegmentReader(archive)
        self._ledger = ledger
        self._decoders: dict[str, Decoder] = {}
        self._count = 0
        self._shard, self._ended = -1, KeySet()

    def read(self, max_rows: int, max_bytes: int) -> list[ArchivedMessage]:
        """Return the messages of the next rows, maybe none. Raises StateRefused, MachineLacks."""
        shards, positions = self._next_positions(max_rows, max_bytes)
        rows = []
        for shard, (key, message) in zip(shards, self._segments.read(positions), strict=True):
            if shard != self._shard:
                self._shard, self._ended = shard, self._ledger.ended_keys(shard)
            if key not in self._ended:
                rows.append((key, shard, message))
        return self._messages(rows)

    def _next_positions(self, max_rows: int, max_bytes: int) -> tuple[list[int], list[RowPosition]]:
        shards, positions = list[int](), list[RowPosition]()
        size = 0
        for shard, segment, position, row_bytes in self._rows:
            shards.append(shard)
            positions.append((segment, position))
            size += row_bytes
            if len(positions) >= max_rows or size >= max_bytes:
                break
        else:
            self.exhausted = True
        return shards, positions

    def _messages(self, rows: list[tuple[RowKey, int, bytes]]) -> list[ArchivedMessage]:
        """Decode rows, those of one queue together, and return them in their order."""
        indices_of: defaultdict[str, list[int]] = defaultdict(list)
        for index, (key, _, _) in enumerate(rows):
            indices_of[key[0]].append(index)
        decoded: dict[int, Decoded] = {}
        for queue, indices in indices_of.items():
            decoder = self._decoders.get(queue) or self._decoders.setdefault(queue, Decoder(queue))
            payloads = [rows[index][2] for index in indices]
            if is_dead_letter_path(queue):
                payloads = list(map(dead_letters.without_cause, payloads))
            decoded.update(zip(indices, decoder.decode(payloads), strict=True))
        return [self._message(decoded[index], *row) for index, row in enumerate(rows)]

    def _message(self, decoded: Decoded, key: RowKey, shard: int, message: bytes) -> ArchivedMessage:
        facts, content, partition_key, _ = decoded
        if content is None:
            facts = facts._replace(message_id=key[3] or "")
        self._count += 1
        return ArchivedMessage(facts, partition_key, self._count, key, shard, content, message)


class ShardSource:
    """One task's messages for a mover. Each is recorded as held when read. `error` is why no more may be sent.

    `may_refuse` raises once another task may send the messages, and may wait to find out: then that one decides
    on those that cannot arrive.
    """

    queue = "archive"
    service_ms = None

    def __init__(
        self, reader: MessageReader, archive: Archive, ledger: Ledger, may_refuse: Callable[[], Awaitable[None]]
    ) -> None:
        self.stop_requested = StopPoll(archive).requested
        self._may_refuse = may_refuse
        self.error: SbpairError | None = None
        self._ledger = ledger
        self._reader = reader
        self._read_ahead: deque[ArchivedMessage] = deque()
        # Accepted by the primary, and not in the ledger yet.
        self._accepted: list[ArchivedMessage] = []
        self._accepted_since = 0.0

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._reader.exhausted and not self._read_ahead

    async def receive(self, limit: int, *, seconds: float = 0.0) -> list[ArchivedMessage]:
        """Return the next messages without an outcome; [] at the end."""
        del seconds
        if not self._read_ahead and not self._reader.exhausted:
            try:
                # In a thread: Spark may take its time, and heartbeats are to be answered.
                self._read_ahead.extend(await asyncio.to_thread(self._read))
            except SbpairError as error:
                # Messages on their way are still waited for, and recorded if possible.
                self.error = error
        return [self._read_ahead.popleft() for _ in range(min(limit, len(self._read_ahead)))]

    def _read(self) -> list[ArchivedMessage]:
        found = self._reader.read(MAX_CHUNK, CHUNK_BYTES)
        if found:
            self._ledger.hold({each: entry_of(each) for each in found})
        return found

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Take messages that the primary has accepted. The ledger gets them in chunks; until then they are held."""
        now = time.monotonic()
        if not self._accepted:
            self._accepted_since = now
        self._accepted += cast("Sequence[ArchivedMessage]", messages)
        if len(self._accepted) < MAX_CHUNK and now - self._accepted_since < CHUNK_SECONDS:
            return []
        error = await self.write_accepted()
        return [(message, error) for message in messages] if error is not None else []

    async def write_accepted(self) -> SbpairError | None:
        """Record accepted messages, then hold them no longer. Returns the error if that fails, and sets `error`."""
        messages, self._accepted = self._accepted, []
        by_shard: defaultdict[Shard, list[Entry]] = defaultdict(list)
        for message in messages:
            by_shard[message.shard].append(entry_of(message))
        try:
            for shard, entries in by_shard.items():
                await asyncio.to_thread(self._ledger.write, LEDGER, shard, entries)
        except SbpairError as error:
            self.error = error
            return error
        self._ledger.release(messages)
        return None

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None:
        archived = cast("ArchivedMessage", message)
        entry = entry_of(archived)._replace(message=archived.payload)
        try:
            await self._may_refuse()
            await self._ledger.write_unsent(archived.shard, entry, reason, description)
        except SbpairError as error:
            self.error = error
            raise
        self._ledger.release([archived])

    def close(self) -> None:
        """Write doubtful entries, and remove the record of held messages: none is held any more."""
        self._ledger.write_doubtful()
        self._ledger.clear_held()

    # Parts of the protocol without a meaning for an archive.

    def interrupt(self) -> None:
        self._reader.exhausted = True
        self._read_ahead.clear()

    async def stop(self) -> None:
        self.interrupt()

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Forget messages: they stay in the archive."""
        self._ledger.release(messages)
        return []

    async def renew(self, messages: Sequence[ReceivedMessage]) -> None:
        del messages


def entry_of(message: ArchivedMessage) -> Entry:
    return Entry(message.row, message.facts.path)


def send_shards(job: TaskJob, batches: Iterator[Any]) -> list[dict[str, Any]]:
    """Send the rows of whole shards, each shard in order, and return the counts."""
    return [run_in_worker(send_batches(job, batches))._asdict()]


async def send_batches(job: TaskJob, batches: Iterator[Any]) -> TaskCounts:
    """Send the rows of whole shards. Raises if none can be sent, or the ledger cannot be written."""
    archive = job.open()
    ledger = Ledger(archive, job.run.shards, delivery=job.run.delivery)
    lease = TaskLease(archive, job.heartbeat)
    reader = ShardReader(batches, archive, ledger, digests=job.run.digests)
    source = ShardSource(reader, archive, ledger, lease.wait_confirmed)
    await lease.wait_confirmed()
    endpoint = job.destination.endpoint()
    if job.run.options.ttl is TimeToLive.REMAINING:
        await ask_time(endpoint)  # the archive has no locks, which would show it
    context = replace(move_context(job, lease, ledger), now_ms=endpoint.clock.now_ms)
    async with open_destination(RawDestination, endpoint) as primary:
        waiting = await send_source(source, primary, context)
    return TaskCounts(note=note_of(context.tally, waiting))


def note_of(tally: Tally, waiting: Sequence[BackingOff]) -> str | None:
    """Return why destinations took no more, and what topics discarded, for the user; None if neither."""
    notes = [f"{each.destination} took no more: {each.reason}; {each.hint or 'resume the run'}" for each in waiting]
    notes += [f"{count} sent to {name} matched no subscription" for name, count in tally.discarded.items()]
    notes += [f"whether {name} kept {count} is not known" for name, count in tally.not_evaluated.items()]
    if tally.topics_unchecked:
        notes.append(f"subscriptions of topics were not checked: {tally.topics_unchecked}")
    return "\n".join(notes[:MAX_NOTES]) or None


async def send_source(source: ShardSource, primary: RawDestination, context: MoveContext) -> list[BackingOff]:
    """Send until the end, a stop, or until all destinations that remain back off: return those. Closes the source.

    Raises if no message can be sent, or the ledger cannot be written.
    """
    try:
        waiting = await _move(source, primary, context)
    finally:
        await source.write_accepted()
    if source.error is not None:
        raise source.error
    source.close()
    return waiting


def move_context(job: TaskJob, lease: TaskLease, ledger: Ledger) -> MoveContext:
    """Return the context of a mover that has a ledger instead of a journal."""
    options = job.run.options
    rate_limiter, most = None, 0 if options.skip_missing else MAX_MISSING
    if options.rate is not None:
        rate = options.rate / max(job.tasks, job.senders)
        rate_limiter = RateLimiter(asyncio.get_running_loop().time(), rate=rate)
    return MoveContext(
        namespace=job.run.pair["secondary"],
        tally=LedgerTally(ledger),
        journal=Journal(may_send=lease.check),
        ordered=options.ordered,
        ttl=options.ttl,
        rate_limiter=rate_limiter,
        missing=MissingDestinations(None if options.allow_missing else most, options.delivery.to or "primary"),
        renames=options.delivery.renames,
    )


class LedgerTally(Tally):
    """A tally that lists in the ledger each message sent without an answer: it may arrive twice."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def doubtful(self, named: NamedMessage) -> None:
        key = (named.queue, named.sequence_number, 0, named.message_id)
        self._ledger.add_doubtful(Entry(key, named.destination, named.reason))


async def _move(source: ShardSource, primary: RawDestination, context: MoveContext) -> list[BackingOff]:
    async with asyncio.TaskGroup() as tasks:
        mover = Mover(source, primary, tasks, context)
        while mover.fatal is None and source.error is None and not source.stop_requested():
            if mover.room == 0 or source.ended:
                if mover.stuck(MAX_DESTINATION_FAILURES) or (source.ended and not mover.held):
                    break
                await mover.wait_changed(WAIT_SECONDS)
                continue
            messages = await source.receive(mover.room)
            if messages:
                mover.accept(messages)
        waiting = mover.backing_off()
        await mover.finish()
        mover.abandon_all()
    if mover.fatal is not None:
        raise mover.fatal
    return waiting


def mark_deduplicated(job: TaskJob, batches: Iterator[Any]) -> Sequence[dict[str, Any]]:
    """Record the duplicates whose first copy was accepted: a resume sends the others.

    The rows are those of DUPLICATE_COLUMNS, in DUPLICATE_ORDER.
    """
    ledger = Ledger(job.open(), job.run.shards, delivery=job.run.delivery)
    by_shards = groupby(column_rows(batches, DUPLICATE_COLUMNS), key=lambda row: (row[len(KEY) + 1], row[-1]))
    for (shard, first_shard), rows in by_shards:
        ended, accepted = ledger.ended_keys(shard), ledger.ended_keys(first_shard, [LEDGER])
        entries: list[Entry] = []
        for *key_parts, destination, _, queue, number, enqueued_at, message_id, _ in rows:
            key = tuple(key_parts)
            if key not in ended and (queue, number, enqueued_at, message_id) in accepted:
                entries.append(Entry(key, destination, DUPLICATE_REASON))
        for start in range(0, len(entries), MAX_DUPLICATES):
            ledger.write(DEDUPLICATED, shard, entries[start : start + MAX_DUPLICATES])
    return ()


def count_discards(job: TaskJob, topics: Sequence[str], batches: Iterator[Any]) -> list[dict[str, Any]]:
    """Return for each of these topics how many of the rows to send it takes and discards, as far as that is known."""
    found = run_in_worker(_count_taken(job, topics, batches)).items()
    return [
        {"topic": name, "messages": taken.total(), "discarded": taken[False], "not_evaluated": taken[None]}
        for name, taken in found
    ]


async def _count_taken(job: TaskJob, topics: Sequence[str], batches: Iterator[Any]) -> dict[str, Counter[bool | None]]:
    from sbpair.azure.destinations import open_destinations
    from sbpair.move.topic_guard import takes  # neither is needed by a send

    archive, endpoint = job.open(), job.destination.endpoint()
    reader = ShardReader(
        batches, archive, Ledger(archive, job.run.shards, delivery=job.run.delivery), digests=job.run.digests
    )
    counts = {name.lower(): Counter[bool | None]() for name in topics}
    async with open_destinations(endpoint) as control:
        filters = {name: (await control.get(name)).topic for name in counts}
    now_ms = endpoint.clock.now_ms()
    route = router(job.run.options.ttl, lambda: now_ms, renames=job.run.delivery.renames)
    while not reader.exhausted:
        for message in reader.read(MAX_CHUNK, CHUNK_BYTES):
            [send] = route([message.facts])
            name = send.destination.lower() if isinstance(send, Send) else ""
            topic = filters.get(name)
            if topic is not None and isinstance(send, Send):
                payload = b"".join(cast("Sendable", message).content.restore(send, now_ms)[1])
                counts[name][takes(topic, payload)] += 1
    return counts
