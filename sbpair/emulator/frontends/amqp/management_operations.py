"""The operations of `<entity>/$management`, one function each: (target, arguments) -> Reply.

Arguments and results have the service's names, `defered` and `sessions-ids` included. Independent of links and frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from sbpair.amqp.types import Array, Int, Long, Map, Timestamp, Value
from sbpair.emulator.access.sas import AccessRight
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.frontends.amqp import rule_requests
from sbpair.emulator.frontends.amqp.request_links import AmqpRequest, Reply, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, MessageTooLarge, NotAllowed, ServiceError
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.entities.transaction import Settleable, Settlement, Transaction

MAX_PEEK: Final = 250
MAX_DELETE: Final = 4_000
PEEK_BYTES: Final = 1_048_576
"""Limit of one peek's reply: fewer messages are returned than requested."""

MAX_PAGE: Final = 100
STATE_BYTES: Final = 262_144
END_OF_TIME_MS: Final = 253_402_300_799_999
"""`last-updated-time` from here on means any time: .NET's DateTime.MaxValue, however rounded."""

_ARRAY_OF_LONGS = 0x81
_ARRAY_OF_TIMESTAMPS = 0x83
_ARRAY_OF_STRINGS = 0xB1


class Operation(NamedTuple):
    """An operation. `run_in` keeps it for the commit of a transaction; without it, it runs at once there too."""

    right: AccessRight
    run: Callable[[AddressTarget, Map], Reply]
    run_in: Callable[[Transaction, AddressTarget, Map], Reply] | None = None


def execute(request: AmqpRequest, target: AddressTarget, require: Callable[[AccessRight], None]) -> Reply:
    """Run the operation, if `require` grants its right. Errors become replies."""
    operation = OPERATIONS.get(request.operation)
    if operation is None:
        text = f"The operation '{request.operation[:100]}' is not implemented."
        return Reply(501, text, None, "amqp:not-implemented")
    try:
        require(operation.right)
        if not isinstance(request.body, Map):
            raise ArgumentInvalid("The body of a management request is a map.")
        if request.transaction is not None and operation.run_in is not None:
            return operation.run_in(request.transaction, target, request.body)
        return operation.run(target, request.body)
    except ServiceError as error:
        return Reply.for_error(error)
    except ProtocolError as error:
        return Reply.for_error(ArgumentInvalid(error.message))


# Locks and settlement


def renew_lock(target: AddressTarget, arguments: Map) -> Reply:
    tokens = _tokens(arguments)
    renewed = [target.messages.renew(token) for token in tokens]
    until = Array([Timestamp(message.locked_until_ms) for message in renewed], code=_ARRAY_OF_TIMESTAMPS)
    return Reply(body=Map([("expirations", until)]))


def update_disposition(target: AddressTarget, arguments: Map) -> Reply:
    """Settle as a receiving link would; also for locks whose link is closed."""
    settlement = _settlement(arguments)
    tokens, messages = _tokens(arguments), _messages_of(target, arguments)
    for token in tokens:
        messages.get_locked(token)
    for token in tokens:
        settlement(messages, token)
    return Reply()


def update_disposition_in(transaction: Transaction, target: AddressTarget, arguments: Map) -> Reply:
    settlement = _settlement(arguments)
    transaction.settle(target.entity, _messages_of(target, arguments), _tokens(arguments), settlement)
    return Reply()


def _settlement(arguments: Map) -> Settlement:
    status = text_at(arguments, "disposition-status") or ""
    settle = DISPOSITIONS.get(status)
    if settle is None:
        raise ArgumentInvalid(f"The disposition-status '{status[:100]}' is not known.")
    properties = arguments.get("properties-to-modify")

    def modify_and_settle(queue: Settleable, token: bytes) -> None:
        if isinstance(properties, Map) and properties:
            queue.modify(token, lambda message: service_envelope.modify_properties(message, properties))
        settle(queue, token, arguments)

    return modify_and_settle


def _suspend(queue: Settleable, token: bytes, arguments: Map) -> None:
    queue.dead_letter(token, text_at(arguments, "deadletter-reason"), text_at(arguments, "deadletter-description"))


DISPOSITIONS: Final[dict[str, Callable[[Settleable, bytes, Map], None]]] = {
    "completed": lambda queue, token, _: queue.complete(token),
    "abandoned": lambda queue, token, _: queue.abandon(token),
    "defered": lambda queue, token, _: queue.defer(token),
    "suspended": _suspend,
}


# Peeking


