"""A queue: its description, its messages, its checks and its counts; and what the entities of a namespace share.

It is synchronous and knows no protocol. `messages` and `dead_letters` are sub-queues to receive from and settle on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from sbpair.amqp_server.refusals import ArgumentInvalid, EntityFull, MessageTooLarge, NotAllowed, ServiceError
from sbpair.amqp_server.shared_access import AuthorizationRule, path_of, scope_of
from sbpair.emulator.bearer_tokens import Bearers
from sbpair.emulator.clock import NEVER, Runtime
from sbpair.emulator.entities.description import MEGABYTE, STANDARD, QueueDescription
from sbpair.emulator.entities.forwarding import HOPS_EXCEEDED, MAX_HOPS, Forwarder, SessionForwarder, forwarded_copy
from sbpair.emulator.entities.partitions import PartitionedMessages, PartitionedSessions, Partitions, partition_key_of
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.stored_message import DeadLetterReason, StoredMessage
from sbpair.emulator.entities.subqueue import OnDeadLettered, SubQueue
from sbpair.emulator.faults.fault_points import FaultPoints
from sbpair.emulator.service_errors import (
    MANAGEMENT_HELP,
    MESSAGING_HELP,
    EntityDisabled,
    EntityNotFound,
    dead_letter_reason,
)

ROOT_RULE: Final = AuthorizationRule("RootManageSharedAccessKey", "SAS_KEY_VALUE", "SAS_KEY_VALUE_2")
"""The well-known key of emulators: no secret."""

MAX_BATCH_MESSAGES: Final = 4500
MAX_BATCH_BYTES: Final = 1_048_576
"""The limit of a batch, also where a single message may be larger."""

SUBSCRIPTIONS_SEGMENT: Final = "Subscriptions"

Put = Callable[[Sequence[StoredMessage]], None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """The service's CountDetails. Messages that wait to be forwarded are `transfer`, not `active`."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


class EntityObserver:
    """An observer that keeps nothing. It is called after a change of an entity, but not for its messages."""

    def created(self, entity: QueueEntity) -> None:
        """React to a new entity, which holds no messages yet."""

    def changed(self, entity: QueueEntity) -> None:
        """React to a new description, or to a change of rules."""

    def transfer_begun(self, entity: QueueEntity, destination: str) -> None:
        """React to an entity's first transfer to this destination, which holds no messages yet."""

    def deleted(self, entity: QueueEntity) -> None:
        """React to a deletion, before the messages and the subscriptions of the entity are gone."""

    def namespace_changed(self) -> None:
        """React to new keys of a namespace, or to a change of its hybrid connections."""


