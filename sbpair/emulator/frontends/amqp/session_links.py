"""The ends of links that receive from a session: one that has its session, and one that waits for any that is free.

What the client asks for is in the source's filter, how long it waits in the link's properties; the answer says which
session it got, and until when. No I/O here; the door writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sbpair.amqp.performatives import Source
from sbpair.amqp.types import Described, Long, Map, Symbol
from sbpair.emulator.access.sas import AccessRight
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.frontends.amqp.link_endpoints import LinkConnection, OutgoingLink
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed, OperationTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbpair.amqp.events import Sent
    from sbpair.amqp.link import Link, SendingLink
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.faults.fault_points import FaultPoints
    from sbpair.emulator.service_errors import ServiceError
    from sbpair.emulator.timers import Timers

FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT: Final = "com.microsoft:timeout"
PATIENCE_MS: Final = 65_000
"""How long a client waits for a session where it does not say."""

_TICKS_TO_1970: Final = 621_355_968_000_000_000
_TICKS_PER_MS: Final = 10_000


def asks_for_session(link: Link) -> bool:
    source = link.remote.source
    filters = source.filter if isinstance(source, Source) else None
    return isinstance(filters, Map) and FILTER in filters


def session_asked_for(link: Link) -> str | None:
    """The id in the link's filter; None for any session that is free."""
    source = link.remote.source
    wanted = source.filter.get(FILTER) if isinstance(source, Source) and isinstance(source.filter, Map) else None
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is not None and not isinstance(wanted, str):
        raise ArgumentInvalid("A session filter holds the id of a session, or null.")
    return wanted


def patience_ms(link: Link) -> int:
    properties = link.remote.properties
    told = properties.get(TIMEOUT) if isinstance(properties, Map) else None
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else PATIENCE_MS


def open_session(
    connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, namespace: Namespace
) -> OutgoingSessionLink | WaitingSessionLink:
    """The end of a link that receives from an entity with sessions. Raises NotAllowed, SessionCannotBeLocked."""
    messages = target.messages
    if not isinstance(messages, SessionMessages):
        raise NotAllowed("A session filter was given, and the entity has no sessions.")
    if not asks_for_session(link):
        raise NotAllowed("The entity requires sessions, and the receiver does not ask for one.")
    session_id = session_asked_for(link)
    if session_id is None:
        wait = WaitingSessionLink(connection, link, target, path, namespace)
        held = messages.accept_next(wait)
        if held is None:
            wait.begin(namespace.timers, namespace.clock.now_ms() + patience_ms(link))
            return wait
    else:
        held = messages.accept(session_id)
    return OutgoingSessionLink(connection, link, target, path, namespace.fault_points, held)


class OutgoingSessionLink(OutgoingLink):
    """Where a client receives from the session that it holds. The session goes back when the link does."""

    def __init__(
        self,
        connection: LinkConnection,
        link: SendingLink,
        target: AddressTarget,
        path: str,
        points: FaultPoints,
        held: HeldSession,
    ) -> None:
        self._held = held
        super().__init__(connection, link, target, path, points)
        held.on_lost = self._lose

    def _open(self, target: AddressTarget) -> SubQueue | HeldSession:
        held, source = self._held, self._link.remote.source
        until = Long(held.locked_until_ms * _TICKS_PER_MS + _TICKS_TO_1970)
        self._link.accept(
            max_message_size=target.queue.message_limit_bytes,
            source=replace(source, filter={FILTER: held.id}),
            properties={LOCKED_UNTIL: until},
        )
        return held

    def _lose(self, refusal: ServiceError) -> None:
        self._connection.close_link(self._link, refusal)

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        del unsettled
        self._idle.stop()
        self._queue.withdraw(self)
        self._held.on_lost = None
        self._held.close(failed=not released)


class WaitingSessionLink:
    """A link that is not answered before a session is free, or its client's patience at an end."""

    claims: tuple[AccessRight, ...] = (AccessRight.LISTEN,)

    def __init__(
        self, connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, namespace: Namespace
    ) -> None:
        self.path = path
        self.due_ms = NEVER
        self._connection = connection
        self._link = link
        self._target = target
        self._points = namespace.fault_points

    def begin(self, timers: Timers, until_ms: int) -> None:
        self.due_ms = until_ms
        timers.schedule(until_ms, self)

    def lend(self, held: HeldSession) -> None:
        self.due_ms = NEVER
        outlet = OutgoingSessionLink(self._connection, self._link, self._target, self.path, self._points, held)
        self._link.context = outlet
        outlet.wake()

    def advance(self, now_ms: int) -> None:
        del now_ms
        self._connection.close_link(
            self._link, OperationTimedOut("No session became available within the time that was given.")
        )

    def check(self) -> None:
        self._target.check_receive()

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        del unsettled, released
        self.due_ms = NEVER
        if isinstance(self._target.messages, SessionMessages):
            self._target.messages.give_up(self)

    def pull(self) -> None:
        """There is nothing yet."""

    def on_flow(self) -> None:
        """The link keeps the credit."""

    def finish(self) -> None:
        """Nothing was read."""
