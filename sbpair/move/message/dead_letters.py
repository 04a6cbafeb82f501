"""Dead letters of a backlog queue: where they are, why they are there, and the message as it was before. Pure.

The law: what the service wrote when it put a message there is taken off, and every other byte stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp import codec, splice
from sbpair.amqp.message import Sections
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.types import Value

SUFFIX = "/$deadletterqueue"
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"


class DeadLetterCause(NamedTuple):
    """As the service, or whoever put the message there, has said it; None where nobody did."""

    reason: str | None = None
    description: str | None = None


def dead_letter_path(path: str) -> str:
    """The path of a queue's dead letters."""
    return path + SUFFIX


def is_dead_letter_path(path: str) -> bool:
    """Whether a path is that of some queue's dead letters."""
    return path.lower().endswith(SUFFIX)


def parent_path(path: str) -> str:
    """The queue that has these dead letters; any other path as it is."""
    return path[: -len(SUFFIX)] if is_dead_letter_path(path) else path


def cause_of(payload: bytes) -> DeadLetterCause:
    """Why a message is there. Never raises: one that cannot be read does not say."""
    try:
        pairs = splice.map_pairs(Sections.split(payload).application_properties)
        said = {key: codec.decode_all(value) for key, _, value in pairs if _is_ours(key)}
    except ProtocolError:
        return DeadLetterCause()
    reason, description = (said.get(name) for name in (REASON, DESCRIPTION))
    return DeadLetterCause(_text(reason), _text(description))


def without_cause(payload: bytes) -> bytes:
    """The message without why it was dead-lettered. One that cannot be read stays as it is."""
    try:
        sections = Sections.split(payload)
        kept = splice.without(sections.application_properties, _is_ours)
    except ProtocolError:
        return payload
    if kept == sections.application_properties:
        return payload
    sections.application_properties = kept
    return sections.join()


def _is_ours(key: Value) -> bool:
    return key in (REASON, DESCRIPTION) if isinstance(key, str) else False


def _text(value: Value) -> str | None:
    return value.encode(errors="replace").decode() if isinstance(value, str) else None
