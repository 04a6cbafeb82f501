"""Sends the messages of a stream through a paired sender, in their order, and accounts for each of them.

The law: what is sent is a prefix. The first message that cannot be sent ends it: one number says where to go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.azure.data_errors import is_answer, translate_data_errors
from sbpair.errors import ExitCode, SbpairError, Unavailable, UsageError
from sbpair.failover.client_aio import AsyncFailoverClient
from sbpair.failover.events import SenderEvent, SendInDoubt
from sbpair.failover.failover_send import Delivered, OnFailure
from sbpair.failover.sdk_messages import MIN_LIMIT_BYTES, Message, SizedBatch, ids_of
from sbpair.message_io.message_json import key_of
from sbpair.move.rate_limit import RateLimiter

if TYPE_CHECKING:
    from sbpair.failover.client_aio import AsyncPairedSender
    from sbpair.message_io.line_reader import LineReader, SourceLine
    from sbpair.model.pair import Pair

Result = TypeVar("Result")
FeedEvent: TypeAlias = Delivered | SenderEvent
OnEvent = Callable[[FeedEvent], object]

DRAIN_SECONDS = 3.0
"""How long an outbox may stay as full as it is before nobody waits for it any more."""

SEND_SECONDS = 60.0
"""What one send has beside the failover interval, which it may have to wait for."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """How many messages came to which end: `messages` is the sum of the five that follow.

    `in_doubt` were sent last and never answered; `failed` were refused. All before line `next_line` need not be sent
    again. `error` is what ended it, and `line` where, where it did not come to its end. `doubtful` are the ids of those
    that were delivered, and sent again after an attempt that was never answered: they may arrive twice.
    """

    messages: int
    delivered: Delivered
    in_doubt: int
    failed: int
    next_line: int
    seconds: float
    error: SbpairError | None = None
    line: int | None = None
    stopped: bool = False
    doubtful: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or the error's own; 3 where some messages were sent and what came then will not pass by itself."""
        if self.error is None:
            return 0
        partial = isinstance(self.error, UsageError) and _sum(self.delivered)
        return ExitCode.PARTIAL_OR_FINDINGS if partial else self.error.exit_code


async def run(
    pair: Pair,
    entity: str,
    reader: LineReader,
    *,
    rate: float | None = None,
    on_failure: OnFailure = "wait",
    seconds: float | None = None,
    to_backlog: bool = False,
    outbox: Path | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    on_event: OnEvent = lambda _event: None,
) -> SendResult:
    """Send what `reader` reads to a queue or topic of the primary, or into the backlog while that is away.

    `rate` is messages a second at most. `seconds` are what each send has; by default a minute, and the failover
    interval. With `to_backlog`, all goes to the backlog, whatever the primary does; with an `outbox`, a file, into that
    while neither side takes it, to be delivered by whoever opens the file. Once `stop` is set, what is in hand
    is finished and nothing else is begun; once `hurry` is too, that is given up, in doubt.

    `on_event` is told what a paired client tells, and how many have been delivered so far whenever it are more. Raises
    NameInvalid, and what keeps an outbox from being used; what goes wrong with a line, or a send, is in what it
    answers.
    """
    doubtful: dict[str, None] = {}

    def heard(event: SenderEvent) -> None:
        if isinstance(event, SendInDoubt):
            doubtful.update(dict.fromkeys(event.message_ids))
        on_event(event)

    timeout = SEND_SECONDS + pair.failover_interval if seconds is None else seconds
    async with AsyncFailoverClient(
        pair, on_failure=on_failure, timeout=timeout, on_event=heard, outbox=outbox
    ) as client:
        if to_backlog:
            client.force_failover(entity)
        pace = RateLimiter(time.monotonic(), rate=rate)
        async with client.get_queue_sender(entity) as sender:
            feed = _LineSender(sender, reader, pace, stop or asyncio.Event(), hurry or asyncio.Event(), on_event)
            fed = await feed.run()
            await _drained(client, stop or asyncio.Event())
    return replace(fed, doubtful=tuple(each for each in doubtful if each not in feed.undelivered))


async def _drained(client: AsyncFailoverClient, stop: asyncio.Event) -> None:
    """Wait while the outbox is being emptied: a client that is closed delivers nothing."""
    left = -1
    while client.outbox is not None and client.outbox.entities() and len(client.outbox) != left:
        left = len(client.outbox)
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await stop.wait()
                return
        except TimeoutError:
            continue


