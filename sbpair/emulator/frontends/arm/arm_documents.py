"""Descriptions of entities as Resource Manager's JSON, and back: names in camel case, numbers and booleans as such.

No HTTP and no decisions. What is unknown, or of another type, is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.emulator.entities.description import SETTABLE, Settable, format_value
from sbpair.emulator.entities.topic_description import SUBSCRIPTION, TOPIC
from sbpair.emulator.frontends.arm.arm_request import ArmRefusal, Json
from sbpair.emulator.frontends.atom.atom_xml import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

FORWARDS: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
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
"""What only the service sets: whoever sends it back is not listened to."""


def camel(name: str) -> str:
    return name[0].lower() + name[1:]


def read_values(properties: Json, settable: Settable) -> dict[str, str]:
    """The text of each element that is given, as the descriptions want it. Raises ArmRefusal."""
    known = {camel(name): name for name in settable}
    values = {}
    for name, value in properties.items():
        if name in REPORTED or value is None:
            continue
        if name not in known:
            raise ArmRefusal("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
        values[known[name]] = _text(name, value, settable[known[name]][1])
    return values


def _text(name: str, value: object, kind: str) -> str:
    wanted = {"bool": bool, "int": int}.get(kind, str)
    if type(value) is not wanted:
        raise ArmRefusal("InvalidRequestContent", f"The value of '{name}' is not of the type {wanted.__name__}.")
    return str(value).lower() if wanted is bool else str(value)


def show_values(queue: QueueEntity, settable: Settable) -> Json:
    """What a client can set, as it is. What is not set is left out."""
    shown: Json = {}
    for name, (_, kind) in settable.items():
        text = format_value(queue.description, name, settable)
        if text is None:
            continue
        if name in FORWARDS:
            text = text.partition("://")[2].partition("/")[2]
        shown[camel(name)] = text == "true" if kind == "bool" else int(text) if kind == "int" else text
    return shown


def show_reported(queue: QueueEntity) -> Json:
    """What only the service sets, of every kind of entity."""
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
