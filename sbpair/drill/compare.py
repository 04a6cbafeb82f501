"""Comparison of a received message with the one sent, in everything that a move keeps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbpair.amqp import types
from sbpair.amqp.message import Properties, Sections
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.message import Header
    from sbpair.drill.drill_messages import OriginalMessage

TICKS_PER_MS = 10_000
MAX_HEADER_TTL_MS = 0xFFFFFFFF

# The service sets these on any message; the schedule has its own check.
_SERVICE_ANNOTATIONS = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-scheduled-enqueue-time",
)


def message_differences(original: OriginalMessage, payload: bytes) -> list[str]:
    """Return the differences, one line each; [] for an unaltered message."""
    try:
        got = Sections.split(payload)
        return [line for check in _CHECKS for line in check(original, got)]
    except ProtocolError as error:
        return [f"unreadable: {error.message}"]


def _body(original: OriginalMessage, got: Sections) -> list[str]:
    return [] if got.body == original.sections.body else ["the body's bytes differ"]


def _footer(original: OriginalMessage, got: Sections) -> list[str]:
    return [] if got.footer == original.sections.footer else ["the footer's bytes differ"]


def _application_properties(original: OriginalMessage, got: Sections) -> list[str]:
    if got.application_properties == original.sections.application_properties:
        return []
    return ["the application properties' bytes differ"]


def _properties(original: OriginalMessage, got: Sections) -> list[str]:
    if not _is_long(original):
        same = got.properties == original.sections.properties
        return [] if same else ["the properties' bytes differ"]
    had, has = original.sections.read_properties(), got.read_properties()
    lines = [
        f"the property {name} differs"
        for name, _, _ in Properties.TYPES
        if name not in ("absolute_expiry_time", "creation_time")
        and not types.same(getattr(had, name), getattr(has, name))
    ]
    lifetime = (has.absolute_expiry_time or 0) - (has.creation_time or 0)
    if lifetime != _ttl_ms(original):
        lines.append(f"absolute-expiry-time minus creation-time: expected {_ttl_ms(original)} ms, got {lifetime}")
    return lines


def _header(original: OriginalMessage, got: Sections) -> list[str]:
    had, has = original.sections.read_header(), got.read_header()
    lines = [f"the header's {name} differs" for name in ("durable", "priority") if _differs(had, has, name)]
    ttl = _ttl_ms(original)
    expected = None if ttl is None else min(ttl, MAX_HEADER_TTL_MS)
    if has.ttl != expected and not (expected is None and has.ttl == MAX_HEADER_TTL_MS):
        lines.append(f"time to live: expected {expected} ms, got {has.ttl}")
    if has.delivery_count:
        lines.append(f"delivery count: expected 0, got {has.delivery_count}")
    return lines


def _annotations(original: OriginalMessage, got: Sections) -> list[str]:
    had, has = original.sections.read_message_annotations(), got.read_message_annotations()
    lines = [f"the annotation {key} differs" for key in had if not types.same(had[key], has.get(key))]
    lines += [f"unexpected annotation {key}" for key in has if key not in had and key not in _SERVICE_ANNOTATIONS]
    schedule = has.get("x-opt-scheduled-enqueue-time")
    if schedule != original.scheduled_at:
        lines.append(f"schedule: expected {original.scheduled_at}, got {schedule}")
    return lines


def _ttl_ms(original: OriginalMessage) -> int | None:
    return None if original.ttl_ticks is None else original.ttl_ticks // TICKS_PER_MS


def _is_long(original: OriginalMessage) -> bool:
    return (_ttl_ms(original) or 0) > MAX_HEADER_TTL_MS


def _differs(had: Header, has: Header, name: str) -> bool:
    left: Any = getattr(had, name)
    right: Any = getattr(has, name)
    # The service may send a default: durable false, priority 4.
    defaults = {"durable": (None, False), "priority": (None, 4)}[name]
    return not (left == right or (left in defaults and right in defaults))


_CHECKS = (_body, _footer, _application_properties, _properties, _header, _annotations)
