"""A message as an entity stores it: an opaque payload and the fields that the service itself needs.

Entities never look into `content`. A frontend makes a StoredMessage of what it receives, and sends what one holds.
"""

from __future__ import annotations

import uuid
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.emulator.clock import NEVER

# The first three are the values that the service gives to clients as a message's state.
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
LOCKED: Final = 3
REMOVED: Final = 4


NUMBER_BITS: Final = 48


def partition_id(sequence: int) -> int:
    """Return the id of the partition that gave a sequence number, from 1 on; 0 in an entity without partitions."""
    return sequence >> NUMBER_BITS


class DeadLetterReason(NamedTuple):
    """The reason why a message is in a dead-letter queue, and the path of the entity that it was in before."""

    reason: str | None
    description: str | None
    source: str


@dataclass(slots=True, eq=False, repr=False)
class StoredMessage:
    """One message of one sub-queue. It has slots only: an emulator may hold a million of these.

    The frontend sets the arguments; `message_id` only where the entity detects duplicates, since it costs memory. The
    entity sets the rest. `enqueued_sequence_number` is the number in the entity that the message was first sent to, 0
    if this one; `hops` counts how often it was forwarded since. `dead_letter_source` is the entity from whose
    dead-letter queue it was forwarded. `delivery_count` counts failed deliveries, as the AMQP header does. `lock_token`
    is new with every delivery: 16 opaque bytes, which clients see as a GUID. `reported_state` is the state that clients
    see: ACTIVE, DEFERRED, or SCHEDULED for a message that ever waited for its time.
    """

    # Without types, since they are no slots: a message that was not forwarded has these values.
    enqueued_sequence_number = 0
    hops = 0
    dead_letter_source = ""

    content: Sections | bytes
    size: int
    _: KW_ONLY
    message_id: str | None = None
    ttl_ms: int | None = None
    session_id: str | None = None
    scheduled_at_ms: int | None = None
    partition_key: str | None = None
    sequence_number: int = field(default=0, init=False)
    enqueued_at_ms: int = field(default=0, init=False)
    expires_at_ms: int = field(default=NEVER, init=False)
    delivery_count: int = field(default=0, init=False)
    lock_token: bytes = field(default=b"", init=False)
    locked_until_ms: int = field(default=0, init=False)
    state: int = field(default=ACTIVE, init=False)
    reported_state: int = field(default=ACTIVE, init=False)
    dead_letter: DeadLetterReason | None = field(default=None, init=False)

    @property
    def sections(self) -> Sections:
        """The sections of the payload, split at the first access. Most messages stay the bytes that came in."""
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

    def is_in_session(self, session_id: str) -> bool:
        """Return whether this is a session of the message: case is ignored."""
        return self.session_id is not None and self.session_id.lower() == session_id.lower()

    def for_subscription(self) -> ForwardedMessage:
        """Return a copy for a subscription, which sets its own number and times. The sections are shared."""
        copied = ForwardedMessage.copy(self, self.content, hops=self.hops)
        copied.reported_state = self.reported_state
        return copied

    def as_dead_letter(self, reason: DeadLetterReason) -> StoredMessage:
        """Return a copy for the dead-letter queue, where nothing expires. It keeps number, time and count."""
        dead_letter = copy(self)
        dead_letter.state, dead_letter.reported_state, dead_letter.scheduled_at_ms = ACTIVE, ACTIVE, None
        dead_letter.expires_at_ms, dead_letter.dead_letter = NEVER, reason
        return dead_letter


class ForwardedMessage(StoredMessage):
    """A message that came from another entity: from a topic, or by auto-forwarding."""

    __slots__ = ("dead_letter_source", "enqueued_sequence_number", "hops")

    @classmethod
    def copy(cls, message: StoredMessage, content: Sections | bytes, *, hops: int) -> ForwardedMessage:
        """Return a copy of `message` with this content for the next entity."""
        forwarded = cls(
            content,
            message.size,
            message_id=message.message_id,
            ttl_ms=message.ttl_ms,
            session_id=message.session_id,
            partition_key=message.partition_key,
        )
        forwarded.hops = hops
        forwarded.dead_letter_source = message.dead_letter.source if message.dead_letter else message.dead_letter_source
        forwarded.enqueued_sequence_number = message.enqueued_sequence_number or message.sequence_number
        return forwarded
