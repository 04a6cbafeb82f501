"""One line of a file as a message: the raw body, or a JSON object with its fields. Pure.

Invariant: an unknown field is refused, never ignored: a misspelt name would lose a property.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from sbpair.errors import UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.sdk_messages import Message
from sbpair.timespan import ticks

HINT = 'a line is an object such as {"body": "hello", "message_id": "1", "session_id": "a", "properties": {"n": 1}}'
TICKS_PER_MICROSECOND = 10
_INT32, _INT64 = 2**31, 2**63
_MAX_REFUSED = 60


def parse_body(line: bytes) -> Message:
    """Return a message with the line as its body, and an id."""
    return sdk_messages.prepare_one(ServiceBusMessage(line))


def parse_json(line: bytes) -> Message:
    """Return the message that a JSON object describes. Raises UsageError."""
    described = _object(line)
    fields: dict[str, Any] = {}
    for name, value in described:
        field = _field(name)
        if field in fields:
            raise UsageError(f"{field}: given twice", hint=HINT)
        given = value is not None or field in _BODIES
        fields[field] = _READERS[field](value, field) if given else None
    bodies = [fields.pop(name) for name in _BODIES if name in fields]
    if len(bodies) != 1:
        raise UsageError("expected one body, as body (text) or body_base64", hint=HINT)
    try:
        message = ServiceBusMessage(bodies[0], **{_ARGUMENTS.get(name, name): value for name, value in fields.items()})
    except (ValueError, TypeError) as error:
        raise UsageError(str(error).rstrip("."), hint=HINT) from None
    return sdk_messages.prepare_one(message)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, duplicates included."""


def _object(line: bytes) -> _Pairs:
    try:
        found = _DECODER.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("the line is not UTF-8", hint="save it as UTF-8, or give the body as body_base64") from None
    except json.JSONDecodeError as error:
        detail = f"{error.msg[0].lower()}{error.msg[1:]}"
        raise UsageError(f"the line is not JSON: {detail} (column {error.colno})", hint=HINT) from None
    except ValueError:
        raise UsageError("a number has more digits than a property can hold", hint=HINT) from None
    except RecursionError:
        raise UsageError("the object is nested too deeply", hint=HINT) from None
    if not isinstance(found, _Pairs):
        raise UsageError(f"expected a JSON object, got {_kind(found)}", hint=HINT)
    return found


def _constant(name: str) -> float:
    raise UsageError(f"{name} is not JSON", hint=HINT)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_constant)


def _field(name: str) -> str:
    plain = name.lower().replace("_", "").replace("-", "")
    if plain in _SPELLINGS:
        return _SPELLINGS[plain]
    close = difflib.get_close_matches(plain, _SPELLINGS, 1)
    suggestion = f"; did you mean {_SPELLINGS[close[0]]}?" if close else f"; expected one of {', '.join(_READERS)}"
    raise UsageError(f"unknown field {_shown(name)}{suggestion}", hint=f"{HINT}; your own names go into properties")


def _text(value: Any, field: str) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{field}: an unpaired surrogate cannot be encoded", hint=HINT) from None
        return value
    raise UsageError(f"{field}: expected text, got {_kind(value)}", hint=f"quote it: {HINT}")


def _name(value: Any, field: str) -> str:
    if not (text := _text(value, field)):
        raise UsageError(f"{field}: expected text, got an empty one", hint="omit it, or give a value")
    return text


def _body(value: Any, field: str) -> bytes:
    return _text(value, field).encode()


def _bytes(value: Any, field: str) -> bytes:
    try:
        return base64.b64decode(_text(value, field), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{field}: not base64", hint="use the base64 alphabet, padded with =") from None


def _ttl(value: Any, field: str) -> timedelta:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _text(value, field)
    try:
        ttl = timedelta(microseconds=ticks(text) // TICKS_PER_MICROSECOND)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", hint=error.hint) from None
    except OverflowError:
        raise UsageError(f"{field}: too long", hint="omit it for a message that never expires") from None
    if not ttl:
        raise UsageError(f"{field} must be greater than 0", hint="omit it, or write a duration such as 90s or PT1M")
    return ttl


def _moment(value: Any, field: str) -> datetime:
    text = _text(value, field)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{field}: {_shown(text)} is not a date and time", hint="write 2026-12-01T10:00:00Z") from None
    if moment.tzinfo is None:
        raise UsageError(f"{field}: {_shown(text)} has no time zone", hint="write 2026-12-01T10:00:00Z, or +01:00")
    return moment


def _properties(value: Any, field: str) -> dict[str | bytes, Any]:
    if not isinstance(value, _Pairs):
        raise UsageError(f"{field}: expected an object, got {_kind(value)}", hint=HINT)
    found: dict[str | bytes, Any] = {}
    for name, each in value:
        if name in found:
            raise UsageError(f"property {_shown(name)}: given twice", hint=HINT)
        found[_text(name, field)] = _property(each, name)
    return found


def _property(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _text(value, f"property {_shown(name)}")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        # The SDK encodes a plain integer as an int, and refuses a larger one.
        return value if -_INT32 <= value < _INT32 else {"TYPE": "LONG", "VALUE": value}
    if isinstance(value, float) and math.isfinite(value):
        return value
    kind = "a number that is too large" if isinstance(value, int | float) else _kind(value)
    raise UsageError(
        f"property {_shown(name)}: expected text, a number, true, false or null, got {kind}",
        hint="numbers have up to 64 bits",
    )


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", _Pairs: "an object"}
    return kinds.get(type(value), "null" if value is None else "text")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_REFUSED else f"{text[:_MAX_REFUSED]}…")


_READERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "body": _body,
    "body_base64": _bytes,
    "message_id": _name,
    "session_id": _name,
    "partition_key": _name,
    "correlation_id": _text,
    "subject": _text,
    "to": _text,
    "reply_to": _text,
    "reply_to_session_id": _text,
    "content_type": _text,
    "ttl": _ttl,
    "scheduled": _moment,
    "properties": _properties,
}
_BODIES: Final = ("body", "body_base64")
_ARGUMENTS: Final = {
    "ttl": "time_to_live",
    "scheduled": "scheduled_enqueue_time_utc",
    "properties": "application_properties",
}
# The spellings of the SDKs and the portal. Case, '_' and '-' do not count.
_SPELLINGS: Final = {
    **{name.replace("_", ""): name for name in (*_READERS, *_ARGUMENTS)},
    "label": "subject",
    "timetolive": "ttl",
    "scheduledenqueuetime": "scheduled",
    "scheduledenqueuetimeutc": "scheduled",
    "applicationproperties": "properties",
    "userproperties": "properties",
}
