"""A link of a client and its twin in the namespace: each passes messages and credit on to the other one.

Invariants: payloads, tags, formats and states pass as they came, and only delivery ids are mapped. Credit at the
namespace never exceeds that which the client gave and has not used. A link that ends on one side ends on the other,
too, with the reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.link import CreditChanged, Delivery, LinkAttached, LinkDetached, Sent, StatefulDelivery
from sbpair.amqp.performatives import Error, Source, Target
from sbpair.amqp.session import DrainAnswered, WindowOpened, id_ranges
from sbpair.amqp.types import Map, Symbol
from sbpair.amqp_client.client import FILTER
from sbpair.amqp_server.node_links import PRE_SETTLED
from sbpair.amqp_server.server_connection import LinkEndpoint
from sbpair.amqp_server.shared_access import path_of
from sbpair.failover.events import SettledLost
from sbpair.gateway.client_errors import end_of_link, error_in, is_unauthorized, passed_on
from sbpair.gateway.upstream import Twin

if TYPE_CHECKING:
    from sbpair.amqp.link import Link, LinkSession, ReceivingLink, SendingLink
    from sbpair.amqp_server.shared_access import AccessRight
    from sbpair.errors import SbpairError
    from sbpair.gateway.mirrored_connection import MirroredConnection

MANAGEMENT: Final = "/$management"
TRANSFER_DESTINATION: Final = Symbol("com.microsoft:transfer-destination-address")
UNSETTLED: Final = 0
MAX_MESSAGE: Final = 256 * 1024 * 1024
"""The largest message that is taken from a client. The namespace judges smaller ones."""


class MirroredLink(LinkEndpoint, Twin):
    """The common part of both directions. `address` is the client's; none for a coordinator."""

    _owner: MirroredConnection

    def __init__(self, owner: MirroredConnection, link: Link, address: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, path_of(address), rights)
        self._address = address
        self.twin: Any = None
        self._changed = asyncio.Event()
        """Set when the twin has attached, detached, got credit or was lost, and when the client's link has ended."""

    # Attaching

    async def attach(self) -> None:
        """Attach the twin, as the client has attached. Raises Unavailable, AccessError, EntityMissing."""
        upstream = self._owner.upstream
        client = await upstream.client()
        async with self._owner.attaching:
            for entity in self._claimed():
                await client.authorize(entity)
            if not self.is_needed:
                return
            session, remote = upstream.session(client, self._link.session), self._link.remote
            self.twin = session.sender(self._link.name) if self._link.IS_RECEIVER else session.receiver(self._link.name)
            self.twin.context = self
            terms = {name: getattr(remote, name) for name in (*_PASSED, *_MODES, "incomplete_unsettled")}
            if self._link.IS_RECEIVER and remote.snd_settle_mode == PRE_SETTLED:
                # Transfers that a client sends settled are sent on unsettled: a loss shows.
                terms["snd_settle_mode"] = UNSETTLED
            self.twin.open(
                source=_at(remote.source, self._address, self.path),
                target=_at(remote.target, self._address, self.path),
                **terms,
            )
            upstream.flush()

    async def answered(self) -> None:
        """Wait until the namespace has answered the attach, or the link is over."""
        while self.twin is not None and not self.twin.is_open and not self.is_over:
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_over(self) -> bool:
        """Whether the client has ended the link."""
        return self._link.context is not self

    @property
    def is_needed(self) -> bool:
        """Whether the link needs a twin."""
        return not self.is_over

    def _claimed(self) -> Iterator[str]:
        """Yield the entities that the namespace wants a token for."""
        if self.path:
            yield self.path.removesuffix(MANAGEMENT)
        if via := via_of(self._link):
            yield via

    def _on_attached(self) -> None:
        terms = self.twin.remote
        if terms.source is None or terms.target is None:
            return  # a refusal: the reason follows
        # Whether its own transfers are settled is the client's affair.
        passed = _PASSED if self._link.IS_RECEIVER else (*_PASSED, *_MODES)
        self._link.accept(
            source=_at(terms.source, self.path, self._address),
            target=_at(terms.target, self.path, self._address),
            **{name: getattr(terms, name) for name in passed},
        )
        self._output.flush_soon()

    # Ends

    def on_event(self, event: Any) -> None:
        self._changed.set()
        if isinstance(event, LinkAttached):
            self._on_attached()
        elif isinstance(event, LinkDetached):
            self.twin = None
            if is_unauthorized(event.error):
                self._owner.upstream.forget_claims(self._claimed())
            self._on_twin_detached(event)

    def _on_twin_detached(self, event: LinkDetached) -> None:
        self.end(passed_on(event.error, f"link to {self.path!r}"), closed=event.closed)

    def on_lost(self, error: SbpairError) -> None:
        self.twin = None
        self._changed.set()
        self.end(end_of_link(error, of_session=_is_of_session(self._link.remote.source)))

    def end(self, error: Error | None, *, closed: bool = True) -> None:
        """End the client's link for a reason."""
        if self.is_over:
            return
        self._link.close(error, closed=closed)
        self._link.context = None
        self._changed.set()
        self._output.forget(self)
        self._output.flush_soon()

    def on_client_detached(self, event: LinkDetached) -> None:
        """End the twin as the client has ended the link."""
        self._close_twin(event.error, closed=event.closed)

    def on_detached(self) -> None:
        self._close_twin()

    def _close_twin(self, error: Error | None = None, *, closed: bool = True) -> None:
        twin, self.twin = self.twin, None
        self._changed.set()
        if twin is not None:
            twin.context = None
            twin.close(error, closed=closed)
            self._owner.upstream.flush()

    def grant(self) -> None:
        """Do nothing: credit comes from the other side."""


