"""The endpoints of links that receive from a session: one that holds its session, one that waits for any free session.

The source's filter names the session, and the link's properties give the time to wait. The answer has the session's id
and the end of its lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sbpair.amqp.performatives import Source
from sbpair.amqp.types import Described, Long, Map, Symbol
from sbpair.emulator.clock import NEVER, Timers
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.frontends.amqp.link_endpoint import LinkConnection, LinkEndpoint
from sbpair.emulator.frontends.amqp.outgoing_link import LISTEN, OutgoingLink
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed, OperationTimedOut

if TYPE_CHECKING:
    from sbpair.amqp.link import Link, SendingLink, Sent
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.faults.fault_points import FaultPoints

FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT: Final = "com.microsoft:timeout"
DEFAULT_TIMEOUT_MS: Final = 65_000
"""How long a link waits for a session if its properties give no time."""

_TICKS_TO_1970: Final = 621_355_968_000_000_000
_TICKS_PER_MS: Final = 10_000


def _filters(link: Link) -> Map:
    source = link.remote.source
    return source.filter if isinstance(source, Source) and isinstance(source.filter, Map) else Map()


def requests_session(link: Link) -> bool:
    return FILTER in _filters(link)


def requested_session_id(link: Link) -> str | None:
    """Return the id in the link's filter, or None for any free session."""
    wanted = _filters(link).get(FILTER)
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is not None and not isinstance(wanted, str):
        raise ArgumentInvalid("A session filter holds the id of a session, or null.")
    return wanted


def session_timeout_ms(link: Link) -> int:
    properties = link.remote.properties
    given = properties.get(TIMEOUT) if isinstance(properties, Map) else None
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else DEFAULT_TIMEOUT_MS


def open_session(
    connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, namespace: Namespace
) -> OutgoingSessionLink | WaitingSessionLink:
    """Return the endpoint of a link to an entity with sessions. Raises NotAllowed, SessionCannotBeLocked."""
    messages = target.messages
    if not isinstance(messages, SessionMessages):
        raise NotAllowed("A session filter was given, and the entity has no sessions.")
    if not requests_session(link):
        raise NotAllowed("The entity requires sessions, and the receiver does not ask for one.")
    session_id = requested_session_id(link)
    if session_id is None:
        wait = WaitingSessionLink(connection, link, target, path, namespace)
        held = messages.accept_next(wait)
        if held is None:
            wait.start(namespace.timers, namespace.clock.now_ms() + session_timeout_ms(link))
            return wait
    else:
        held = messages.accept(session_id)
    return OutgoingSessionLink(connection, link, target, path, namespace.fault_points, held)


class OutgoingSessionLink(OutgoingLink):
    """A link that holds a session and receives from it. The session is released with the link."""

    def __init__(
        self,
        connection: LinkConnection,
        link: SendingLink,
        target: AddressTarget,
        path: str,
        fault_points: FaultPoints,
        held: HeldSession,
    ) -> None:
        self._held = held
        super().__init__(connection, link, target, path, fault_points)
        held.on_lock_lost = partial(connection.close_link, link)

    def _open(self, target: AddressTarget) -> SubQueue | HeldSession:
        held, source = self._held, self._link.remote.source
        until = Long(held.locked_until_ms * _TICKS_PER_MS + _TICKS_TO_1970)
        self._link.accept(
            max_message_size=target.entity.max_message_bytes,
            source=replace(source, filter={FILTER: held.id}),
            properties={LOCKED_UNTIL: until},
        )
        return held

    def on_detached(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        del unsettled
        self.idle.stop()
        self._queue.remove_consumer(self)
        self._held.on_lock_lost = None
        self._held.close(failed=not released)


class WaitingSessionLink(LinkEndpoint):
    """A link that stays unanswered until a session is free or its time is over."""

    def __init__(
        self, connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, namespace: Namespace
    ) -> None:
        super().__init__(path, LISTEN)
        self.due_ms = NEVER
        self._connection = connection
        self._link = link
        self._target = target
        self._fault_points = namespace.fault_points

    def start(self, timers: Timers, until_ms: int) -> None:
        self.due_ms = until_ms
        timers.schedule(until_ms, self)

    def on_session_locked(self, held: HeldSession) -> None:
        self.due_ms = NEVER
        outgoing = OutgoingSessionLink(self._connection, self._link, self._target, self.path, self._fault_points, held)
        self._link.context = outgoing
        outgoing.wake()

    def advance(self, now_ms: int) -> None:
        del now_ms
        self._connection.close_link(
            self._link, OperationTimedOut("No session became available within the time that was given.")
        )

    def check_open(self) -> None:
        self._target.check_receive()

    def on_detached(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        del unsettled, released
        self.due_ms = NEVER
        if isinstance(self._target.messages, SessionMessages):
            self._target.messages.remove_waiter(self)
