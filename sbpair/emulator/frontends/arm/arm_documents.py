"""Descriptions of entities as Resource Manager's JSON: names in camel case, numbers and booleans typed.

Unknown names and wrong types are errors. Independent of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.emulator.entities.description_schema import SETTABLE, SUBSCRIPTION, TOPIC, Settable, format_value
from sbpair.emulator.frontends.arm.arm_request import ArmError, Json
from sbpair.emulator.frontends.http.request_parts import FORWARDS
from sbpair.emulator.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

_NOT_OF_ARM: Final = ("FilteringMessagesBeforePublishing", "EnableSubscriptionPartitioning")

OF_QUEUES: Final[Settable] = SETTABLE
OF_TOPICS: Final[Settable] = {name: kind for name, kind in TOPIC.settable.items() if name not in _NOT_OF_ARM}
OF_SUBSCRIPTIONS: Final[Settable] = {
    **SUBSCRIPTION.settable,
    "DuplicateDetectionHistoryTimeWindow": SETTABLE["DuplicateDetectionHistoryTimeWindow"],
}

REPORTED: Final = frozenset(
    {"accessedAt", "countDetails", "createdAt", "messageCount", "sizeInBytes", "subscriptionCount", "updatedAt"}
)
"""Properties that only the service sets; ignored in requests."""


def camel(name: str) -> str:
    return name[0].lower() + name[1:]


def read_values(properties: Json, settable: Settable) -> dict[str, str]:
    """Return the given elements as text, the form that descriptions are made from. Raises ArmError."""
    known = {camel(name): name for name in settable}
    values = {}
    for name, value in properties.items():
        if name in REPORTED or value is None:
            continue
        if name not in known:
            raise ArmError("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
        values[known[name]] = _text(name, value, settable[known[name]][1])
    return values


def _text(name: str, value: object, kind: str) -> str:
    wanted = {"bool": bool, "int": int}.get(kind, str)
    if type(value) is not wanted:
        raise ArmError("InvalidRequestContent", f"The value of '{name}' is not of the type {wanted.__name__}.")
    return str(value).lower() if wanted is bool else str(value)


def values_json(queue: QueueEntity, settable: Settable) -> Json:
    """Return the settable properties, without those not set."""
    shown: Json = {}
    for name, (_, kind) in settable.items():
        text = format_value(queue.description, name, settable)
        if text is None:
            continue
        if name in FORWARDS:
            text = text.partition("://")[2].partition("/")[2]
        shown[camel(name)] = text == "true" if kind == "bool" else int(text) if kind == "int" else text
    return shown


def reported_json(queue: QueueEntity) -> Json:
    """Return the properties that only the service sets, for every kind of entity."""
    counts = queue.counts()
    return {
        "createdAt": instant(queue.created_at_ms),
        "updatedAt": instant(queue.updated_at_ms),
        "accessedAt": instant(queue.accessed_at_ms),
        "countDetails": {
            "activeMessageCount": counts.active,
            "deadLetterMessageCount": counts.dead_letter,
            "scheduledMessageCount": counts.scheduled,
            "transferMessageCount": counts.transfer,
            "transferDeadLetterMessageCount": counts.transfer_dead_letter,
        },
    }
