"""Sending of a stream of messages with a paired sender, in order, with a result that accounts for each.

Invariant: the accepted messages are a prefix. The first message that cannot be sent ends the run, so one line number
is enough to continue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from sbpair.amqp.message import BATCH_FORMAT, batch_members
from sbpair.amqp_client.stream import open_stream
from sbpair.azure.credentials import open_tokens
from sbpair.errors import EntityMissing, ExitCode, InDoubt, SbpairError, Silent, Unavailable, UsageError
from sbpair.failover.events import SenderEvent, SendInDoubt
from sbpair.failover.failover_send import Delivered, OnFailure
from sbpair.failover.raw_send import RawFailoverClient, RawFailoverSend, RawMessage, message_name
from sbpair.message_io.line_reader import LineReader
from sbpair.model.document import SPREAD, Failing, document
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.move.failure_latch import set_within
from sbpair.move.message.batches import batches, encode_batch
from sbpair.move.rate_limit import RateLimiter
from sbpair.move.raw_destination import RawDestination
from sbpair.operating_system.read_ahead import ReadAhead, read_chunks

log = logging.getLogger(__name__)

Result = TypeVar("Result")
SendEvent: TypeAlias = Delivered | SenderEvent
OnEvent = Callable[[SendEvent], object]

PROVISION_HINT = "create the backlog queues with sbpair provision"

DRAIN_SECONDS = 3.0
"""How long to wait for an outbox that delivers nothing."""

FIRST_SEND_SECONDS = 1.0
"""How long the first message waits before both sides are checked for an answer."""

SEND_SECONDS = 60.0
"""Time of one send in addition to the failover interval, which it may have to wait for."""


@dataclass(frozen=True, slots=True)
class SendFailure(Failing):
    """Why a run ended early."""

    line: Annotated[int | None, "Line of the message"]
    error: SbpairError


@document("sbpair/send/1")
class SendResult:
    """The receipt of sbpair send: messages = primary + backlog + outbox + in_doubt + failed.

    `in_doubt` were sent last and never answered; `failed` were refused, or never sent. All lines before `next_line` are
    accepted. `error` ended an incomplete run, at `line`. `doubtful` are the ids of delivered messages that were sent
    again after an unanswered attempt: they may arrive twice.
    """

    entity: Annotated[str, "Queue or topic"]
    messages: Annotated[int, "Messages that were tried"]
    delivered: Annotated[Delivered, SPREAD]
    in_doubt: Annotated[int, "Sent last, without an answer"]
    failed: Annotated[int, "Refused"]
    next_line: Annotated[int, "First line that is not accepted yet"]
    seconds: Annotated[float, "Duration"]
    error: SbpairError | None = None
    line: int | None = None
    stopped: Annotated[bool, "Whether a signal ended it"] = False
    doubtful: Annotated[tuple[str, ...], "Ids of possible duplicates"] = ()

    @property
    def failure(self) -> Annotated[SendFailure | None, "Why it ended early; null if it did not"]:
        return SendFailure(self.line, self.error) if self.error else None

    @property
    def exit_code(self) -> int:
        """0, the error's own, or 3 if some messages were accepted before a UsageError."""
        if self.error is None:
            return 0
        partial = isinstance(self.error, UsageError) and self.delivered.total
        return ExitCode.PARTIAL_OR_FINDINGS if partial else self.error.exit_code


@dataclass(frozen=True, slots=True)
class LineStream:
    """The messages of `lines`, to be sent at most `rate` a second.

    `stop` finishes the current send and starts no other; `hurry` abandons it: it is in doubt, if it was sent.
    `on_event` is called with the events of a paired client and each new count of delivered messages.
    """

    lines: SourceLines
    rate: float | None
    stop: asyncio.Event
    hurry: asyncio.Event
    on_event: OnEvent


async def send_lines(
    pair: Pair,
    entity: str,
    stream: LineStream,
    *,
    on_failure: OnFailure = "wait",
    seconds: float | None = None,
    to_backlog: bool = False,
    outbox: Path | None = None,
    drain_seconds: float = DRAIN_SECONDS,
) -> SendResult:
    """Send a stream to a queue or topic of the primary, or to the backlog while that is unavailable.

    `seconds` is the time of each send, by default a minute and the failover interval. `to_backlog` sends everything to
    the backlog. `outbox` is a file for messages that neither side accepts, delivered by the next client that opens it.
    At the end, the run waits until the outbox delivers nothing for `drain_seconds`. Raises NameInvalid, and the errors
    of an outbox; errors of a line or a send are in the result.
    """
    doubtful: dict[str, None] = {}

    def listener(event: SenderEvent) -> None:
        if isinstance(event, SendInDoubt):
            doubtful.update(dict.fromkeys(event.message_ids))
        stream.on_event(event)

    timeout = SEND_SECONDS + pair.failover_interval if seconds is None else seconds
    async with RawFailoverClient(
        pair, on_failure=on_failure, timeout=timeout, on_event=listener, outbox=outbox
    ) as client:
        if to_backlog:
            client.force_failover(entity)
        sides = (pair.secondary,) if to_backlog else (pair.primary, pair.secondary)
        line_sender = _LineSender(client.sender(entity), stream, sides, timeout)
        checking = asyncio.create_task(_end_if_silent(line_sender, sides, may_end=outbox is None))
        try:
            result = await line_sender.run()
        finally:
            checking.cancel()
        await _wait_for_outbox(client, stream.stop, drain_seconds)
    return replace(result, doubtful=tuple(each for each in doubtful if each not in line_sender.undelivered))


