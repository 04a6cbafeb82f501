"""The sessions of a queue or subscription: their messages by a peek, who holds them, and their states.

Invariant: a state is read and cleared under the session's lock, and cleared only after it was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from sbpair.amqp.message import Properties
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.credentials import signed_in
from sbpair.errors import SbpairError, ServiceRefused, SessionLocked, SessionLockLost, UsageError, nearest_hint
from sbpair.management.calls import CONCURRENCY, gather_all
from sbpair.message_io.message_fields import readable
from sbpair.message_io.peek import PeekSource, open_peek
from sbpair.model.document import TIME
from sbpair.model.message_state import is_dead_letter_path
from sbpair.move.peek.peeker import PeekPosition

if TYPE_CHECKING:
    from sbpair.message_io.peek import OnEvent
    from sbpair.model.pair import Endpoint, Ends
    from sbpair.move.peek.peeker import PeekedMessage

MAX_LISTED, MAX_ASKED = 10_000, 1_000
"""Sessions that the service lists, and those of which it is asked whether a receiver holds them."""


@dataclass(slots=True)
class CountedSession:
    """A session."""

    session_id: Annotated[str, "Its id"]
    messages: Annotated[int, "Peeked messages, of any state; 0 of one with a state alone"] = 0
    first_ms: Annotated[int | None, "Earliest enqueued time", TIME, {"name": "first_enqueued_at"}] = None
    last_ms: Annotated[int | None, "Latest enqueued time", TIME, {"name": "last_enqueued_at"}] = None
    locked: Annotated[bool | None, "Whether a receiver holds it; null if unknown"] = None


async def count_sessions(ends: Ends, path: str, *, limit: int, on_event: OnEvent) -> tuple[list[CountedSession], bool]:
    """Return the sessions of the first `limit` messages, the longest waiting first, and whether these are all messages.

    Those with a state alone follow. Locks nothing. Raises UsageError for an entity without sessions.
    """
    found: dict[str, CountedSession] = {}
    position, slots = PeekPosition(path), asyncio.Semaphore(CONCURRENCY)

    async def take(message: PeekedMessage) -> None:
        session_id, at = readable(message.sections.read_properties, Properties()).group_id, message.facts.enqueued_at
        if session_id is not None:
            session = found.setdefault(session_id.lower(), CountedSession(session_id))
            session.messages += 1
            session.first_ms, session.last_ms = min(session.first_ms or at, at), max(session.last_ms or at, at)

    async def ask(client: AmqpClient, session: CountedSession) -> None:
        async with slots:
            try:
                # While a receiver holds a session, others can read its state.
                await client.session_state(path, session.session_id)
                session.locked = True
            except SbpairError as error:
                session.locked = False if isinstance(error, SessionLockLost) else None

    async with signed_in(connect, ends.source) as client:
        listed = [] if is_dead_letter_path(path) else await _session_ids(client, path)
        async with open_peek(ends, on_event, bodies=False) as peek:
            await peek(PeekSource("", path), position, limit, take)
        for each in listed:
            found.setdefault(each.lower(), CountedSession(each))
        sessions = sorted(found.values(), key=lambda each: (each.first_ms is None, each.first_ms, each.session_id))
        if not is_dead_letter_path(path):
            await gather_all(ask(client, each) for each in sessions[:MAX_ASKED])
    return sessions, position.ended


async def take_state(
    endpoint: Endpoint, path: str, session_id: str, keep: Callable[[bytes], object] | None = None
) -> bytes | None:
    """Return the state of a session, and clear it once `keep`, if given, has returned.

    Raises SessionLocked if a receiver holds the session, and UsageError for one that does not exist.
    """
    if is_dead_letter_path(path):
        raise UsageError(f"{path} has no session states", hint="its messages have sessions; name the queue itself")
    async with signed_in(connect, endpoint) as client:
        try:
            held = await client.session(path, session_id)
        except SessionLocked as error:
            text = f"session {session_id!r} of {path} is locked by another receiver"
            hint = "stop that receiver, or wait until it has closed the session"
            raise SessionLocked(text, condition=error.condition, hint=hint) from error
        except ServiceRefused:
            await _session_ids(client, path)  # which raises for an entity without sessions
            raise
        state = await client.session_state(path, session_id)
        if state is None:
            ids = await _session_ids(client, path)
            if session_id.lower() not in map(str.lower, ids):
                hint = nearest_hint(session_id, ids, "list the sessions to see their ids")
                raise UsageError(f"{path} has no session {session_id!r}", hint=hint)
        elif keep is not None:
            keep(state)
            await client.set_session_state(held, None)
        held.close()
    return state


async def _session_ids(client: AmqpClient, path: str) -> list[str]:
    try:
        return await client.session_ids(path, MAX_LISTED)
    except ServiceRefused as error:
        if error.condition != "amqp:not-allowed":
            raise
        raise UsageError(f"{path} has no sessions", hint=f"show its messages with sbpair peek {path}") from error
