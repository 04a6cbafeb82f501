"""The links to an entity's `$management` node: to the primary's, and to a node of the gateway's while that is away.

Invariant: a request that only the primary can answer is refused with a condition that clients retry. Messages that are
scheduled meanwhile go to the backlog, and have negative numbers, as those of PairedClient.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.link import Delivery, terminus_address
from sbpair.amqp.performatives import Accepted, Error, Rejected
from sbpair.amqp.types import Array, Long, Map
from sbpair.amqp_server.node_links import MANAGEMENT_KEYS, PRE_SETTLED, AmqpRequest, Reply, read_request, write_reply
from sbpair.amqp_server.refusals import ArgumentInvalid, NotAllowed, ServerBusy, ServiceError
from sbpair.errors import ProtocolError, SbpairError, Unreachable
from sbpair.gateway.client_errors import BUSY, refusal
from sbpair.gateway.mirrored_links import MANAGEMENT, MirroredLink, MirroredReceiver, MirroredSender

if TYPE_CHECKING:
    from sbpair.failover.shared_state import SendSide

SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"
REQUEST_CREDIT: Final = 100
STATUS_BUSY: Final = 503


class ManagementLink(MirroredLink):
    """The common part: a link that the gateway accepts itself while the primary is away."""

    @property
    def entity(self) -> str:
        return self.path[: -len(MANAGEMENT)]

    async def attach(self) -> None:
        gateway = self._owner.gateway
        if gateway.side_for(self.entity) != "backlog":
            try:
                async with asyncio.timeout(gateway.attach_seconds):
                    await super().attach()
            except TimeoutError:
                pass
            except SbpairError as error:
                if not gateway.failover.policy.counts(error):
                    raise
            else:
                return
        if not self.is_over:
            self.accept_here()
            self._output.flush_soon()

    def accept_here(self) -> None:
        """Accept the client's link without the primary."""


class ManagementReplies(ManagementLink, MirroredReceiver):
    """A link on which a client receives replies."""

    _sent = 0

    def accept_here(self) -> None:
        self._link.accept(snd_settle_mode=PRE_SETTLED)

    def on_flow(self) -> None:
        super().on_flow()
        if self.twin is None:
            self._drained()

    @property
    def address(self) -> str | None:
        """The name by which requests ask for replies on this link."""
        return terminus_address(self._link.remote.target)

    def reply(self, payload: bytes) -> None:
        """Send a reply of the gateway's own: its credit may be known to the primary, too."""
        if self._link.is_open:
            self._sent += 1
            self._link.send(payload, b"sbpair-%d" % self._sent, settled=True, overrun=True)
            self._output.flush_soon()


class ManagementRequests(ManagementLink, MirroredSender):
    """A link on which a client sends requests."""

    def accept_here(self) -> None:
        self._link.accept()
        self._link.grant(REQUEST_CREDIT)

    def receive(self, delivery: Delivery) -> None:
        request = self._own_request(delivery)
        if request is None and self.twin is not None:
            super().receive(delivery)
        else:
            self.answer([delivery], Accepted())
            self._owner.gateway.spawn(self._answer(request or self._read(delivery)), f"answer for {self.path}")

    def flush(self) -> None:
        super().flush()
        if self.twin is None and self._link.is_open and self._link.credit <= REQUEST_CREDIT // 2:
            self._link.grant(REQUEST_CREDIT)

    def _own_request(self, delivery: Delivery) -> AmqpRequest | None:
        """Return a request that the gateway answers itself although the primary is attached: of messages elsewhere."""
        if SCHEDULE.encode() in delivery.payload:
            return self._read(delivery) if self._owner.gateway.side_for(self.entity) == "backlog" else None
        if CANCEL.encode() in delivery.payload:
            request = self._read(delivery)
            return request if any(number < 0 for number in _numbers(request)) else None
        return None

    def _read(self, delivery: Delivery) -> AmqpRequest:
        try:
            return read_request(delivery.payload)
        except ProtocolError as error:
            self.answer([delivery], Rejected(refusal(error)))
            raise

    async def _answer(self, request: AmqpRequest) -> None:
        try:
            reply = await self._reply_to(request)
        except ServiceError as error:
            reply = Reply.for_error(error)
        except SbpairError as error:
            found = refusal(error)
            reply = Reply(
                STATUS_BUSY if found.condition == BUSY else 400, found.description or "", None, found.condition
            )
        links = [link.context for link in self._owner.links]
        replies = [each for each in links if isinstance(each, ManagementReplies) and each.path == self.path]
        named = [each for each in replies if each.address == request.reply_to]
        for each in (named or replies)[:1]:
            each.reply(write_reply(request, reply, MANAGEMENT_KEYS))

    async def _reply_to(self, request: AmqpRequest) -> Reply:
        if request.operation == CANCEL and any(number < 0 for number in _numbers(request)):
            raise NotAllowed(
                "A message that was scheduled in the backlog cannot be cancelled: it has no sequence number. Let the "
                "syphon move it, and cancel it in the primary by its number there."
            )
        if request.operation != SCHEDULE:
            self._owner.gateway.spawn(self._end_if_back(), f"look for {self.path}")
            raise ServerBusy(f"The primary namespace is away: {request.operation or 'the request'} waits for it.")
        sender = self._owner.gateway.failover.sender(self.entity)
        seconds = self._owner.gateway.options.timeout
        try:
            numbers = await sender.schedule(_messages(request), seconds, self._schedule_there)
        finally:
            await sender.close()
        return Reply(body=Map([("sequence-numbers", Array([Long(number) for number in numbers], of=Long))]))

    async def _schedule_there(self, side: SendSide, seconds: float) -> list[int]:
        del side, seconds
        raise Unreachable("the primary is away", hint="the backlog takes scheduled messages meanwhile")

    async def _end_if_back(self) -> None:
        """Let the client attach again, if the primary can be reached: its next attempt is answered there."""
        if self._owner.gateway.side_for(self.entity) == "backlog":
            return
        await self._owner.upstream.client()
        for link in self._owner.links:
            if isinstance(link.context, ManagementLink) and link.context.path == self.path:
                link.context.end(Error("amqp:link:detach-forced", "The primary is back: attach again.", Map()))


def _numbers(request: AmqpRequest) -> list[int]:
    found: Any = request.body.get("sequence-numbers") if isinstance(request.body, Map) else None
    return [int(each) for each in found] if isinstance(found, Array | list) else []


def _messages(request: AmqpRequest) -> list[bytes]:
    """Return the encoded messages of a request to schedule some. Raises ArgumentInvalid."""
    entries: Any = request.body.get("messages") if isinstance(request.body, Map) else None
    messages = [each.get("message") for each in entries if isinstance(each, Map)] if isinstance(entries, list) else []
    if not messages or not all(isinstance(each, bytes) for each in messages):
        raise ArgumentInvalid("A request to schedule messages has a list of maps, each with an encoded 'message'.")
    return messages
