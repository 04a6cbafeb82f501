"""Application properties with types that the SDK encodes and .NET clients read, within the service's limits. Pure.

Invariant: the SDK decides the type of a value that it encodes. It has no type for a number beyond 32 bits or a time
span, and drops the meaning of a described value that was received.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final
from uuid import UUID

from azure.servicebus.amqp import AmqpAnnotatedMessage

from sbpair.amqp.message import Sections
from sbpair.amqp.types import Array, Described, Int, Long, Map, ULong
from sbpair.backlog import TIMESPAN
from sbpair.errors import ProtocolError, UsageError
from sbpair.failover.sdk_encoding import encode
from sbpair.timespan import MAX_TICKS, TICKS_PER_MICROSECOND

MAX_PROPERTY_BYTES, MAX_PROPERTIES_BYTES = 32 * 1024, 64 * 1024
"""Limits of the service for one property, and for all properties of a message."""

_HINT: Final = "use text, a number, a time or another simple value, or put it into the body"
_SIZE_HINT: Final = "put it into the body"
_SHOWN: Final = 60
_MAX_COEFFICIENT: Final = 2**96 - 1
_MAX_SCALE: Final = 28
"""Decimal places of a .NET decimal, and the most zeros that its coefficient holds."""

Properties = Mapping[str | bytes, Any]


class _Typed(dict[str | bytes, Any]):
    """Properties that have their types already."""


def typed_properties(properties: Properties) -> Properties:
    """Return properties that the SDK encodes: the given ones if it encodes them as they are.

    Raises UsageError, naming the property, for a value or a size that the SDK or the service refuses.
    """
    if type(properties) is _Typed:
        return properties
    typed = _Typed()
    for name, value in properties.items():
        try:
            _check_name(name)
            typed[name] = _typed(value)
        except (ValueError, ArithmeticError, ProtocolError) as error:
            raise UsageError(f"property {_shown(name)}: {error}", hint=_HINT) from None
    check_sizes(typed)
    return typed if any(typed[name] is not value for name, value in properties.items()) else properties


def check_sizes(properties: Properties) -> None:
    """Raise UsageError for a property, or for properties, that are larger than the service accepts."""
    for name, value in properties.items():
        if (size := _size(value)) > MAX_PROPERTY_BYTES:
            text = f"property {_shown(name)} has {size} bytes; Service Bus accepts {MAX_PROPERTY_BYTES}"
            raise UsageError(text, hint=_SIZE_HINT)
    if (size := properties_size(properties)) > MAX_PROPERTIES_BYTES:
        text = f"the properties of the message have {size} bytes; Service Bus accepts {MAX_PROPERTIES_BYTES}"
        raise UsageError(text, hint=_SIZE_HINT)


def properties_size(properties: Properties) -> int:
    """Return the bytes of all names, texts and binary values: the least that they can have in the service."""
    return sum(_size(name) + _size(value) for name, value in properties.items())


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _check_name(name: object) -> None:
    if isinstance(name, str):
        _text(name)
    elif not isinstance(name, bytes):
        raise ValueError("its name is not text")  # noqa: TRY004  as of values


def _typed(value: Any) -> Any:
    """Return the value in a form that the SDK encodes. Raises ValueError, or an error of the conversion."""
    for kind, convert in _CONVERTERS:
        if isinstance(value, kind):
            return convert(value)
    raise ValueError(f"expected a simple value, got a {type(value).__name__}")


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeError:
            raise ValueError("the text is not valid UTF-8") from None
    return value


def _text_of_bytes(value: bytes) -> Any:
    """Return the text that the SDK sends for them."""
    try:
        text = value.decode()
    except UnicodeError:
        raise ValueError("the SDK sends bytes as text, and these are not UTF-8") from None
    return _described(value, text)


def _number(value: int) -> Any:
    if Int.LOW <= value <= Int.HIGH and not hasattr(value, "descriptor"):
        return value
    if not Long.LOW <= value <= ULong.HIGH:
        raise ValueError("the number has more than 64 bits")
    return _described(value, {"TYPE": "LONG" if value <= Long.HIGH else "ULONG", "VALUE": int(value)})


def _described(received: Any, value: Any) -> Any:
    """Return the value with the descriptor that the SDK keeps beside a value that it has received."""
    descriptor = getattr(received, "descriptor", None)
    return value if descriptor is None else ({"TYPE": "SYMBOL", "VALUE": descriptor}, value)


def _moment(value: datetime) -> datetime:
    value.utctimetuple()  # as the SDK encodes it
    return value


def _span(value: timedelta) -> Any:
    ticks = value // timedelta(microseconds=1) * TICKS_PER_MICROSECOND
    if abs(ticks) > MAX_TICKS:
        raise ValueError("the timedelta is longer than a TimeSpan")
    return {"TYPE": "SYMBOL", "VALUE": TIMESPAN.encode()}, {"TYPE": "LONG", "VALUE": ticks}


def _decimal(value: Decimal) -> Decimal:
    """Return the value without a positive exponent, which a .NET decimal has not."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MAX_SCALE or len(digits) + max(0, exponent) > _MAX_SCALE + 1:
        raise ValueError("the number does not fit a decimal of .NET")
    whole = Decimal((sign, digits + (0,) * exponent, min(0, exponent)))
    if int("".join(map(str, whole.as_tuple().digits))) > _MAX_COEFFICIENT:
        raise ValueError("the number does not fit a decimal of .NET")
    return value if exponent <= 0 else whole


def _given_type(value: Any) -> Any:
    """Return a value that has a type in the SDK's form. Raises ValueError unless that is a simple type."""
    if isinstance(value, tuple) and len(value) != len(("descriptor", "value")):
        raise ValueError("expected a simple value, got a tuple")
    found: object = None
    try:
        payload = encode(AmqpAnnotatedMessage(data_body=b"", application_properties={"value": value}))
        found = Sections.split(payload).read_application_properties().get("value")
    except UsageError:
        raise ValueError("it cannot be encoded with the type that it states") from None
    while isinstance(found, Described):
        found = found.value
    if isinstance(found, Map | Array | list):
        raise ValueError(f"expected a simple value, got a {type(value).__name__}")  # noqa: TRY004  as of others
    return value


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return _size(value.get("VALUE"))
    return _size(value[1]) if isinstance(value, tuple) else 0


def _same(value: Any) -> Any:
    return value


_CONVERTERS: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...]] = (
    (str, _text),
    ((bool, float, NoneType, UUID, bytearray), _same),
    (int, _number),
    (bytes, _text_of_bytes),
    (datetime, _moment),
    (timedelta, _span),
    (Decimal, _decimal),
    ((dict, tuple), _given_type),
)