class EntitySpace(Runtime):
    """The name, keys, fault points and time that the entities of a namespace share, and the entities by path.

    `authority` is the host and port that clients use, once it has one. The callbacks in `on_outage` are called when the
    namespace goes down, those in `on_refusing` when an entity cannot be used any more, or not in every way.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        super().__init__(runtime.clock, runtime.timers, runtime.call_soon)
        self.name = self.authority = name
        self.tier = STANDARD
        self.observer = EntityObserver()
        self.fault_points = FaultPoints()
        self.bearers = Bearers()
        self.on_outage: set[Callable[[], None]] = set()
        self.on_refusing: dict[Callable[[ServiceError], None], None] = {}
        self.entities: dict[str, QueueEntity] = {}
        """Queues and topics, by path in lower case."""

        self._keys: tuple[AuthorizationRule, ...] = (ROOT_RULE,)

    @property
    def keys(self) -> tuple[AuthorizationRule, ...]:
        return self._keys

    @keys.setter
    def keys(self, keys: tuple[AuthorizationRule, ...]) -> None:
        self._keys = keys
        self.observer.namespace_changed()

    @property
    def endpoint(self) -> str:
        return f"sb://{self.authority}"

    def find(self, path: str) -> QueueEntity | None:
        """Return the queue, topic or subscription of this path, if there is one."""
        path = path.strip("/").lower()
        if path in self.entities:
            return self.entities[path]
        topic, _, name = path.rpartition(f"/{SUBSCRIPTIONS_SEGMENT.lower()}/")
        return self.entities[topic].find_subscription(name) if topic in self.entities else None

    def is_taken(self, path: str) -> bool:
        """Return whether an entity of any kind has this path. A queue could have that of a subscription."""
        return self.find(path) is not None

    def find_target(self, address: str, endpoint: str = "") -> QueueEntity:
        """Return the queue or topic of this address. Raises EntityNotFound, which names it at `endpoint`."""
        return found(self.entities.get(scope_of(address)), endpoint or self.endpoint, path_of(address))


class DuplicateDetector:
    """The message ids that an entity has seen within its window. Older ones are dropped with the next send.

    In a partitioned entity, messages of one id are duplicates only if they have the same partition key. `window_ms` may
    change at any time, and applies to earlier ids too.
    """

    def __init__(self, *, by_partition_key: bool) -> None:
        self.window_ms = 0
        self.seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._by_partition_key = by_partition_key

    def _key_of(self, message: StoredMessage) -> str | None:
        if message.message_id is None or not self._by_partition_key:
            return message.message_id
        key = partition_key_of(message) or ""
        return f"{len(key)}:{key}{message.message_id}"

    def enqueue_new(
        self, messages: Sequence[StoredMessage], now_ms: int, enqueue: Callable[[list[StoredMessage]], None]
    ) -> None:
        """Pass new messages to `enqueue`. A duplicate gets the sequence number of the message before it."""
        self._drop_old(now_ms)
        keys = [self._key_of(message) for message in messages]
        first: dict[str, StoredMessage] = {}
        new = [
            message
            for key, message in zip(keys, messages, strict=True)
            if key is None or (key not in self.seen and first.setdefault(key, message) is message)
        ]
        enqueue(new)
        for new_key, message in first.items():
            self.seen[new_key] = (now_ms, message.sequence_number)
        for key, message in zip(keys, messages, strict=True):
            if key is not None:
                message.sequence_number = self.seen[key][1]

    def _drop_old(self, now_ms: int) -> None:
        seen = self.seen
        while seen and seen[next(iter(seen))][0] + self.window_ms <= now_ms:
            seen.popitem(last=False)


class QueueEntity:
    """A queue. `path` is written as it was created; lookups compare paths in lower case."""

    kind = "Queue"

    def __init__(self, namespace: EntitySpace, path: str, description: QueueDescription) -> None:
        self.namespace = namespace
        self.path = path
        self.description = description
        self.partitions = self._make_partitions()
        self.messages = self._make_messages()
        self.dead_letters = self._make(SubQueue, PartitionedMessages)
        self._transfer_dead_letters: SubQueue | None = None
        self._sub_queues = [self.messages, self.dead_letters]
        self._duplicates: DuplicateDetector | None = None
        self._forwarders: list[Forwarder] = []
        self._transfers: dict[str, tuple[SubQueue, Forwarder]] = {}
        self.created_at_ms = namespace.clock.now_ms()
        self._idle = namespace.deadline(NEVER, self._delete_if_idle)
        self.update(description)

    def _make_messages(self) -> SubQueue:
        if self.description.requires_session:
            return self._make(SessionMessages, PartitionedSessions, self._dead_letter)
        return self._make(SubQueue, PartitionedMessages, self._dead_letter)

    def _make(
        self,
        plain: type[SubQueue],
        partitioned: type[PartitionedMessages],
        on_dead_lettered: OnDeadLettered | None = None,
    ) -> SubQueue:
        if self.partitions is None:
            return plain(self.namespace, self.description, on_dead_lettered)
        return partitioned(self.namespace, self.description, on_dead_lettered, partitions=self.partitions)

    def _make_partitions(self) -> Partitions | None:
        count = self.description.partition_count
        return Partitions(count) if count > 1 else None

    def update(self, description: QueueDescription) -> None:
        """Apply a validated description. Messages already stored keep their deadlines."""
        self.description = description
        self.updated_at_ms = self.namespace.clock.now_ms()
        self._max_bytes = description.total_size_in_megabytes * MEGABYTE
        for part in self._sub_queues:
            part.configure(description)
        if description.requires_duplicate_detection:
            if self._duplicates is None:
                self._duplicates = DuplicateDetector(by_partition_key=self.partitions is not None)
            self._duplicates.window_ms = description.duplicate_detection_window_ms
        self._restart_forwarding()
        self._idle.wait_until(self.updated_at_ms + description.auto_delete_on_idle_ms)
        self.namespace.observer.changed(self)
        if description.status != "Active" or description.forward_to is not None:
            self._refuse(self._disabled())

    def _refuse(self, error: ServiceError) -> None:
        for callback in list(self.namespace.on_refusing):
            callback(error)

    def keep_history_in(self, seen: OrderedDict[str, tuple[int, int]]) -> None:
        """Keep the message ids that are seen in this table, if duplicates are detected."""
        if self._duplicates is not None:
            self._duplicates.seen = seen

    # Forwarding

    def _restart_forwarding(self) -> None:
        for forwarder in self._forwarders:
            forwarder.stop()
        d = self.description
        targets = ((self.messages, d.forward_to), (self.dead_letters, d.forward_dead_lettered_messages_to))
        self._forwarders = [self._forwarder(messages, target) for messages, target in targets if target is not None]
        self._resume_forwarding()

    def _forwarder(self, messages: SubQueue, target: str) -> Forwarder:
        forward = partial(self._forward, messages, target)
        return (SessionForwarder if isinstance(messages, SessionMessages) else Forwarder)(messages, forward)

    def _forward(self, messages: SubQueue, address: str, message: StoredMessage) -> None:
        """Send a message on, or dead-letter it. Raises EntityUnavailable or OperationTimedOut if it must wait."""
        self._check_up(address, message)
        # Complete first: a target that leads back here must not find it under lock.
        messages.complete(message.lock_token)
        if message.hops >= MAX_HOPS:
            text = f"The maximum number of allowed hops when forwarding between entities is {MAX_HOPS}."
            self.add_transfer_dead_letter(message, HOPS_EXCEEDED, text)
            return
        try:
            target = self.namespace.find_target(address)
            target.send([forwarded_copy(message, target.description)])
        except ServiceError as error:
            self.add_transfer_dead_letter(message, dead_letter_reason(error), error.message)

    def _check_up(self, address: str, message: StoredMessage) -> None:
        """Raise EntityUnavailable or OperationTimedOut if it must wait. Other errors show when it is sent."""
        check = self.namespace.fault_points.check
        check(self.path.lower())
        with suppress(EntityNotFound, NotAllowed):
            target = self.namespace.find_target(address)
            check(target.path.lower())
            if target.partitions is not None:
                target.partitions.check_batch([forwarded_copy(message, target.description)])

    def resume(self) -> None:
        """Wake receivers, and forward the messages that waited: something that was down is up again."""
        for part in self._sub_queues:
            part.resume()
        self._resume_forwarding()

    def expire_locks(self) -> None:
        """Expire the locks of all messages now, also of those that could not be forwarded."""
        for part in self._sub_queues:
            part.expire_locks()

    def _resume_forwarding(self) -> None:
        for forwarder in [*self._forwarders, *(forwarder for _, forwarder in self._transfers.values())]:
            forwarder.wake()

    def transfers_to(self, destination: str) -> SubQueue:
        """Return the sub-queue of messages that are sent to `destination` by way of this entity."""
        if destination not in self._transfers:
            messages = SubQueue(self.namespace, self.description, self.add_transfer_dead_letter)
            forwarder = self._forwarder(messages, destination)
            self._transfers[destination] = messages, forwarder
            self._sub_queues.append(messages)
            self.namespace.observer.transfer_begun(self, destination)
            forwarder.wake()
        return self._transfers[destination][0]

    def add_transfer_dead_letter(self, message: StoredMessage, reason: str | None, description: str | None) -> None:
        dead_letter = DeadLetterReason(reason, description, self.path)
        self.transfer_dead_letters.add_numbered_dead_letter(message.as_dead_letter(dead_letter))

    @property
    def transfer_dead_letters(self) -> SubQueue:
        """The messages that could not be forwarded. Made on first use: most entities have none, and may be many."""
        if self._transfer_dead_letters is None:
            self._transfer_dead_letters = SubQueue(self.namespace, self.description)
            self._sub_queues.append(self._transfer_dead_letters)
        return self._transfer_dead_letters

    @property
    def top_level(self) -> QueueEntity:
        """The queue or topic that this entity belongs to: a transaction has one."""
        return self

    def find_subscription(self, name: str) -> QueueEntity | None:  # noqa: ARG002  # a topic has some
        """Return the subscription of this name, if there is one."""
        return None

    @property
    def last_used_ms(self) -> int:
        """The time of the last use, other than its creation and updates: after these the idle time begins anew."""
        return self.accessed_at_ms

    @property
    def is_in_use(self) -> bool:
        has_consumers = self.messages.has_consumers or self.dead_letters.has_consumers
        return (has_consumers and not self._forwarders) or self.messages.scheduled_count > 0

    # Limits and counts

    @property
    def full_name(self) -> str:
        """The name in errors of the service's inner parts."""
        return f"{self.namespace.name}:{self.kind}:{self.path}"

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message that this queue accepts; a batch may have MAX_BATCH_BYTES of it at most."""
        return self.description.max_message_size_in_kilobytes * 1024

    @property
    def credits_per_message(self) -> int:
        """The cost of sending a message here where credits are counted."""
        return 1

    @property
    def size_bytes(self) -> int:
        return sum([part.size_bytes for part in self._sub_queues])

    @property
    def accessed_at_ms(self) -> int:
        return max(self.messages.accessed_at_ms, self.dead_letters.accessed_at_ms)

    def counts(self) -> EntityCounts:
        for part in (self.messages, self.dead_letters):
            part.advance_if_due()
        active, transfer = self.messages.active_count, 0
        if self.description.forward_to is not None:
            active, transfer = 0, active
        transfer += sum(len(messages) for messages, _ in self._transfers.values())
        scheduled, undelivered = self.messages.scheduled_count, len(self._transfer_dead_letters or ())
        return EntityCounts(active, len(self.dead_letters), scheduled, transfer, undelivered)

    # Send

    def send(self, messages: Sequence[StoredMessage]) -> None:
        """Store all of them, or none, and set their sequence numbers. Messages with a future time are scheduled.

        Raises MessageTooLarge, EntityFull, EntityDisabled, ArgumentInvalid.
        """
        self.check_batch(messages)
        self.store(messages)

    def check_batch(self, messages: Sequence[StoredMessage], pending_bytes: int = 0) -> None:
        """Raise the error of a `send`; `pending_bytes` are to be stored before."""
        self.check_send()
        if self.partitions is not None:
            self.partitions.check_batch(messages)
        else:
            for message in messages:
                if message.partition_key is not None:
                    partition_key_of(message)
        self.check_quota(self.check_sizes(messages) + pending_bytes)
        if self.description.requires_session:
            check_session_ids(messages)

    def check_sizes(self, messages: Sequence[StoredMessage]) -> int:
        """Return the size of a batch. Raises MessageTooLarge, ArgumentInvalid."""
        if len(messages) > MAX_BATCH_MESSAGES:
            raise ArgumentInvalid(f"A batch of {len(messages)} messages exceeds the limit of {MAX_BATCH_MESSAGES}.")
        size = sum([message.size for message in messages])
        limit = self.max_message_bytes if len(messages) == 1 else min(self.max_message_bytes, MAX_BATCH_BYTES)
        if size > limit:
            raise MessageTooLarge(f"The message or batch of {size} bytes exceeds the limit of {limit} bytes.")
        return size

    def store(self, messages: Sequence[StoredMessage], put: Put | None = None) -> None:
        """Store checked messages, without duplicates. `put`: how, `enqueue` by default."""
        put = put or self.messages.enqueue
        if self._duplicates is None:
            put(messages)
        else:
            self._duplicates.enqueue_new(messages, self.namespace.clock.now_ms(), put)

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Store messages as if `send` was called for each; return whether it did.

        It stores nothing if one of them might be refused, or needs a check: then send them one by one.
        """
        d = self.description
        if d.requires_session or self._duplicates is not None or self.partitions is not None or d.status != "Active":
            return False
        if {message.partition_key for message in messages} - {None}:
            return False
        sizes = [message.size for message in messages]
        largest = max(sizes, default=0)
        if largest > self.max_message_bytes or self.size_bytes + sum(sizes) > self._max_bytes:
            return False
        self.messages.enqueue(messages)
        return True

    def schedule(self, messages: Sequence[StoredMessage]) -> list[int]:
        """Send messages with a scheduled_at_ms; return the sequence numbers that cancel them."""
        self.send(messages)
        return [message.sequence_number for message in messages]

    def cancel_scheduled(self, sequences: Sequence[int]) -> None:
        self.messages.cancel_scheduled(sequences)

    # Checks

    def check_quota(self, more_bytes: int) -> None:
        """Raise EntityFull if the entity has no room for `more_bytes`."""
        if more_bytes > 0 and self.size_bytes + more_bytes > self._max_bytes:
            raise EntityFull(
                f"The maximum entity size has been reached or exceeded for {self.kind}: '{self.full_name}'. "
                f"Size of entity in bytes:{self.size_bytes}, Max entity size in bytes:{self._max_bytes}. "
                f"{MESSAGING_HELP} QuotaType: EntitySize"
            )

    def check_send(self) -> None:
        self.check_status()

    def check_status(self) -> None:
        """Raise EntityDisabled while messages cannot be sent to this entity, or by way of it."""
        if self.description.status == "SendDisabled":
            raise EntityDisabled(f"Messaging entity '{self.full_name}' is currently disabled for Send operations.")
        if self.description.status == "Disabled":
            raise self._disabled()

    def _disabled(self) -> EntityDisabled:
        name = f"{self.namespace.endpoint}/{self.path}"
        return EntityDisabled(f"Messaging entity '{name}' is currently disabled. {MESSAGING_HELP}")

    @property
    def is_limited(self) -> bool:
        """Whether a partition is down. The counts are those of all partitions nevertheless."""
        return self.partitions is not None and self.partitions.up_count < self.partitions.count

    def check_all_partitions(self) -> None:
        """Raise OperationTimedOut while a partition is down: management requests need all of them."""
        if self.partitions is not None:
            self.partitions.check_all()

    def check_receive(self) -> None:
        if self.description.status in ("Disabled", "ReceiveDisabled"):
            raise self._disabled()

    def check_not_forwarding(self, reader: str) -> None:
        """Raise NotAllowed if messages are forwarded, so that a `reader` has nothing to do here."""
        if self.description.forward_to is not None:
            raise NotAllowed(f"Cannot create a message {reader} on an entity with auto-forwarding enabled.")

    def _dead_letter(self, message: StoredMessage, reason: str | None, description: str | None) -> None:
        dead_letter = DeadLetterReason(reason, description, self.path)
        self.dead_letters.add_dead_letter(message.as_dead_letter(dead_letter))

    # Deletion

    def delete(self) -> None:
        """Delete the entity. Raises OperationTimedOut while a partition of it is down."""
        self.check_all_partitions()
        self.namespace.observer.deleted(self)
        self._remove()
        self.close()

    def _remove(self) -> None:
        del self.namespace.entities[self.path.lower()]

    def _delete_if_idle(self) -> None:
        """Delete the entity if it was not used for its AutoDeleteOnIdle. Checked then, so that no use sets a timer."""
        now_ms, limit = self.namespace.clock.now_ms(), self.description.auto_delete_on_idle_ms
        due_ms = (now_ms if self.is_in_use else self.last_used_ms) + limit
        if due_ms <= now_ms:
            # While a partition of it is down, it is tried again after another idle time.
            due_ms = now_ms + limit
            with suppress(ServiceError):
                self.delete()
                due_ms = NEVER
        self._idle.wait_until(due_ms)

    def close(self) -> None:
        """Drop the messages, and let connections close their links: the queue is deleted."""
        for part in self._sub_queues:
            part.clear()
        self._idle.cancel()
        self._refuse(EntityNotFound(f"The messaging entity '{self.path}' has been deleted."))


def check_session_ids(messages: Sequence[StoredMessage]) -> None:
    """Raise an error for a message without session id."""
    for message in messages:
        if message.session_id is None:
            raise NotAllowed(
                "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have "
                "session support enabled can only receive messages that have the SessionId set to a valid value."
            )


def found(entity: T | None, endpoint: str, path: str) -> T:
    """Return the entity, or raise EntityNotFound."""
    if entity is None:
        raise entity_not_found(endpoint, path)
    return entity


def entity_not_found(endpoint: str, path: str) -> EntityNotFound:
    """Return the error for the entity at `path`, which is named as the client wrote it."""
    return EntityNotFound(
        f"The messaging entity '{endpoint}/{path.strip('/')[:300]}' could not be found. {MANAGEMENT_HELP}"
    )
