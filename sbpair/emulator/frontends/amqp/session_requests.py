"""The session operations of `<entity>/$management`, one function each: (target, arguments) -> Reply.

Arguments and results have the service's names, `sessions-ids` included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.amqp.types import Array, Int, Map, Timestamp
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.frontends.amqp.request_messages import Reply, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.subqueue import SubQueue

END_OF_TIME_MS: Final = 253_402_300_799_999
"""`last-updated-time` from here on means any time: .NET's DateTime.MaxValue, however rounded."""

MAX_PAGE: Final = 100
STATE_BYTES: Final = 262_144
_ARRAY_OF_STRINGS = 0xB1


def renew_session_lock(target: AddressTarget, arguments: Map) -> Reply:
    return Reply(body=Map([("expiration", Timestamp(held_by(target, arguments).renew()))]))


def get_session_state(target: AddressTarget, arguments: Map) -> Reply:
    return Reply(body=Map([("session-state", held_by(target, arguments).state)]))


def set_session_state(target: AddressTarget, arguments: Map) -> Reply:
    state = arguments.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("A 'session-state' is binary, or null to clear it.")
    if len(state or b"") > STATE_BYTES:
        raise ArgumentInvalid(f"A session state has at most {STATE_BYTES} bytes.")
    held = held_by(target, arguments)
    target.entity.check_quota(len(state or b"") - len(held.state or b""))
    held.set_state(state)
    return Reply()


def get_message_sessions(target: AddressTarget, arguments: Map) -> Reply:
    """List a page of ids: sessions with messages or state, or those whose state changed after a time."""
    after = number_at(arguments, "last-updated-time")
    skip, top = number_at(arguments, "skip"), min(number_at(arguments, "top"), MAX_PAGE)
    found = with_sessions(target).list_sessions(None if after > END_OF_TIME_MS else after)[skip : skip + max(0, top)]
    if not found:
        return Reply(204, "NoContent", None, "com.microsoft:session-not-found")
    return Reply(body=Map([("skip", Int(skip + len(found))), ("sessions-ids", Array(found, code=_ARRAY_OF_STRINGS))]))


def with_sessions(target: AddressTarget) -> SessionMessages:
    if not isinstance(target.messages, SessionMessages):
        raise NotAllowed("The entity has no sessions.")
    return target.messages


def held_by(target: AddressTarget, arguments: Map) -> HeldSession:
    """Return the session that a request names. Raises SessionLockExpired if it is not held."""
    session_id = text_at(arguments, "session-id")
    if session_id is None:
        raise ArgumentInvalid("The request lacks its 'session-id'.")
    return with_sessions(target).held_session(session_id)


def messages_of(target: AddressTarget, arguments: Map) -> SubQueue | HeldSession:
    """Return the messages that a request is for: those of the session it names, or of the entity."""
    if isinstance(target.messages, SessionMessages) and text_at(arguments, "session-id") is not None:
        return held_by(target, arguments)
    return target.messages


def number_at(arguments: Map, name: str) -> int:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentInvalid(f"The request lacks its '{name}'.")
    return max(0, int(value))
