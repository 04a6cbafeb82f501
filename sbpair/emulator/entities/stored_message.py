"""A message as an entity holds it: an opaque payload and what the service itself needs to know of it.

The entities never look into `content`. A door makes a Message out of what it received, and out of a Message what it
sends. Plain slots, no dataclass: there may be a million of these.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.emulator.clock import NEVER

# The first three are the values that the service gives to clients as a message's state.
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
LOCKED: Final = 3
GONE: Final = 4


class DeadLetterReason(NamedTuple):
    """Why a message is in a dead-letter queue, and the path of the entity that it was in before."""

    reason: str | None
    description: str | None
    source: str


class StoredMessage:
    """One message of one sub-queue.

    The door sets the arguments; `message_id` only where the entity detects duplicates, since it costs memory. The
    rest is the entity's. `enqueued_sequence_number` is its number in the entity that it was first sent to, if another,
    and `hops` how often it was forwarded since. `delivery_count` counts the deliveries that failed, as
    AMQP's header does. `lock_token` is new with every delivery: 16 opaque bytes, which clients see as a GUID.
    """

    __slots__ = (
        "content",
        "dead_letter",
        "deferred",
        "delivery_count",
        "enqueued_at_ms",
        "expires_at_ms",
        "lock_token",
        "locked_until_ms",
        "message_id",
        "partition_key",
        "scheduled_at_ms",
        "sequence_number",
        "session_id",
        "size",
        "state",
        "ttl_ms",
    )

    enqueued_sequence_number: int = 0
    hops: int = 0

    def __init__(
        self,
        content: Sections | bytes,
        size: int,
        *,
        message_id: str | None = None,
        ttl_ms: int | None = None,
        session_id: str | None = None,
        scheduled_at_ms: int | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.content = content
        self.size = size
        self.message_id = message_id
        self.ttl_ms = ttl_ms
        self.session_id = session_id
        self.scheduled_at_ms = scheduled_at_ms
        self.partition_key = partition_key
        self.sequence_number = 0
        self.enqueued_at_ms = 0
        self.expires_at_ms = NEVER
        self.delivery_count = 0
        self.lock_token = b""
        self.locked_until_ms = 0
        self.state = ACTIVE
        self.deferred = False
        self.dead_letter: DeadLetterReason | None = None

    @property
    def sections(self) -> Sections:
        """The payload in its parts. Most messages are never asked for them, and stay the bytes that they came as."""
        if isinstance(self.content, bytes):
            self.content = Sections.split(self.content)
        return self.content

    @sections.setter
    def sections(self, sections: Sections) -> None:
        self.content = sections

    @property
    def lock_uuid(self) -> uuid.UUID:
        """The lock token as management requests carry it. The token's own bytes are in .NET's order."""
        return uuid.UUID(bytes_le=self.lock_token)

    @property
    def reported_state(self) -> int:
        """The state as clients are told it: a locked message is an active, or a deferred, one."""
        if self.state == SCHEDULED:
            return SCHEDULED
        return DEFERRED if self.deferred else ACTIVE

    def for_subscription(self) -> ForwardedMessage:
        """The same message for a subscription, which numbers and times it anew. The sections are shared, not copied."""
        return ForwardedMessage.copy(self, self.content, hops=self.hops)

    def _twin(self) -> StoredMessage:
        return StoredMessage(
            self.content,
            self.size,
            message_id=self.message_id,
            ttl_ms=self.ttl_ms,
            session_id=self.session_id,
            partition_key=self.partition_key,
        )

    def as_dead_letter(self, dead_letter: DeadLetterReason) -> StoredMessage:
        """The same message for the dead-letter queue, where nothing expires. It keeps number, time and count."""
        twin = self._twin()
        twin.sequence_number = self.sequence_number
        twin.enqueued_at_ms = self.enqueued_at_ms
        twin.delivery_count = self.delivery_count
        twin.dead_letter = dead_letter
        return twin


class ForwardedMessage(StoredMessage):
    """A message that another entity has sent on: a topic to its subscriptions, or whoever forwards what it gets."""

    __slots__ = ("enqueued_sequence_number", "hops")

    @classmethod
    def copy(cls, message: StoredMessage, content: Sections | bytes, *, hops: int) -> ForwardedMessage:
        """What goes on to the next entity, with this content."""
        twin = cls(
            content,
            message.size,
            message_id=message.message_id,
            ttl_ms=message.ttl_ms,
            session_id=message.session_id,
            partition_key=message.partition_key,
        )
        twin.hops = hops
        twin.enqueued_sequence_number = message.enqueued_sequence_number or message.sequence_number
        return twin

    def _twin(self) -> ForwardedMessage:
        return self.copy(self, self.content, hops=self.hops)
