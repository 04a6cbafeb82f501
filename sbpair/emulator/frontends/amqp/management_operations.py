"""The operations of `<entity>/$management`, one function each: ManagementCall -> Reply.

Arguments and results have the service's names, `defered` and `sessions-ids` included. A rule arrives as a map of maps
and is returned as described lists. Independent of links and frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from sbpair.amqp.performatives import Accepted, Error, Modified, Outcome, Rejected
from sbpair.amqp.types import Array, Described, Int, Long, Map, Timestamp, ULong, Value
from sbpair.amqp_server.node_links import AmqpRequest, Reply, text_at
from sbpair.amqp_server.refusals import ArgumentInvalid, MessageTooLarge, NotAllowed, ServiceError
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.entities import rules, service_envelope
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.amqp.message_links import DESCRIPTION, REASON, settle_one
from sbpair.errors import ProtocolError
from sbpair.rules import filters
from sbpair.rules.values import RuleInvalid, from_amqp

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.entities.transaction import Transaction

MAX_PEEK: Final = 250
PEEK_BYTES: Final = 1_048_576
"""Limit of one peek's reply: fewer messages are returned than requested."""

MAX_PAGE: Final = 100
STATE_BYTES: Final = 262_144
END_OF_TIME_MS: Final = 253_402_300_799_999
"""`last-updated-time` from here on means any time: .NET's DateTime.MaxValue, however rounded."""


# Descriptors of rules, the service's own. Those of filters are one digit shorter on the wire.
RULE: Final = ULong(0x137_0000_0004)
EMPTY_ACTION: Final = ULong(0x137_0000_0005)
SQL_ACTION: Final = ULong(0x137_0000_0006)
SQL_FILTER: Final = ULong(0x13_7000_0006)
TRUE_FILTER: Final = ULong(0x13_7000_0007)
FALSE_FILTER: Final = ULong(0x13_7000_0008)
CORRELATION_FILTER: Final = ULong(0x13_7000_0009)
COMPATIBILITY_LEVEL: Final = Int(20)


@dataclass(frozen=True, slots=True)
class ManagementCall:
    """A request to the node of `target`. With a transaction, operations that can be part of it wait for its commit."""

    target: AddressTarget
    arguments: Map
    transaction: Transaction | None = None
    link_session: str | None = None

    def text(self, name: str) -> str | None:
        return text_at(self.arguments, name)

    def number(self, name: str, minimum: int | None = None) -> int:
        value = self.arguments.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
            least = "" if minimum is None else f" from {minimum}"
            raise ArgumentInvalid(f"The request lacks its '{name}', a whole number{least}.")
        return int(value)

    def numbers(self, name: str) -> list[int]:
        values = self._items(name)
        if not all(isinstance(value, int) for value in values):
            raise ArgumentInvalid(f"'{name}' are whole numbers.")
        return [int(value) for value in values]

    def tokens(self) -> list[bytes]:
        tokens = self._items("lock-tokens")
        if not tokens or not all(isinstance(token, UUID) for token in tokens):
            raise ArgumentInvalid("'lock-tokens' are UUIDs, one or more.")
        return list(dict.fromkeys(token.bytes_le for token in tokens))

    def _items(self, name: str) -> list[Value]:
        value = self.arguments.get(name)
        if not isinstance(value, (Array, list)):
            raise ArgumentInvalid(f"The request lacks its '{name}'.")
        return list(value)

    @property
    def messages(self) -> SubQueue | HeldSession:
        """The messages that a request is for: those of the session it names, or of the entity."""
        if isinstance(self.target.messages, SessionMessages) and self.text("session-id") is not None:
            return self.session
        return self.target.messages

    @property
    def sessions(self) -> SessionMessages:
        if not isinstance(self.target.messages, SessionMessages):
            raise NotAllowed("The entity has no sessions.")
        return self.target.messages

    @property
    def session(self) -> HeldSession:
        """The session that a request names. Raises SessionLockExpired if it is not held."""
        session_id = self.text("session-id")
        if session_id is None:
            raise ArgumentInvalid("The request lacks its 'session-id'.")
        return self.sessions.held_session(session_id)

    @property
    def subscription(self) -> SubscriptionEntity:
        if not isinstance(self.target.entity, SubscriptionEntity) or self.target.is_dead_letters:
            raise NotAllowed("Only a subscription has rules.")
        return self.target.entity