_PASSED: Final = ("max_message_size", "offered_capabilities", "desired_capabilities", "properties", "unsettled")
_MODES: Final = ("snd_settle_mode", "rcv_settle_mode")


def _at(terminus: Any, address: str, other: str) -> Any:
    """Return a source or target with `other` in place of `address`: a client's address may be a URL."""
    if isinstance(terminus, Source | Target) and terminus.address == address != other:
        return replace(terminus, address=other)
    return terminus


def _is_of_session(source: Any) -> bool:
    return isinstance(source, Source) and isinstance(source.filter, Map) and FILTER in source.filter


def via_of(link: Link) -> str:
    """Return the entity to which a link sends by way of its own one; "" for none."""
    found = (link.remote.properties or {}).get(TRANSFER_DESTINATION)
    return path_of(found) if isinstance(found, str) else ""


def dispose(session: LinkSession, ids: Sequence[int], state: Any, *, receiver: bool, settled: bool) -> None:
    """Send one state of several deliveries."""
    for first, last in id_ranges(sorted(ids)):
        session.dispose(first, last, state, receiver=receiver, settled=settled)


class MirroredReceiver(MirroredLink):
    """A link on which the client receives."""

    _link: SendingLink
    twin: ReceivingLink | None

    def _on_attached(self) -> None:
        super()._on_attached()
        self.on_flow()

    def on_flow(self) -> None:
        """Give the namespace the credit that the client has left, and pass its drain on."""
        link, twin = self._link, self.twin
        if twin is None or not twin.is_open:
            return
        if link.draining:
            twin.credit = link.credit
            twin.drain()
        elif twin.credit != link.credit:
            twin.grant(link.credit)
        self._owner.upstream.flush()

    def on_event(self, event: Any) -> None:
        super().on_event(event)
        if self._link.draining and isinstance(event, DrainAnswered) and event.link is self.twin:
            self._drained()
        elif isinstance(event, WindowOpened) and self.twin is not None and self.twin.credit < self._link.credit:
            # The client has given more before its drain was answered, which took it away.
            self.on_flow()

    def _drained(self) -> None:
        if self._link.draining:
            self._link.drained()
            self._output.flush_soon()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        link, twin = self._link, self.twin
        if not link.is_open or twin is None:
            return
        for delivery in deliveries:
            delivery.context = link.send(
                delivery.payload,
                delivery.tag,
                message_format=delivery.format,
                settled=delivery.settled,
                state=delivery.state if type(delivery) is StatefulDelivery else None,
                context=delivery.id,
                # The client may have withdrawn credit after the namespace had used it.
                overrun=True,
            )
            delivery.payload = b""
        self._owner.figures.received += len(deliveries)
        self._output.flush_soon()
        if not twin.credit:
            self._drained()

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        if self.twin is not None and self.twin.is_open:
            ids = [each.context for each in deliveries]
            dispose(self.twin.session, ids, state, receiver=True, settled=settled)

    def flush(self) -> None:
        self._owner.upstream.flush()

    def on_disposed(self, deliveries: list[Any], state: Any, *, settled: bool) -> None:
        if self._link.is_open:
            ids = [each.context for each in deliveries]
            dispose(self._link.session, ids, state, receiver=False, settled=settled)
            self._output.flush_soon()
        self._owner.gateway.changed.set()