class LineBatch(NamedTuple):
    """What is sent at once, and the lines that it is made of."""

    lines: list[SourceLine]
    content: Message | SizedBatch


@dataclass
class _LineSender:
    sender: AsyncPairedSender
    reader: LineReader
    pace: RateLimiter
    stop: asyncio.Event
    hurry: asyncio.Event
    on_event: OnEvent
    clock: Callable[[], float] = time.monotonic

    async def run(self) -> SendResult:
        started = self.clock()
        self.fed = SendResult(0, Delivered(), 0, 0, self.reader.skip + 1, 0.0)
        self.undelivered: frozenset[str] = frozenset()
        try:
            while not self._ended():
                lines = await self._unless(self.stop, self.reader.take())
                if lines == []:
                    # Empty lines at the end, too, are behind us.
                    self.fed = replace(self.fed, next_line=max(self.fed.next_line, self.reader.seen + 1))
                    break
                for parcel in parcels(lines or ()):
                    await self._paced(len(parcel.lines))
                    if self._ended():
                        break
                    await self._send(parcel)
        except SbpairError as error:
            self.fed = replace(self.fed, error=error)
        return replace(self.fed, seconds=self.clock() - started, stopped=self.stop.is_set())

    def _ended(self) -> bool:
        return self.stop.is_set() or self.fed.error is not None

    async def _paced(self, messages: int) -> None:
        if seconds := self.pace.reserve(self.clock(), messages):
            await self._unless(self.stop, asyncio.sleep(seconds))

    async def _send(self, parcel: LineBatch) -> None:
        before, answered = _sum(self.sender.delivered), False
        error: SbpairError | None = None
        try:
            with translate_data_errors(f"sending to {self.sender.entity_name!r}"):
                if await self._unless(self.hurry, self._sending(parcel)) is None:
                    error = Unavailable("it was not waited for any more")
        except SbpairError as caught:
            error, answered = caught, is_answer(caught.__cause__) or not caught.retriable
        self._count(parcel.lines, _sum(self.sender.delivered) - before, error, answered=answered)

    async def _sending(self, parcel: LineBatch) -> bool:
        await self.sender.send_messages(parcel.content)
        return True

    def _count(self, lines: Sequence[SourceLine], done: int, error: SbpairError | None, *, answered: bool) -> None:
        left = len(lines) - done
        fed = replace(self.fed, messages=self.fed.messages + len(lines), delivered=self.sender.delivered)
        if done:
            fed = replace(fed, next_line=lines[done - 1].number + 1)
        if error is not None:
            failed, in_doubt = (left, 0) if answered else (0, left)
            line = lines[done].number if left else None
            self.undelivered = frozenset(ids_of(each.message for each in lines[done:]))
            fed = replace(fed, error=error, line=line, failed=failed, in_doubt=in_doubt)
        self.fed = fed
        self.on_event(fed.delivered)

    async def _unless(self, event: asyncio.Event, doing: Awaitable[Result]) -> Result | None:
        """None where the event comes first; what was being done is cancelled then."""
        task, waiting = asyncio.ensure_future(doing), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, waiting):
                each.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)


def parcels(lines: Sequence[SourceLine]) -> Iterator[LineBatch]:
    """What is sent at once: neighbours of one session or partition key, as many as fit any tier's batch."""
    for _key, same in groupby(lines, lambda line: key_of(line.message)):
        inside: list[SourceLine] = []
        batch = SizedBatch(MIN_LIMIT_BYTES)
        for line in same:
            if _fits(batch, line):
                inside.append(line)
                continue
            if inside:
                yield _parcel(inside, batch)
            inside, batch = [line], SizedBatch(MIN_LIMIT_BYTES)
            if not _fits(batch, line):
                # Alone it may still be let through.
                yield LineBatch(inside, line.message)
                inside = []
        if inside:
            yield _parcel(inside, batch)


def _parcel(inside: list[SourceLine], batch: SizedBatch) -> LineBatch:
    return LineBatch(inside, batch if len(inside) > 1 else inside[0].message)


def _fits(batch: SizedBatch, line: SourceLine) -> bool:
    try:
        batch.add_message(line.message)
    except MessageSizeExceededError:
        return False
    return True


def _sum(delivered: Delivered) -> int:
    return delivered.primary + delivered.backlog + delivered.outbox
