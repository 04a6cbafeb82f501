"""Dead letters: the reasons that a mover gives, their cause, and the original message. Pure.

Invariant: only the properties that dead-lettering added are removed; every other byte stays.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sbpair.amqp import codec, splice
from sbpair.amqp.message import Sections
from sbpair.amqp.types import Value
from sbpair.errors import ProtocolError

CAUSE = REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
NO_REASON = "(none)"


class NotSentReason(StrEnum):
    """The reason in the dead letter of a message that is not sent. EXPIRED is the service's own word for it."""

    INVALID = "InvalidBacklogMessage"
    REFUSED = "RefusedByPrimary"
    MISSING = "DestinationNotFound"
    DUPLICATE = "DuplicateDetection"
    EXPIRED = "TTLExpiredException"


class DeadLetterCause(NamedTuple):
    """The cause given by the service or the client that dead-lettered the message; None if not given."""

    reason: str | None = None
    description: str | None = None


def cause_of(payload: bytes) -> DeadLetterCause:
    """Return why an encoded message was dead-lettered, as `cause_in` does."""
    try:
        return cause_in(Sections.split(payload))
    except ProtocolError:
        return DeadLetterCause()


def cause_in(sections: Sections) -> DeadLetterCause:
    """Return why a message was dead-lettered; an unreadable one has no cause. Never raises."""
    try:
        pairs = splice.map_pairs(sections.application_properties)
        found = {key: codec.decode_all(value) for key, _, value in pairs if _is_cause(key)}
    except ProtocolError:
        return DeadLetterCause()
    reason, description = (found.get(name) for name in (REASON, DESCRIPTION))
    return DeadLetterCause(_text(reason), _text(description))


def without_cause(payload: bytes) -> bytes:
    """Return the message without its dead-letter cause; an unreadable one unchanged."""
    try:
        sections = Sections.split(payload)
        kept = splice.without(sections.application_properties, _is_cause)
    except ProtocolError:
        return payload
    if kept == sections.application_properties:
        return payload
    sections.application_properties = kept
    return sections.join()


def _is_cause(key: Value) -> bool:
    return key in CAUSE


def _text(value: Value) -> str | None:
    return value.encode(errors="replace").decode() if isinstance(value, str) else None