class Operation(NamedTuple):
    """An operation, and the right that it needs."""

    right: AccessRight
    run: Callable[[ManagementCall], Reply]


def execute(
    request: AmqpRequest, target: AddressTarget, require: Callable[[AccessRight], None], session_id: str | None = None
) -> Reply:
    """Run the operation, if `require` grants its right. Errors become replies.

    `session_id` is the session of the link that the request names.
    """
    operation = OPERATIONS.get(request.operation)
    if operation is None:
        text = f"The operation '{request.operation[:100]}' is not implemented."
        return Reply(501, text, None, "amqp:not-implemented")
    try:
        require(operation.right)
        if not isinstance(request.body, Map):
            raise ArgumentInvalid("The body of a management request is a map.")
        return operation.run(ManagementCall(target, request.body, request.context, session_id))
    except ServiceError as error:
        return Reply.for_error(error)
    except (ProtocolError, RuleInvalid) as error:
        return Reply.for_error(ArgumentInvalid(error.message))


# Locks and settlement


def renew_lock(call: ManagementCall) -> Reply:
    renewed = [call.target.messages.renew(token) for token in call.tokens()]
    until = Array([Timestamp(message.locked_until_ms) for message in renewed], of=Timestamp)
    return Reply(body=Map([("expirations", until)]))


def update_disposition(call: ManagementCall) -> Reply:
    """Settle as a receiving link would; also for locks whose link is closed."""
    outcome, tokens, messages = _outcome(call), call.tokens(), call.messages
    if call.transaction is not None:
        call.transaction.settle(call.target.entity, messages, tokens, partial(settle_one, outcome))
        return Reply()
    sub_queue = messages.checked()
    for token in tokens:
        sub_queue.get_locked(token)
    for token in tokens:
        settle_one(outcome, sub_queue, token)
    return Reply()


def _outcome(call: ManagementCall) -> Outcome:
    """Return the outcome that a link would have for this disposition."""
    given = call.arguments.get("properties-to-modify")
    properties = given if isinstance(given, Map) else Map()
    match status := call.text("disposition-status") or "":
        case "completed":
            return Accepted()
        case "abandoned":
            return Modified(message_annotations=properties)
        case "defered":
            return Modified(undeliverable_here=True, message_annotations=properties)
        case "suspended":
            texts = ((REASON, call.text("deadletter-reason")), (DESCRIPTION, call.text("deadletter-description")))
            info = Map([*(pair for pair in texts if pair[1] is not None), *properties.pairs])
            return Rejected(Error("com.microsoft:dead-letter", "", info))
    raise ArgumentInvalid(f"The disposition-status '{status[:100]}' is not known.")


# Peeking


def peek_message(call: ManagementCall) -> Reply:
    call.target.check_browse()
    first, count = call.number("from-sequence-number"), min(call.number("message-count"), MAX_PEEK)
    session_id, messages = call.text("session-id") or call.link_session, call.target.messages
    with_body = call.arguments.get("omit-message-body") is not True
    if session_id is not None and isinstance(messages, SessionMessages):
        found = messages.peek_session(session_id, first, count)
    else:
        found = messages.peek(first, count)
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


def receive_by_sequence_number(call: ManagementCall) -> Reply:
    """Receive deferred messages: settle mode 0 deletes them, 1 locks them."""
    call.target.check_receive()
    queue = call.messages
    delete = call.arguments.get("receiver-settle-mode") == 0
    received: list[Value] = []
    for message in queue.receive_deferred(call.numbers("sequence-numbers")):
        received.append(
            Map([("lock-token", message.lock_uuid), ("message", service_envelope.encode_delivery(message))])
        )
        if delete:
            queue.checked().complete(message.lock_token)
    return Reply(body=Map([("messages", received)]))


