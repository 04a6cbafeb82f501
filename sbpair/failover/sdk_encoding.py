"""Messages as the SDK encodes them. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.errors import UsageError

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

_UNLIMITED = 2**62
_DATA_SECTIONS = 5
_ENCODING_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, struct.error)
"""Raised by the SDK's encoder for a value that it cannot encode."""


@contextmanager
def encoding(message: AmqpAnnotatedMessage) -> Iterator[None]:
    """Raise UsageError, naming the message, for one that the SDK cannot encode."""
    try:
        yield
    except MessageSizeExceededError:
        raise
    except _ENCODING_ERRORS as error:
        name = message.properties.message_id if message.properties else None
        raise UsageError(
            f"the message {name!r:.60} cannot be encoded: {type(error).__name__}",
            hint="give ids, subject and content type as str of valid UTF-8, and a body of simple values",
        ) from error


def check_encoding(messages: Iterable[AmqpAnnotatedMessage], error: Exception) -> None:
    """Raise UsageError if the error of a send is that of the SDK's encoder: then nothing was sent."""
    if isinstance(getattr(error, "inner_exception", None) or error, _ENCODING_ERRORS):
        for each in messages:
            encode(each)


def encoded_size(message: AmqpAnnotatedMessage) -> int:
    """Return the encoded size in bytes. Raises UsageError if it cannot be encoded."""
    batch = ServiceBusMessageBatch(_UNLIMITED)
    empty = batch.size_in_bytes
    with encoding(message):
        batch.add_message(message)
    return batch.size_in_bytes - empty


def encode(message: AmqpAnnotatedMessage) -> bytes:
    """Return the bytes that the SDK would send. Those of a message with a time to live include the current time.

    Raises UsageError if it cannot be encoded.
    """
    batch = ServiceBusMessageBatch(_UNLIMITED)
    with encoding(message):
        batch.add_message(message)
    # Not public in the SDK: a batch holds each of its messages, encoded, as a data section.
    [payload] = getattr(batch, "_message")[_DATA_SECTIONS]  # noqa: B009  mypy would have it public
    return bytes(payload)
