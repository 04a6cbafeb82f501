"""Comparison of a received message with the one sent, in everything that a move keeps. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.amqp import types
from sbpair.amqp.message import Properties, Sections
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sbpair.amqp.message import Header
    from sbpair.drill.drill_messages import OriginalMessage
    from sbpair.move.receipt import Receipt

Original = TypeVar("Original")

TICKS_PER_MS = 10_000
MAX_HEADER_TTL_MS = 0xFFFFFFFF
MAX_EXAMPLES = 20
"""The number of altered and of lost messages that a result names."""

# The service sets these on any message; the schedule has its own check.
_SERVICE_ANNOTATIONS = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-scheduled-enqueue-time",
)


_RAW = ("body", "footer", "application_properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All received messages compared with the sent ones.

    `duplicated` counts all repeated messages, `alterations` are (message id, differences).
    """

    sent: int
    received: int
    lost: int
    duplicated: int
    altered: int
    receipt: Receipt
    alterations: tuple[tuple[str, str], ...] = ()
    lost_ids: tuple[str, ...] = ()


def compare_all(
    sent: Collection[str], received: Iterable[tuple[str, list[str]]]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Compare the ids of sent messages with received messages, as (id, differences).

    Returns the fields of a Comparison without its receipt, and the repetitions by id.
    """
    seen: Counter[str] = Counter()
    altered: dict[str, str] = {}
    for message_id, differences in received:
        seen[message_id] += 1
        if differences:
            altered[message_id] = "; ".join(differences)
    repeated = {message_id: times - 1 for message_id, times in seen.items() if times > 1}
    lost = [each for each in sent if not seen[each]]
    figures = {
        "sent": len(sent),
        "received": seen.total(),
        "lost": len(lost),
        "duplicated": sum(repeated.values()),
        "altered": len(altered),
        "alterations": tuple(altered.items())[:MAX_EXAMPLES],
        "lost_ids": tuple(lost[:MAX_EXAMPLES]),
    }
    return figures, repeated


def compared(
    sent: Mapping[str, Original], payload: bytes, differences: Callable[[Original, Sections], list[str]]
) -> tuple[str, list[str]]:
    """Return the id and the differences of a received message; id "" for a message without one or an unreadable one."""
    message_id = ""
    try:
        got = Sections.split(payload)
        message_id = types.text_of(got.read_properties().message_id) or ""
        original = sent.get(message_id)
        return message_id, ["it was never sent"] if original is None else differences(original, got)
    except ProtocolError as error:
        return message_id, [f"unreadable: {error.message}"]


def message_differences(original: OriginalMessage, got: Sections) -> list[str]:
    """Return the differences, one line each; [] for an unaltered message. Raises ProtocolError."""
    return [line for check in (_sections, _header, _annotations) for line in check(original, got)]


def byte_differences(had: Sections, got: Sections, sections: Sequence[str] = _RAW) -> list[str]:
    """Compare sections whose bytes are kept."""
    differing = [each for each in sections if getattr(had, each) != getattr(got, each)]
    return [f"the bytes of {each.replace('_', ' ')} differ" for each in differing]


def property_differences(had: Properties, has: Properties) -> list[str]:
    """Compare all properties but those that follow from a time to live."""
    names = [name for name, _, _ in Properties.TYPES if name not in ("absolute_expiry_time", "creation_time")]
    differing = [name for name in names if not types.same(getattr(had, name), getattr(has, name))]
    return [f"the property {name} differs" for name in differing]


def _sections(original: OriginalMessage, got: Sections) -> list[str]:
    if (_ttl_ms(original) or 0) <= MAX_HEADER_TTL_MS:
        return byte_differences(original.sections, got, (*_RAW, "properties"))
    has = got.read_properties()
    lines = byte_differences(original.sections, got)
    lines += property_differences(original.sections.read_properties(), has)
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


def _differs(had: Header, has: Header, name: str) -> bool:
    left: Any = getattr(had, name)
    right: Any = getattr(has, name)
    # The service may send a default: durable false, priority 4.
    defaults = {"durable": (None, False), "priority": (None, 4)}[name]
    return not (left == right or (left in defaults and right in defaults))