def batch_delete_messages(call: ManagementCall) -> Reply:
    """Delete active messages enqueued before a time, oldest first; locked and deferred messages stay."""
    call.target.check_receive()
    limit, before_ms = call.number("message-count"), call.number("enqueued-time-utc")
    entity = call.target.entity
    if entity.partitions is not None:
        raise NotAllowed("Messages of an entity with partitioning enabled cannot be deleted in batches.")
    if not 0 < limit <= entity.namespace.tier.deleted_at_once:
        raise ArgumentInvalid(f"A 'message-count' to delete is from 1 to {entity.namespace.tier.deleted_at_once}.")
    deleted = call.target.messages.delete(limit, before_ms, call.text("session-id"))
    if not deleted:
        return Reply(204, "NoContent", None, "com.microsoft:message-not-found")
    return Reply(body=Map([("message-count", Int(deleted))]))


# Scheduled messages


def schedule_message(call: ManagementCall) -> Reply:
    """Schedule messages, or keep them for a commit: their sequence numbers are known before it."""
    if call.target.is_dead_letters:
        raise ArgumentInvalid("Nothing can be sent to a dead-letter queue.")
    call.target.check_browse()
    entity, entries = call.target.entity, call.arguments.get("messages")
    messages = [_to_schedule(entity, entry) for entry in entries] if isinstance(entries, list) else []
    if not messages:
        raise ArgumentInvalid("There are no 'messages' to schedule.")
    transaction = call.transaction
    numbers = entity.schedule(messages) if transaction is None else transaction.schedule(entity, messages)
    array = Array([Long(number) for number in numbers], of=Long)
    return Reply(body=Map([("sequence-numbers", array)]))


def _to_schedule(entity: QueueEntity, entry: Value) -> StoredMessage:
    payload = entry.get("message") if isinstance(entry, Map) else None
    if not isinstance(payload, bytes):
        raise ArgumentInvalid("A message to schedule comes as a map with its encoded 'message'.")
    if len(payload) > entity.max_message_bytes:
        raise MessageTooLarge(f"The message of {len(payload)} bytes is larger than the entity allows.")
    message = service_envelope.read_message(
        payload,
        with_id=entity.description.requires_duplicate_detection,
        with_bytes=entity.namespace.fault_points.takes_bytes(entity.path.lower()),
    )
    if message is None or message.scheduled_at_ms is None:
        raise ArgumentInvalid("A message to schedule needs the annotation x-opt-scheduled-enqueue-time.")
    return message


def cancel_scheduled_message(call: ManagementCall) -> Reply:
    numbers = call.numbers("sequence-numbers")
    if call.transaction is None:
        call.target.entity.cancel_scheduled(numbers)
    else:
        call.transaction.cancel_scheduled(call.target.entity, numbers)
    return Reply()


# Sessions


def renew_session_lock(call: ManagementCall) -> Reply:
    return Reply(body=Map([("expiration", Timestamp(call.session.renew()))]))


def get_session_state(call: ManagementCall) -> Reply:
    return Reply(body=Map([("session-state", call.session.state or None)]))  # as the client for Go expects


def set_session_state(call: ManagementCall) -> Reply:
    held, state, entity = call.session, call.arguments.get("session-state"), call.target.entity
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("A 'session-state' is binary, or null to clear it.")
    if len(state or b"") > STATE_BYTES:
        raise ArgumentInvalid(f"A session state has at most {STATE_BYTES} bytes.")
    if call.transaction is None:
        entity.check_quota(len(state or b"") - len(held.state or b""))
        held.set_state(state)
    else:
        call.transaction.set_state(entity, held, state)
    return Reply()


def get_message_sessions(call: ManagementCall) -> Reply:
    """List a page of ids: sessions with messages or state, or those whose state changed after a time."""
    after, skip, top = (max(0, call.number(name)) for name in ("last-updated-time", "skip", "top"))
    found = call.sessions.list_sessions(None if after >= END_OF_TIME_MS else after)
    found = found[skip : skip + min(top, MAX_PAGE)]
    if not found:
        return Reply(204, "NoContent", None, "com.microsoft:session-not-found")
    return Reply(body=Map([("skip", Int(skip + len(found))), ("sessions-ids", Array(found, of=str))]))