class MirroredSender(MirroredLink):
    """A link on which the client sends: the control of transactions, and the links of subclasses."""

    _link: ReceivingLink
    twin: SendingLink | None

    def __init__(self, owner: MirroredConnection, link: Link, address: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, address, rights)
        self._queue: deque[Delivery] = deque()

    def _on_attached(self) -> None:
        super()._on_attached()
        self._link.max_message_size = MAX_MESSAGE
        self.pull_up()

    def on_event(self, event: Any) -> None:
        super().on_event(event)
        if isinstance(event, CreditChanged):
            self.pull_up()

    def receive(self, delivery: Delivery) -> None:
        self._queue.append(delivery)
        self.pull_up()

    def pull_up(self) -> None:
        """Send waiting deliveries as far as the namespace takes them, and give the client the credit that is left."""
        twin = self.twin
        if twin is None or not twin.is_open:
            return
        while self._queue and twin.credit > 0:
            send_up(twin, self._queue.popleft())
        if self._link.is_open and twin.credit - len(self._queue) > self._link.credit:
            self._link.grant(twin.credit - len(self._queue))
            self._output.flush_soon()

    def flush(self) -> None:
        self._owner.upstream.flush()

    def on_disposed(self, deliveries: list[Any], state: Any, *, settled: bool) -> None:
        self.answer([each.context for each in deliveries], state, settled=settled)

    def answer(self, deliveries: Sequence[Delivery], state: Any, *, settled: bool = True) -> None:
        """Send the client the state of its deliveries, but for those that it has sent settled.

        The link ends if one of these is refused: its client does not wait for an answer.
        """
        ids = [each.id for each in deliveries if not each.settled]
        if ids and self._link.is_open:
            dispose(self._link.session, ids, state, receiver=True, settled=settled)
            self._output.flush_soon()
        if len(ids) < len(deliveries) and (error := error_in(state)) is not None:
            self._owner.gateway.failover.failover_state.publish(SettledLost(self.path, error.description or ""))
            self.end(error)

    def settle_up(self, deliveries: list[Delivery], state: Any, *, settled: bool) -> None:
        """Pass on the client's answer to the namespace's state of its deliveries."""
        if self.twin is not None and self.twin.is_open:
            ids = [each.context for each in deliveries]
            dispose(self.twin.session, ids, state, receiver=False, settled=settled)


def send_up(twin: SendingLink, delivery: Delivery) -> int:
    """Send a client's delivery to the namespace, always unsettled; return its id there."""
    state = delivery.state if isinstance(delivery, StatefulDelivery) else None
    number = twin.send(delivery.payload, delivery.tag, message_format=delivery.format, state=state, context=delivery)
    delivery.context = number
    return number