def peek_message(target: AddressTarget, arguments: Map) -> Reply:
    target.check_browse()
    first, count = _number(arguments, "from-sequence-number"), min(_number(arguments, "message-count"), MAX_PEEK)
    session_id = text_at(arguments, "session-id")
    with_body = arguments.get("omit-message-body") is not True
    if session_id is not None and isinstance(target.messages, SessionMessages):
        found = target.messages.peek_session(session_id, first, count)
    else:
        found = target.messages.peek(first, count)
    peeked: list[Value] = []
    size = 0
    for message in found:
        payload = service_envelope.encode_peeked(message, with_body=with_body)
        size += len(payload)
        if peeked and size > PEEK_BYTES:
            break
        peeked.append(Map([("message", payload)]))
    if not peeked:
        return Reply(204, "NoContent", None, "com.microsoft:message-not-found")
    return Reply(body=Map([("messages", peeked)]))


# Deferred messages


def receive_by_sequence_number(target: AddressTarget, arguments: Map) -> Reply:
    """Receive deferred messages: settle mode 0 deletes them, 1 locks them."""
    target.check_receive()
    queue = _messages_of(target, arguments)
    delete = arguments.get("receiver-settle-mode") == 0
    received: list[Value] = []
    for message in queue.receive_deferred(_numbers(arguments, "sequence-numbers")):
        received.append(
            Map([("lock-token", message.lock_uuid), ("message", service_envelope.encode_delivery(message))])
        )
        if delete:
            queue.complete(message.lock_token)
    return Reply(body=Map([("messages", received)]))


def batch_delete_messages(target: AddressTarget, arguments: Map) -> Reply:
    """Delete active messages enqueued before a time, oldest first; locked and deferred messages stay."""
    target.check_receive()
    limit, before_ms = _number(arguments, "message-count"), _number(arguments, "enqueued-time-utc")
    if not 0 < limit <= MAX_DELETE:
        raise ArgumentInvalid(f"A 'message-count' to delete is from 1 to {MAX_DELETE}.")
    deleted = target.messages.delete(limit, before_ms, text_at(arguments, "session-id"))
    if not deleted:
        return Reply(204, "NoContent", None, "com.microsoft:message-not-found")
    return Reply(body=Map([("message-count", Int(deleted))]))


# Scheduled messages


def schedule_message(target: AddressTarget, arguments: Map) -> Reply:
    return _scheduled_reply(target.entity.schedule(_to_schedule(target, arguments)))


def schedule_message_in(transaction: Transaction, target: AddressTarget, arguments: Map) -> Reply:
    """Keep messages for the commit; the sequence numbers are known before it."""
    return _scheduled_reply(transaction.schedule(target.entity, _to_schedule(target, arguments)))


def _scheduled_reply(numbers: list[int]) -> Reply:
    array = Array([Long(number) for number in numbers], code=_ARRAY_OF_LONGS)
    return Reply(body=Map([("sequence-numbers", array)]))


def _to_schedule(target: AddressTarget, arguments: Map) -> list[StoredMessage]:
    if target.is_dead_letters:
        raise ArgumentInvalid("Nothing can be sent to a dead-letter queue.")
    target.check_browse()
    entries = arguments.get("messages")
    messages = [_scheduled(target, entry) for entry in entries] if isinstance(entries, list) else []
    if not messages:
        raise ArgumentInvalid("There are no 'messages' to schedule.")
    return messages


def _scheduled(target: AddressTarget, entry: Value) -> StoredMessage:
    payload = entry.get("message") if isinstance(entry, Map) else None
    if not isinstance(payload, bytes):
        raise ArgumentInvalid("A message to schedule comes as a map with its encoded 'message'.")
    if len(payload) > target.entity.max_message_bytes:
        raise MessageTooLarge(f"The message of {len(payload)} bytes is larger than the entity allows.")
    message = service_envelope.read_message(payload, with_id=target.entity.description.requires_duplicate_detection)
    if message is None or message.scheduled_at_ms is None:
        raise ArgumentInvalid("A message to schedule needs the annotation x-opt-scheduled-enqueue-time.")
    return message


def cancel_scheduled_message(target: AddressTarget, arguments: Map) -> Reply:
    target.entity.cancel_scheduled(_numbers(arguments, "sequence-numbers"))
    return Reply()


def cancel_scheduled_message_in(transaction: Transaction, target: AddressTarget, arguments: Map) -> Reply:
    transaction.cancel_scheduled(target.entity, _numbers(arguments, "sequence-numbers"))
    return Reply()


# Sessions


def renew_session_lock(target: AddressTarget, arguments: Map) -> Reply:
    return Reply(body=Map([("expiration", Timestamp(_held_by(target, arguments).renew()))]))


def get_session_state(target: AddressTarget, arguments: Map) -> Reply:
    return Reply(body=Map([("session-state", _held_by(target, arguments).state)]))


def set_session_state(target: AddressTarget, arguments: Map) -> Reply:
    held, state = _held_by(target, arguments), _new_state(arguments)
    target.entity.check_quota(len(state or b"") - len(held.state or b""))
    held.set_state(state)
    return Reply()


