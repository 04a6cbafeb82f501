"""The links to an entity's `$management` node: to the primary's, and to a node of the gateway's while that is away.

Invariants: they stay open in an outage, as some clients do not attach such a link again. A request that only the
primary can answer gets an answer that clients retry. Messages that are scheduled meanwhile go to the backlog, and have
negative numbers, as those of PairedClient.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.link import Delivery, terminus_address
from sbpair.amqp.message import Sections
from sbpair.amqp.performatives import Accepted, Rejected
from sbpair.amqp.types import Array, Long, Map
from sbpair.amqp_server.node_links import MANAGEMENT_KEYS, PRE_SETTLED, AmqpRequest, Reply, read_request, write_reply
from sbpair.amqp_server.refusals import ArgumentInvalid, NotAllowed, ServerBusy, ServiceError
from sbpair.errors import ProtocolError, SbpairError, Unreachable
from sbpair.gateway.client_errors import BUSY, end_of_link, refusal
from sbpair.gateway.mirrored_links import MANAGEMENT, MirroredLink, MirroredReceiver, MirroredSender

if TYPE_CHECKING:
    from sbpair.amqp.link import Link
    from sbpair.amqp_server.shared_access import AccessRight
    from sbpair.failover.shared_state import SendSide
    from sbpair.gateway.mirrored_connection import MirroredConnection

SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"
REQUEST_CREDIT: Final = 100
STATUS_BUSY, STATUS_WRONG = 503, 400


class ManagementLink(MirroredLink):
    """The common part: a link that the gateway accepts itself while the primary is away."""

    @property
    def entity(self) -> str:
        return self.path[: -len(MANAGEMENT)]

    async def attach(self) -> None:
        error: SbpairError | TimeoutError
        try:
            await self.attach_twin()
        except (SbpairError, TimeoutError) as found:
            error = found
        else:
            return
        self._stand_alone(error)

    async def attach_twin(self) -> None:
        """Attach a twin, if there is none. Raises Unavailable, AccessError, EntityMissing, TimeoutError."""
        gateway = self._owner.gateway
        if gateway.side_for(self.entity) == "backlog":
            raise Unreachable(f"{self.entity!r} is failed over", hint="its requests wait for the primary")
        try:
            async with asyncio.timeout(gateway.attach_seconds):
                await super().attach()
                await self.answered()
        except TimeoutError:
            self._close_twin()
            raise

    def on_lost(self, error: SbpairError) -> None:
        self.twin = None
        self._stand_alone(error)

    def _stand_alone(self, error: SbpairError | TimeoutError) -> None:
        """Keep the client's link without the primary, or end it for an error that is no outage."""
        if self.is_over:
            return
        if isinstance(error, SbpairError) and not self._owner.gateway.failover.policy.counts(error):
            self.end(end_of_link(error))
        else:
            self.accept_here()
            self._output.flush_soon()

    def accept_here(self) -> None:
        """Accept the client's link, unless it is open."""


class ManagementReplies(ManagementLink, MirroredReceiver):
    """A link on which a client receives replies."""

    _sent = 0

    def accept_here(self) -> None:
        self._link.accept(snd_settle_mode=PRE_SETTLED)

    def on_flow(self) -> None:
        super().on_flow()
        if self.twin is None:
            self._drained()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            self._owner.open_requests.pop((self.path, _correlation(each.payload)), None)
        super().on_deliveries(deliveries)

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

    def __init__(self, owner: MirroredConnection, link: Link, address: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, address, rights)
        self._attaching_again = asyncio.Lock()

    def accept_here(self) -> None:
        """Accept the client's link, and answer requests to which the primary will not reply."""
        self._link.accept()
        self._grant_here()
        self._queue.clear()
        for key, request in list(self._owner.open_requests.items()):
            if key[0] == self.path:
                del self._owner.open_requests[key]
                self._reply(request, Reply.for_error(_away(request)))

    def receive(self, delivery: Delivery) -> None:
        try:
            request = read_request(delivery.payload)
        except ProtocolError as error:
            self.answer([delivery], Rejected(refusal(error)))
            return
        is_own = self._is_own(request)
        if is_own or self.twin is None:
            self._owner.gateway.spawn(self._answer(request, delivery, is_own=is_own), f"answer for {self.path}")
        else:
            self._pass_on(request, delivery)

    def flush(self) -> None:
        self.pull_up()  # requests that were answered here have used credit, too
        super().flush()
        if self.twin is None and self._link.credit <= REQUEST_CREDIT // 2:
            self._grant_here()

    def _grant_here(self) -> None:
        if self._link.is_open:
            self._link.grant(REQUEST_CREDIT)

    def _pass_on(self, request: AmqpRequest, delivery: Delivery) -> None:
        if self._replies():
            open_request = replace(request, properties=Map(), body=None)
            self._owner.open_requests[self.path, str(request.message_id)] = open_request
        super().receive(delivery)

    def _is_own(self, request: AmqpRequest) -> bool:
        """Return whether a request is of messages that are not in the primary."""
        if request.operation == SCHEDULE:
            return self._owner.gateway.side_for(self.entity) == "backlog"
        return request.operation == CANCEL and any(number < 0 for number in _numbers(request))

    async def _answer(self, request: AmqpRequest, delivery: Delivery, *, is_own: bool) -> None:
        """Answer a request here, unless the primary is back."""
        if not is_own and await self._is_attached_again():
            self._pass_on(request, delivery)
            self._owner.upstream.flush()
            return
        self.answer([delivery], Accepted())
        try:
            reply = await self._reply_to(request)
        except ServiceError as error:
            reply = Reply.for_error(error)
        except SbpairError as error:
            found = refusal(error)
            status = STATUS_BUSY if found.condition == BUSY else STATUS_WRONG
            reply = Reply(status, found.description or "", None, found.condition)
        self._reply(request, reply)

    async def _is_attached_again(self) -> bool:
        """Return whether this link and that for the replies have twins, after an attempt to attach them."""
        try:
            async with self._attaching_again:
                for link in (*self._replies(), self):
                    if link.twin is None:
                        await link.attach_twin()
        except (SbpairError, TimeoutError):
            return False
        return self.twin is not None

    def _replies(self) -> list[ManagementReplies]:
        links = [link.context for link in self._owner.links]
        return [each for each in links if isinstance(each, ManagementReplies) and each.path == self.path]

    def _reply(self, request: AmqpRequest, reply: Reply) -> None:
        replies = self._replies()
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
            raise _away(request)
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


def _away(request: AmqpRequest) -> ServerBusy:
    return ServerBusy(f"The primary namespace is away: {request.operation or 'the request'} waits for it.")


def _correlation(payload: bytes) -> str:
    """Return the id of the request that a reply answers; "" for an unreadable one."""
    try:
        return str(Sections.split(payload).read_properties().correlation_id)
    except ProtocolError:
        return ""


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
