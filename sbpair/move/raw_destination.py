"""The sending side of the engine: links to destinations, and batches of raw messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from sbpair.amqp.types import Map
from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.amqp_client.limits import ANSWER_SECONDS
from sbpair.amqp_client.raw_links import PendingSettlement, RawSender
from sbpair.errors import InDoubt, SbpairError, TimedOut, Unreachable
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import Endpoint
from sbpair.move.interface import Batch, RoutedMessage, SendOutcome
from sbpair.move.message.batches import BatchKey, first_members, join_members

MAX_SENDERS = 200
"""How many links to destinations a worker keeps open."""

ENTRY_IDS = "message-id", "session-id", "partition-key"
MAX_SCHEDULED, MAX_REQUEST_BYTES = 100, 240_000
"""How many messages a request schedules, and their size: a management node takes no more than 256 KB on Standard."""

_NOT_CONNECTED = Unreachable("not connected to the namespace of the destination", hint="retry in a minute")


class RawDestinationLink:
    """An open link to one destination. Once `spent`, by a send without an outcome, a new link replaces it."""

    def __init__(self, sender: RawSender, clock: NamespaceClock) -> None:
        self._clock = clock
        self.sender = sender
        self.spent = False

    @property
    def credit(self) -> int:
        return self.sender.credit

    def encode(self, routed: Sequence[RoutedMessage]) -> Batch:
        at_ms = self._clock.now_ms()
        restored = (message.content.restore(send, at_ms) for message, send, _ in routed)
        members = first_members(restored, self.sender.max_batch_size)
        count = len(members)
        if count == 1:
            return Batch(1, b"".join(members[0][1]))
        return Batch(count, *join_members(_envelope(routed[:count]), members))

    def send(self, batch: Batch) -> SendOutcome:
        return partial(self._outcome, self.sender.send_nowait(batch.payload, message_format=batch.format))

    async def deliver(self, payload: bytes, message_format: int, seconds: float) -> None:
        """Send one encoded delivery, and wait for its outcome. Raises InDoubt without one."""
        await self._outcome(self.sender.send_nowait(payload, message_format=message_format), seconds)

    async def _outcome(self, settlement: PendingSettlement, seconds: float = ANSWER_SECONDS) -> None:
        try:
            await settlement.outcome(seconds)
        except InDoubt:
            self.spent = True
            raise


def _envelope(routed: Sequence[RoutedMessage]) -> bytes:
    """Encode the key that all members share; b"" if they have several."""
    key = routed[0].partition_key
    if key is None or any(each.partition_key != key for each in routed):
        return b""
    return BatchKey(routed[0].send.session_id, routed[0].message.partition_key).encode()


class SchedulingLink(RawDestinationLink):
    """Schedules messages by requests: their answers have the new sequence numbers, which those of sends have not."""

    def __init__(self, sender: RawSender, wire: AmqpClient) -> None:
        super().__init__(sender, wire.endpoint.clock)
        self._wire = wire

    def encode(self, routed: Sequence[RoutedMessage]) -> Batch:
        """Encode a request; a message that is too large for one is sent."""
        entries, left = list[Map](), MAX_REQUEST_BYTES
        for message, send, _ in routed[:MAX_SCHEDULED]:
            size, parts = message.content.restore(send, self._clock.now_ms())
            left -= size
            if left < 0:
                break
            ids = message.facts.message_id, message.facts.session_id, message.partition_key
            entry = [pair for pair in zip(ENTRY_IDS, ids, strict=True) if pair[1] is not None]
            entries.append(Map([*entry, ("message", b"".join(parts))]))
        return Batch(len(entries), b"", entries=entries) if entries else super().encode(routed[:1])

    def send(self, batch: Batch) -> SendOutcome:
        return partial(self._schedule, batch) if batch.entries else super().send(batch)

    async def _schedule(self, batch: Batch) -> None:
        try:
            batch.numbers = await self._wire.schedule(self.sender.address, batch.entries)
        except (TimedOut, Unreachable) as error:
            raise InDoubt(error.message, hint=error.hint) from error


class RawDestination:
    """A connection to the namespace of the destinations, opened again when lost, with one link per destination.

    With `schedules`, messages state when they are due, and get sequence numbers.
    """

    def __init__(self, endpoint: Endpoint, *, get_token: GetToken | None = None, schedules: bool = False) -> None:
        self._schedules = schedules
        self._connect = partial(connect, endpoint, get_token=get_token)
        self._wire: AmqpClient | None = None
        self._aborted: SbpairError | None = None
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._links: dict[str, RawDestinationLink] = {}

    async def ready(self, destination: str) -> RawDestinationLink:
        link = await self._link(destination)
        await link.sender.ready(seconds=ANSWER_SECONDS)
        return link

    async def check(self) -> None:
        """Connect and sign in, unless connected. Raises AccessError, Unavailable."""
        await self._connected()

    @property
    def broken(self) -> SbpairError | None:
        """Why the connection is lost; None while connected."""
        return _NOT_CONNECTED if self._wire is None else self._wire.error

    async def wait_lost(self) -> None:
        if self._wire is not None:
            await self._wire.lost()

    def abort(self, error: SbpairError) -> None:
        """End the connection for good: pending calls raise `error`."""
        self._aborted = error
        if self._wire is not None:
            self._wire.abort(error)

    async def close(self) -> None:
        await self._open.aclose()

    async def _link(self, destination: str) -> RawDestinationLink:
        # Service Bus compares paths without regard to case: one link serves every spelling.
        name = destination.lower()
        wire = await self._connected()
        link = self._links.pop(name, None)
        if link is None or link.spent or link.sender.error is not None:
            if link is not None and link.sender.idle:
                link.sender.close()
            self._make_room()
            sender = await wire.sender(destination)
            link = SchedulingLink(sender, wire) if self._schedules else RawDestinationLink(sender, wire.endpoint.clock)
        self._links[name] = link
        return link

    def _make_room(self) -> None:
        if len(self._links) >= MAX_SENDERS:
            name = next((name for name, link in self._links.items() if link.sender.idle), None)
            if name is not None:
                self._links.pop(name).sender.close()

    async def _connected(self) -> AmqpClient:
        # Without a turn of the loop if connected: `Destination.ready` must not yield for nothing.
        if self._wire is not None and self._wire.error is None:
            return self._wire
        async with self._opening:
            if self._aborted is not None:
                raise self._aborted
            if self._wire is None or self._wire.error is not None:
                self._links.clear()
                self._wire = None
                await self._open.aclose()
                self._wire = await self._open.enter_async_context(self._connect())
            return self._wire
