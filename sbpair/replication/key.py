"""What copies of one message are known by. Pure.

The law: two values that differ are never one key: text, numbers and binary are told apart. A message without a value
has no key, and is no duplicate of anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

from azure.servicebus import ServiceBusReceivedMessage

from sbpair.errors import UsageError

Received: TypeAlias = ServiceBusReceivedMessage
KeyOf: TypeAlias = Callable[[Received], object]
"""What a message is known by: text, bytes, a number, a UUID; None or nothing at all where it has no key."""

LONGEST = 128
"""Longer ones are kept as a digest of theirs, for there may be many."""

PROPERTY = "property:"
HINT = 'say "id", "subject" or "property:NAME", or give a function of the message'


class KeyRule:
    """`by` is "id", "subject" (or "label"), "property:NAME" or a function. Raises UsageError for anything else."""

    def __init__(self, by: str | KeyOf) -> None:
        self.name = by if isinstance(by, str) else "function"
        self._of = by if callable(by) else _named(by)

    def of(self, message: Received) -> str | None:
        """The key of a message; None where it has none. Raises what a user's function raises."""
        value = self._of(message)
        if isinstance(value, bytes | bytearray):
            value = _text(bytes(value))
        if value is None or value in ("", b""):
            return None
        key = value if isinstance(value, str) else f"{type(value).__name__}:{value!r}"
        # Text that looks like one of those is given a mark of its own.
        key = f"str:{key}" if isinstance(value, str) and ":" in key else key
        return (
            key if len(key) <= LONGEST else f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"
        )


def _named(by: object) -> KeyOf:
    if by == "id":
        return lambda message: _property(message, "message_id")
    if by in ("subject", "label"):
        return lambda message: _property(message, "subject")
    name = by.removeprefix(PROPERTY) if isinstance(by, str) and by.startswith(PROPERTY) else ""
    if not name:
        raise UsageError(f"messages cannot be told apart by {by!r}", hint=HINT)
    return lambda message: _application_property(message, name)


def _property(message: Received, name: str) -> object:
    properties = message.raw_amqp_message.properties
    return getattr(properties, name) if properties else None


def _application_property(message: Received, name: str) -> object:
    found = message.application_properties or {}
    return found.get(name.encode(), found.get(name))


def _text(value: bytes) -> Any:
    """The SDK gives text as bytes; what is no text stays what it is."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
