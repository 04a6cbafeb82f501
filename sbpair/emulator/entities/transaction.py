"""A transaction: operations on one entity and partition that take effect together when it is committed, or not at all.

Invariant: the commit checks all operations again, and applies them only if all checks pass. No lock expires in between.
Before the commit, sent messages cannot be received, and settled messages stay locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from sbpair.amqp_server.refusals import EntityFull, NotAllowed, ServiceError
from sbpair.amqp_server.shared_access import is_within
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.message_order import message_lock_lost
from sbpair.emulator.entities.partitions import partition_key_of, partition_of, transfer_key_of
from sbpair.emulator.entities.queue import QueueEntity, entity_not_found
from sbpair.emulator.service_errors import MessageNotFound, TransactionRolledBack

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.sessions import HeldSession
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue

MAX_MESSAGES: Final = 100
TIMEOUT_MS: Final = 120_000
_SPANS_ENTITIES: Final = "Local transactions cannot span multiple entities or partitions."


class SendVia:
    """The way to `destination` through `via`, so that one transaction can have both ("send via").

    `via` stores messages unseen and forwards them at once. Those that `destination` refuses go to the transfer
    dead-letter queue of `via`.
    """

    credits_per_message = 1

    def __init__(self, via: QueueEntity, destination: QueueEntity) -> None:
        self.via = via
        self.destination = destination
        self.description = via.description
        self.max_message_bytes = via.max_message_bytes

    def check_send(self) -> None:
        self.via.check_status()

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Refuse: each delivery is checked by `send`."""
        del messages
        return False

    def send(self, messages: Sequence[StoredMessage]) -> None:
        """Store messages for the destination. Raises the errors of a `send` to `via`."""
        self.check_batch(messages)
        self.store(messages)

    def check_batch(self, messages: Sequence[StoredMessage], pending_bytes: int = 0) -> None:
        """Raise the error of a `send`; `pending_bytes` are to be stored before."""
        via = self.via
        self.check_send()
        if via.partitions is not None:
            via.partitions.check_keys({transfer_key_of(message) for message in messages})
        via.check_quota(via.check_sizes(messages) + pending_bytes)

    def store(self, messages: Sequence[StoredMessage]) -> None:
        self.via.transfers_to(self.destination.path).enqueue(messages)


SendTarget: TypeAlias = QueueEntity | SendVia


class Trial:
    """A sub-queue for settlements that raise their errors and change nothing."""

    def __init__(self, messages: SubQueue) -> None:
        self._messages = messages

    def modify(self, token: bytes, change: Callable[[StoredMessage], None]) -> None:
        change(copy(self._messages.get_locked(token)))

    def complete(self, token: bytes) -> None:
        self._messages.get_locked(token)

    abandon = release = defer = complete

    def dead_letter(self, token: bytes, reason: str | None = None, description: str | None = None) -> None:
        del reason, description
        self._messages.get_locked(token)
        self._messages.check_dead_letter()


Settlement: TypeAlias = "Callable[[SubQueue | Trial, bytes], None]"


def _release(messages: SubQueue | HeldSession, token: bytes) -> None:
    with suppress(ServiceError):  # the lock is lost, which does the same
        messages.checked().release(token)


def _try(settlement: Settlement, messages: SubQueue | HeldSession, token: bytes) -> None:
    settlement(Trial(messages.checked()), token)


class Place(NamedTuple):
    """The queue or topic, and its partition, that all operations of a transaction have in common."""

    entity: QueueEntity
    partition: int | None


class PendingOperation(NamedTuple):
    """A requested operation on `messages` of an entity. `check` raises if `apply` would. `undo` follows a rollback."""

    entity: QueueEntity
    messages: SubQueue
    check: Callable[[], object]
    apply: Callable[[], object]
    undo: Callable[[], object] = lambda: None


class PendingSend(NamedTuple):
    """Requested messages. `store` stores them, once they are checked."""

    target: SendTarget
    messages: Sequence[StoredMessage]
    store: Callable[[], object]

    @property
    def entity(self) -> QueueEntity:
        """The entity that has the messages first."""
        return self.target.via if isinstance(self.target, SendVia) else self.target

    @property
    def size(self) -> int:
        return sum([message.size for message in self.messages])