async def send_lines_to(endpoint: Endpoint, entity: str, stream: LineStream, *, seconds: float) -> SendResult:
    """Send a stream to an entity of one namespace, as `send_lines` does, without failover.

    Messages count as delivered to the primary. Each is tried once. Raises EntityMissing, AccessError and Unavailable
    before the first one.
    """
    async with open_direct(endpoint, entity) as sender:
        return await _LineSender(sender, stream, (endpoint,), seconds).run()


@asynccontextmanager
async def open_direct(endpoint: Endpoint, entity: str) -> AsyncIterator[DirectSender]:
    """Send to an entity of one namespace. Raises EntityMissing, AccessError, Unavailable."""
    async with open_tokens() as get_token:
        destination = RawDestination(endpoint, get_token=get_token)
        try:
            await destination.ready(entity)
            yield DirectSender(entity, destination)
        finally:
            await destination.close()


class DirectSender:
    """Sends to one namespace, with the part of a failover sender that a stream of lines needs."""

    backlog_queue = None

    def __init__(self, entity: str, destination: RawDestination) -> None:
        self.entity_name = entity
        self.delivered = Delivered()
        self.unanswered = False
        self._destination = destination

    async def check_sizes(self, payload: bytes, message_format: int, seconds: float) -> None:
        """Accept any size: no backlog has to take it."""

    async def deliver(self, payload: bytes, message_format: int, seconds: float) -> None:
        """Send one message, or a batch, once. Raises InDoubt without an answer."""
        self.unanswered = False
        link = await self._destination.ready(self.entity_name)
        try:
            await link.deliver(payload, message_format, seconds)
        except InDoubt:
            self.unanswered = True
            raise
        number = len(batch_members(payload)) if message_format == BATCH_FORMAT else 1
        self.delivered = replace(self.delivered, primary=self.delivered.primary + number)


async def _end_if_silent(sending: _LineSender, sides: Sequence[Endpoint], *, may_end: bool) -> None:
    """Report the sides that do not answer while the first message waits. If `may_end` and none answers, end the run."""
    await sending.waiting.wait()
    await asyncio.sleep(FIRST_SEND_SECONDS)
    found = await asyncio.gather(*map(_answers, sides)) if not sending.sender.delivered.total else []
    silent = [error for error in found if error is not None]
    for error in silent:
        log.warning("%s", error.message)
    if may_end and silent and len(silent) == len(sides) and not sending.sender.delivered.total:
        sending.unreachable = Silent("; ".join(error.message for error in silent), hint=silent[0].hint)
        sending.stream.hurry.set()


async def _answers(side: Endpoint) -> Silent | None:
    try:
        await (await open_stream(side, "sbpair-send")).close()
    except Silent as error:
        return error
    except SbpairError as error:
        log.info("%s", error.message)
    return None


async def _wait_for_outbox(client: RawFailoverClient, stop: asyncio.Event, seconds: float) -> None:
    """Wait while the outbox is emptied, because a closed client delivers nothing."""
    left = -1
    while client.outbox is not None and client.outbox.entities() and len(client.outbox) != left:
        left = len(client.outbox)
        if await set_within(stop, seconds):
            return


Batch: TypeAlias = "tuple[tuple[bytes, int], list[SourceLine]]"
"""The payload of a delivery and its message-format, and its lines."""


def line_batches(lines: Sequence[SourceLine], limit: int) -> Iterator[Batch]:
    """Yield batches of up to `limit` adjacent lines with the same session and partition key that fit every tier."""
    for start in range(0, len(lines), limit):
        members = iter(lines[start : start + limit])
        for batch in batches([each.message for each in lines[start : start + limit]], SMALLEST_TIER_BYTES):
            yield encode_batch(batch), list(islice(members, len(batch)))