# Rules


def add_rule(call: ManagementCall) -> Reply:
    name, description = call.text("rule-name"), call.arguments.get("rule-description")
    if not name or not isinstance(description, Map):
        raise ArgumentInvalid("A rule to add comes with its 'rule-name' and a map 'rule-description'.")
    rule = rules.SubscriptionRule(name, _read_filter(description), _read_action(description))
    call.subscription.add_rule(rule)
    return Reply()


def remove_rule(call: ManagementCall) -> Reply:
    call.subscription.remove_rule(call.text("rule-name") or "")
    return Reply()


def enumerate_rules(call: ManagementCall) -> Reply:
    skip, top = call.number("skip", 0), call.number("top", 0)
    page = call.subscription.rules[skip : skip + top]
    if not page:
        return Reply(204, "NoContent")
    return Reply(body=Map([("rules", [Map([("rule-description", _write_rule(rule))]) for rule in page])]))


def _read_filter(description: Map) -> filters.Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if isinstance(sql, Map):
        return filters.SqlRuleFilter(text_at(sql, "expression") or "", _named(sql.get("parameters")))
    if isinstance(correlation, Map):
        texts = {field: text_at(correlation, field.replace("_", "-")) for field in filters.CORRELATION_FIELDS}
        return filters.CorrelationRuleFilter(**texts, properties=_named(correlation.get("properties")))
    if "false-filter" in description:
        return filters.FalseRuleFilter()
    if "true-filter" in description or not any(str(key).endswith("-filter") for key in description):
        return filters.TrueRuleFilter()
    raise ArgumentInvalid("The filter of a rule is one of sql-filter, correlation-filter, true-filter, false-filter.")


def _read_action(description: Map) -> rules.SqlAction | None:
    action = description.get("sql-rule-action")
    if not isinstance(action, Map) or action.get("expression") is None:
        return None
    return rules.SqlAction(text_at(action, "expression") or "", _named(action.get("parameters")))


def _named(properties: Value) -> filters.NamedValues:
    if properties is None:
        return ()
    if not isinstance(properties, Map):
        raise ArgumentInvalid("The properties of a filter are a map.")
    return tuple((str(name), from_amqp(value)) for name, value in properties.pairs)


def _write_rule(rule: rules.SubscriptionRule) -> Described:
    return Described(
        RULE, [_write_filter(rule.filter), _write_action(rule.action), rule.name, Timestamp(rule.created_at_ms)]
    )


def _write_filter(rule_filter: filters.Filter) -> Described:
    if isinstance(rule_filter, filters.SqlRuleFilter):
        return Described(SQL_FILTER, [rule_filter.expression, COMPATIBILITY_LEVEL])
    if isinstance(rule_filter, filters.CorrelationRuleFilter):
        texts = [getattr(rule_filter, field) for field in filters.CORRELATION_FIELDS]
        return Described(
            CORRELATION_FILTER, [*texts, Map((name, typed.original) for name, typed in rule_filter.properties)]
        )
    return Described(TRUE_FILTER if isinstance(rule_filter, filters.TrueRuleFilter) else FALSE_FILTER, [])


def _write_action(action: rules.SqlAction | None) -> Described:
    if action is None:
        return Described(EMPTY_ACTION, [])
    return Described(SQL_ACTION, [action.expression, COMPATIBILITY_LEVEL])


_OF_SENDERS: Final = (schedule_message, cancel_scheduled_message)
_OF_RECEIVERS: Final = (
    *(renew_lock, update_disposition, peek_message, receive_by_sequence_number, batch_delete_messages),
    *(renew_session_lock, get_session_state, set_session_state, get_message_sessions),
    # Not Manage: a receiver of a subscription may change its rules.
    *(add_rule, remove_rule, enumerate_rules),
)
OPERATIONS: Final[dict[str, Operation]] = {
    f"com.microsoft:{run.__name__.replace('_', '-')}": Operation(right, run)
    for right, operations in ((AccessRight.SEND, _OF_SENDERS), (AccessRight.LISTEN, _OF_RECEIVERS))
    for run in operations
}
"""By the names of the functions, which are the service's."""