def set_session_state_in(transaction: Transaction, target: AddressTarget, arguments: Map) -> Reply:
    transaction.set_state(target.entity, _held_by(target, arguments), _new_state(arguments))
    return Reply()


def _new_state(arguments: Map) -> bytes | None:
    state = arguments.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("A 'session-state' is binary, or null to clear it.")
    if len(state or b"") > STATE_BYTES:
        raise ArgumentInvalid(f"A session state has at most {STATE_BYTES} bytes.")
    return state


def get_message_sessions(target: AddressTarget, arguments: Map) -> Reply:
    """List a page of ids: sessions with messages or state, or those whose state changed after a time."""
    after, skip, top = (max(0, _number(arguments, name)) for name in ("last-updated-time", "skip", "top"))
    found = _with_sessions(target).list_sessions(None if after > END_OF_TIME_MS else after)
    found = found[skip : skip + min(top, MAX_PAGE)]
    if not found:
        return Reply(204, "NoContent", None, "com.microsoft:session-not-found")
    return Reply(body=Map([("skip", Int(skip + len(found))), ("sessions-ids", Array(found, code=_ARRAY_OF_STRINGS))]))


def _with_sessions(target: AddressTarget) -> SessionMessages:
    if not isinstance(target.messages, SessionMessages):
        raise NotAllowed("The entity has no sessions.")
    return target.messages


def _held_by(target: AddressTarget, arguments: Map) -> HeldSession:
    """Return the session that a request names. Raises SessionLockExpired if it is not held."""
    session_id = text_at(arguments, "session-id")
    if session_id is None:
        raise ArgumentInvalid("The request lacks its 'session-id'.")
    return _with_sessions(target).held_session(session_id)


OPERATIONS: Final[dict[str, Operation]] = {
    "com.microsoft:renew-lock": Operation(AccessRight.LISTEN, renew_lock),
    "com.microsoft:update-disposition": Operation(AccessRight.LISTEN, update_disposition, update_disposition_in),
    "com.microsoft:peek-message": Operation(AccessRight.LISTEN, peek_message),
    "com.microsoft:receive-by-sequence-number": Operation(AccessRight.LISTEN, receive_by_sequence_number),
    "com.microsoft:batch-delete-messages": Operation(AccessRight.LISTEN, batch_delete_messages),
    "com.microsoft:schedule-message": Operation(AccessRight.SEND, schedule_message, schedule_message_in),
    "com.microsoft:cancel-scheduled-message": Operation(
        AccessRight.SEND, cancel_scheduled_message, cancel_scheduled_message_in
    ),
    "com.microsoft:renew-session-lock": Operation(AccessRight.LISTEN, renew_session_lock),
    "com.microsoft:get-session-state": Operation(AccessRight.LISTEN, get_session_state),
    "com.microsoft:set-session-state": Operation(AccessRight.LISTEN, set_session_state, set_session_state_in),
    "com.microsoft:get-message-sessions": Operation(AccessRight.LISTEN, get_message_sessions),
    # Not Manage: a receiver of a subscription may change its rules.
    "com.microsoft:add-rule": Operation(AccessRight.LISTEN, rule_requests.add_rule),
    "com.microsoft:remove-rule": Operation(AccessRight.LISTEN, rule_requests.remove_rule),
    "com.microsoft:enumerate-rules": Operation(AccessRight.LISTEN, rule_requests.enumerate_rules),
}


# Arguments


def _messages_of(target: AddressTarget, arguments: Map) -> SubQueue | HeldSession:
    """Return the messages that a request is for: those of the session it names, or of the entity."""
    if isinstance(target.messages, SessionMessages) and text_at(arguments, "session-id") is not None:
        return _held_by(target, arguments)
    return target.messages


def _items(arguments: Map, name: str) -> list[Value]:
    value = arguments.get(name)
    if not isinstance(value, (Array, list)):
        raise ArgumentInvalid(f"The request lacks its '{name}'.")
    return list(value)


def _tokens(arguments: Map) -> list[bytes]:
    tokens = _items(arguments, "lock-tokens")
    if not tokens or not all(isinstance(token, UUID) for token in tokens):
        raise ArgumentInvalid("'lock-tokens' are UUIDs, one or more.")
    return list(dict.fromkeys(token.bytes_le for token in tokens))


def _number(arguments: Map, name: str) -> int:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentInvalid(f"The request lacks its '{name}'.")
    return int(value)


def _numbers(arguments: Map, name: str) -> list[int]:
    values = _items(arguments, name)
    if not all(isinstance(value, int) for value in values):
        raise ArgumentInvalid(f"'{name}' are whole numbers.")
    return [int(value) for value in values]
