"""The key by which copies of one message are recognized. Pure.

Invariant: different values never have the same key, not even text, numbers and binary of equal spelling. A message
without a value has no key, and is never a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

from azure.servicebus import ServiceBusReceivedMessage

from sbpair.errors import UsageError

Received: TypeAlias = ServiceBusReceivedMessage
KeyOf: TypeAlias = Callable[[Received], object]
"""Returns the value of a message: text, bytes, a number, a UUID; None or empty for no key."""

MAX_KEY_LENGTH = 128
"""Longer keys are stored as a digest, because there may be many."""

PROPERTY = "property:"
HINT = 'use "id", "subject", "property:NAME" or a function of the message'


class KeyRule:
    """`by` is "id", "subject" (or "label"), "property:NAME" or a function. Raises UsageError for anything else."""

    def __init__(self, by: str | KeyOf) -> None:
        self.name = by if isinstance(by, str) else "function"
        self._of = by if callable(by) else _named(by)

    def of(self, message: Received) -> str | None:
        """Return the key of a message, or None. Raises the errors of a user's function."""
        value = self._of(message)
        if isinstance(value, bytes | bytearray):
            value = _text(bytes(value))
        if value is None or value in ("", b""):
            return None
        if not isinstance(value, str):
            key = f"{type(value).__name__}:{value!r}"
        else:
            # Text that looks like such a key gets a prefix of its own.
            key = f"str:{value}" if ":" in value else value
        if len(key) > MAX_KEY_LENGTH:
            key = f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"
        return key


def _named(by: object) -> KeyOf:
    field = {"id": "message_id", "subject": "subject", "label": "subject"}.get(str(by))
    if field is not None:
        return lambda message: getattr(message.raw_amqp_message.properties, field, None)
    name = by.removeprefix(PROPERTY) if isinstance(by, str) and by.startswith(PROPERTY) else ""
    if not name:
        raise UsageError(f"unknown deduplication key {by!r}", hint=HINT)
    return lambda message: _application_property(message, name)


def _application_property(message: Received, name: str) -> object:
    found = message.application_properties or {}
    return found.get(name.encode(), found.get(name))


def _text(value: bytes) -> Any:
    """Decode text, which the SDK returns as bytes, and leave other bytes as they are."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