class Transaction:
    """One transaction of a client. It is rolled back TIMEOUT_MS after its first operation, if it has not ended."""

    def __init__(self, namespace: Namespace, txn_id: bytes) -> None:
        self.id = txn_id
        self._due_ms = NEVER
        self._namespace = namespace
        self._place: Place | None = None
        self._key: str | None = None
        self._failure: str | None = None
        self._is_over = False
        self._clear()

    def _clear(self) -> None:
        self._operations: dict[object, PendingOperation] = {}  # by the message or session that they change
        self._sends: list[PendingSend] = []
        self.on_committed: list[Callable[[], None]] = []

    # Sends

    def send(self, target: SendTarget, messages: Sequence[StoredMessage]) -> None:
        """Check messages and keep them for the commit. Raises the errors of `target.send`, EntityFull, NotAllowed."""
        self._add_send(PendingSend(target, messages, partial(target.store, messages)))

    def schedule(self, entity: QueueEntity, messages: Sequence[StoredMessage]) -> list[int]:
        """Keep messages with a scheduled_at_ms for the commit; return the sequence numbers that will cancel them."""
        self._add_send(PendingSend(entity, messages, partial(entity.store, messages, entity.messages.put_scheduled)))
        entity.messages.reserve(messages)
        return [message.sequence_number for message in messages]

    def _add_send(self, send: PendingSend) -> None:
        place, key = self._place_of(send)
        if sum([len(each.messages) for each in [*self._sends, send]]) > MAX_MESSAGES:
            raise EntityFull(f"Cannot send more than {MAX_MESSAGES} messages in a single transaction.")
        _check_after(self._sends, send)
        self._begin(place)
        self._key = key
        self._sends.append(send)

    # Other operations

    def settle(
        self,
        entity: QueueEntity,
        messages: SubQueue | HeldSession,
        tokens: Sequence[bytes],
        settlement: Settlement,
        *,
        is_settled: bool = False,
    ) -> None:
        """Check that all of these messages can be settled, and keep that for the commit.

        After a rollback they stay locked, unless the client has settled them and so forgotten their locks.
        """
        if any(token in self._operations for token in tokens):
            raise message_lock_lost()
        sub_queue = messages.checked()
        place = self._place_with(entity, [sub_queue.get_locked(token) for token in tokens])
        pending: dict[object, PendingOperation] = {}
        for token in tokens:
            check = partial(_try, settlement, messages, token)
            check()
            apply = partial(settlement, sub_queue, token)
            pending[token] = PendingOperation(entity, sub_queue, check, apply)
            if is_settled:
                pending[token] = pending[token]._replace(undo=partial(_release, messages, token))
        self._begin(place)
        self._operations |= pending

    def cancel_scheduled(self, entity: QueueEntity, sequences: Sequence[int]) -> None:
        """Check that all of these scheduled messages exist, and cancel them with the commit."""
        messages = entity.messages
        found = messages.scheduled(sequences)
        for message in found:
            if message in self._operations:
                raise MessageNotFound(f"Message {message.sequence_number} is cancelled in this transaction.")
        self._begin(self._place_with(entity, found))
        for message in found:
            number = (message.sequence_number,)
            check, apply = partial(messages.scheduled, number), partial(messages.cancel_scheduled, number)
            self._operations[message] = PendingOperation(entity, messages, check, apply)

    def set_state(self, entity: QueueEntity, held: HeldSession, state: bytes | None) -> None:
        """Set the state of a session with the commit."""
        partition = None if entity.partitions is None else entity.partitions.for_key(held.id)
        place = self._at(Place(entity.top_level, partition))
        entity.check_quota(len(state or b"") - len(held.state or b""))
        self._begin(place)
        self._operations[held] = PendingOperation(entity, held.checked(), held.checked, partial(held.set_state, state))

    # The place

    def _place_of(self, send: PendingSend) -> tuple[Place, str | None]:
        """Return the place and the partition key of messages. Raises NotAllowed if they do not belong here."""
        partitions = send.entity.partitions
        if partitions is None:
            return self._at(Place(send.entity.top_level, None)), self._key
        key_of = transfer_key_of if isinstance(send.target, SendVia) else partition_key_of
        key, *others = {key_of(message) for message in send.messages}
        if key is None or others:
            raise NotAllowed("InvalidOperation: all messages of a transaction must have the same partition key.")
        if self._key is not None and key != self._key:
            raise NotAllowed(_SPANS_ENTITIES)
        return self._at(Place(send.entity.top_level, partitions.for_key(key))), key

    def _place_with(self, entity: QueueEntity, stored: Sequence[StoredMessage]) -> Place | None:
        """Return the place of stored messages, or the present one. Raises NotAllowed if they do not belong here."""
        has_partitions = entity.partitions is not None
        partitions = {partition_of(message.sequence_number) if has_partitions else None for message in stored}
        if len(partitions) > 1:
            raise NotAllowed(_SPANS_ENTITIES)
        return self._at(Place(entity.top_level, *partitions)) if partitions else self._place

    def _at(self, place: Place) -> Place:
        if self.is_over:
            raise NotAllowed(
                f"No active Transaction was found for ID '{self.id.decode()}'. The Transaction may have timed out or "
                "attempted to span multiple top-level entities such as Queue or Topic. "
                "The server Transaction timeout is: 00:02:00."
            )
        if self._place not in (None, place):
            raise NotAllowed(_SPANS_ENTITIES)
        return place

    def _begin(self, place: Place | None) -> None:
        """Let the time run from the first operation."""
        if self._place is None and place is not None:
            self._place = place
            self._due_ms = self._namespace.clock.now_ms() + TIMEOUT_MS

    # The end

    @property
    def is_over(self) -> bool:
        """Whether it was committed or rolled back, or its time has run out."""
        # A timer would keep each transaction in memory for two minutes, and until it is used nothing shows its end.
        if self._due_ms <= self._namespace.clock.now_ms():
            self.roll_back()
        return self._is_over

    def doom(self, reason: str) -> None:
        """Let the commit fail with this reason."""
        self._failure = reason

    def doom_within(self, path: str, reason: str) -> None:
        """Let the commit fail if there is an operation on an entity within `path`."""
        entities = [each.entity for each in self._operations.values()] + [each.entity for each in self._sends]
        if any(is_within(entity.path.lower(), path) for entity in entities):
            self.doom(reason)

    def roll_back(self) -> None:
        """Drop all operations. Messages that the client was still to settle stay locked."""
        operations = list(self._operations.values())
        self._end()
        for operation in operations:
            operation.undo()

    def _end(self) -> None:
        self._due_ms = NEVER
        self._is_over = True
        self._clear()

    def commit(self) -> None:
        """Apply all operations. If one has become impossible, apply none and raise TransactionRolledBack."""
        operations, sends, callbacks = list(self._operations.values()), self._sends, self.on_committed
        paused = {each.messages for each in operations}
        for messages in paused:
            messages.pause()
        try:
            self._check(operations, sends)
            for operation in operations:
                operation.apply()
        except TransactionRolledBack:
            self.roll_back()
            raise
        finally:
            for messages in paused:
                messages.unpause()
            self._end()
        for send in sends:
            send.store()
        for callback in callbacks:
            callback()

    def _check(self, operations: list[PendingOperation], sends: list[PendingSend]) -> None:
        if self._failure is not None:
            raise TransactionRolledBack(f"The transaction has been rolled back: {self._failure}")
        try:
            for entity in [*(each.entity for each in operations), *(each.entity for each in sends)]:
                self._check_entity(entity)
            for operation in operations:
                operation.check()
            for number, send in enumerate(sends):
                _check_after(sends[:number], send)
        except ServiceError as error:
            raise TransactionRolledBack(f"The transaction has been rolled back: {error.message}") from error

    def _check_entity(self, entity: QueueEntity) -> None:
        """Raise an error if the entity was deleted, or is down."""
        if self._namespace.entity(entity.path) is not entity:
            raise entity_not_found(self._namespace.endpoint, entity.path)
        self._namespace.fault_points.check(entity.path.lower())


def _check_after(before: Sequence[PendingSend], send: PendingSend) -> None:
    """Raise the error of sending messages after those of the same transaction."""
    pending_bytes = sum([each.size for each in before if each.entity is send.entity])
    send.target.check_batch(send.messages, pending_bytes)