@dataclass
class _LineSender:
    sender: RawFailoverSend | DirectSender
    stream: LineStream
    sides: Sequence[Endpoint]
    seconds: float
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    unreachable: Silent | None = None
    undelivered: frozenset[str] = frozenset()

    async def run(self) -> SendResult:
        started, source, stop = time.monotonic(), self.stream.lines, self.stream.stop
        groups = ReadAhead(source, MAX_GROUPS_AHEAD)
        limiter = RateLimiter(started, rate=self.stream.rate)
        self.result = SendResult(self.sender.entity_name, 0, Delivered(), 0, 0, source.skip + 1, 0.0)
        try:
            while not self._ended():
                lines = await self._unless(stop, anext(groups, []))
                if lines == []:
                    # Empty lines at the end are done as well.
                    self.result = replace(self.result, next_line=max(self.result.next_line, source.seen + 1))
                    break
                for delivery, members in line_batches(lines or (), limiter.max_batch(started)):
                    if seconds := limiter.reserve(time.monotonic(), len(members)):
                        await set_within(stop, seconds)
                    if self._ended():
                        break
                    await self._send(delivery, members)
        except SbpairError as error:
            self.result = replace(self.result, error=error)
        return replace(self.result, seconds=time.monotonic() - started, stopped=stop.is_set())

    def _ended(self) -> bool:
        return self.stream.stop.is_set() or self.result.error is not None

    async def _send(self, delivery: tuple[bytes, int], lines: list[SourceLine]) -> None:
        before, refused = self.sender.delivered.total, False
        error: SbpairError | None = None
        self.waiting.set()
        try:
            if await self._unless(self.stream.hurry, self._deliver(delivery)) is None:
                error = self.unreachable or Unavailable("the wait for an answer was abandoned")
        except SbpairError as caught:
            queue = self.sender.backlog_queue
            if isinstance(caught, EntityMissing):
                if queue is not None and queue in caught.message:
                    caught.hint = PROVISION_HINT
                else:
                    caught.entity, caught.namespace = self.sender.entity_name, self.sides[0].name
            error, refused = caught, not caught.retriable
        answered = refused or not self.sender.unanswered
        self._count(lines, self.sender.delivered.total - before, error, answered=answered)

    async def _deliver(self, delivery: tuple[bytes, int]) -> bool:
        await self.sender.check_sizes(*delivery, self.seconds)
        await self.sender.deliver(*delivery, self.seconds)
        return True

    def _count(self, lines: Sequence[SourceLine], done: int, error: SbpairError | None, *, answered: bool) -> None:
        left = len(lines) - done
        result = replace(self.result, messages=self.result.messages + len(lines), delivered=self.sender.delivered)
        if done:
            result = replace(result, next_line=lines[done - 1].number + 1)
        if error is not None:
            failed, in_doubt = (left, 0) if answered else (0, left)
            line = lines[done].number if left else None
            self.undelivered = frozenset(message_name(each.message.given) for each in lines[done:])
            result = replace(result, error=error, line=line, failed=failed, in_doubt=in_doubt)
        self.result = result
        self.stream.on_event(result.delivered)

    async def _unless(self, event: asyncio.Event, doing: Awaitable[Result]) -> Result | None:
        """Return the result, or None after cancelling it if the event comes first."""
        task, waiting = asyncio.ensure_future(doing), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, waiting):
                each.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)


MAX_GROUP_LINES = 100
MAX_GROUPS_AHEAD = 8

MAX_LINE_BYTES = 150 * 1024 * 1024
"""More than any tier accepts, in any encoding."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The message of one line, counted from 1."""

    number: int
    message: RawMessage


class SourceLines:
    """Iterates over the lines of the descriptor `file`, in groups; skips the first `skip` lines and empty ones.

    `place` is its name in errors. Raises UsageError for an invalid line, after the lines before it, and MachineLacks if
    the file cannot be read.
    """

    def __init__(self, file: int, place: str, reader: LineReader, skip: int) -> None:
        self._file, self._place, self._reader, self.skip = file, place, reader, skip
        self.seen = 0

    def __iter__(self) -> Iterator[list[SourceLine]]:
        group: list[SourceLine] = []
        for complete in _split(read_chunks(self._file, self._place), self._place):
            for line in complete:
                self.seen += 1
                if not line.strip():
                    continue
                try:
                    message = self._reader.read(line, skipped=self.seen <= self.skip)
                except UsageError as error:
                    if group:
                        yield group
                    raise UsageError(f"{self._place}, line {self.seen}: {error.message}", hint=error.hint) from None
                if message is not None:
                    group.append(SourceLine(self.seen, message))
                if len(group) == MAX_GROUP_LINES:
                    yield group
                    group = []
            if group:
                yield group
                group = []


def check_lines(file: int, place: str, reader: LineReader, skip: int, limit: int | None = None) -> None:
    """Raise UsageError for the first invalid line of `limit` groups, and leave the descriptor at its start."""
    for _ in islice(SourceLines(file, place, reader, skip), limit):
        pass
    os.lseek(file, 0, os.SEEK_SET)


def _split(chunks: Iterable[bytes], place: str) -> Iterator[list[bytes]]:
    """Yield the lines that each chunk completes, without their ends. The last line needs no end."""
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*begun, complete[0]))
            begun, size = [], 0
            yield [line.removesuffix(b"\r") for line in complete]
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > MAX_LINE_BYTES:
            raise UsageError(f"{place} has a line of more than {MAX_LINE_BYTES} bytes", hint="give a file of lines")
    if begun:
        yield [b"".join(begun).removesuffix(b"\r")]
