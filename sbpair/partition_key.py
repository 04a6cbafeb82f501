"""Which property of a message is its partition key, and what the service refuses because of it.

Pure. Which partition a key belongs to is the service's own business: nothing here guesses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHARACTERS_MOST = 128
"""Of a SessionId, a PartitionKey and a MessageId."""
TRANSACTION_MOST = 100
"""Messages of one transaction."""
NAMES_SHOWN = 3


class Decider(StrEnum):
    """What decides where a message goes. The values are part of the JSON contract, as those of Problem are."""

    SESSION_ID = "session_id"
    PARTITION_KEY = "partition_key"
    MESSAGE_ID = "message_id"
    ROUND_ROBIN = "round_robin"


class Problem(StrEnum):
    """Why a message, or a transaction, is refused."""

    KEYS_CONFLICT = "keys_conflict"
    SESSION_MISSING = "session_missing"
    TOO_LONG = "too_long"
    NO_TEXT = "no_text"
    REFUSED_MESSAGE = "refused_message"
    TOO_MANY = "too_many"
    NO_KEY = "no_key"
    DIFFERENT_KEYS = "different_keys"
    DIFFERENT_SESSIONS = "different_sessions"


@dataclass(frozen=True, slots=True)
class Message:
    """The properties of a message that can be its key. None is not set; an empty text is a text."""

    session_id: str | None = None
    partition_key: str | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """What the queue or topic that a message is sent to was made with."""

    requires_sessions: bool = False
    detects_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason for a refusal; `text` is a line for people."""

    problem: Problem
    text: str


@dataclass(frozen=True, slots=True)
class Explained:
    """One message. `key` is None where it has none, or where its MessageId is given to it when it is sent."""

    decided_by: Decider
    key: str | None
    findings: tuple[Finding, ...] = ()


def explain(message: Message, entity: Entity) -> Explained:
    """What decides over `message` in the partitioned `entity`, and why it would be refused, if it would."""
    return Explained(*_decided(message, entity), tuple(_refusals(message, entity)))


def refused_together(messages: Sequence[Message], entity: Entity) -> tuple[Finding, ...]:
    """Why the service would refuse to take `messages` in one transaction; empty where it would take them."""
    return tuple(_refusals_together(messages, [explain(message, entity) for message in messages]))


def _decided(message: Message, entity: Entity) -> tuple[Decider, str | None]:
    if message.session_id is not None:
        return Decider.SESSION_ID, message.session_id
    if message.partition_key is not None:
        return Decider.PARTITION_KEY, message.partition_key
    if entity.detects_duplicates:
        return Decider.MESSAGE_ID, message.message_id
    return Decider.ROUND_ROBIN, None


def _refusals(message: Message, entity: Entity) -> Iterable[Finding]:
    for name in (Decider.SESSION_ID, Decider.PARTITION_KEY, Decider.MESSAGE_ID):
        value = getattr(message, name)
        if value is not None:
            yield from _unfit(name, value)
    session, key = message.session_id, message.partition_key
    if session is None and entity.requires_sessions:
        yield Finding(Problem.SESSION_MISSING, "it has no session_id, and the entity requires sessions")
    if session is not None and key is not None and key != session:
        yield Finding(
            Problem.KEYS_CONFLICT,
            f"partition_key {_shown(key)} is not the session_id {_shown(session)}: set one of them",
        )


def _unfit(name: str, value: str) -> Iterable[Finding]:
    try:
        # The service counts as .NET does, in units of UTF-16.
        length = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        yield Finding(Problem.NO_TEXT, f"{name} has half of a character, which cannot be sent")
        return
    if length > CHARACTERS_MOST:
        yield Finding(Problem.TOO_LONG, f"{name} has {length} characters, and may have {CHARACTERS_MOST}")


def _refusals_together(messages: Sequence[Message], explained: Sequence[Explained]) -> Iterable[Finding]:
    if len(messages) > TRANSACTION_MOST:
        text = f"{len(messages)} messages are too many: a transaction has at most {TRANSACTION_MOST}"
        yield Finding(Problem.TOO_MANY, text)
    if refused := [at for at, each in enumerate(explained, 1) if each.findings]:
        yield Finding(Problem.REFUSED_MESSAGE, f"a message of it would be refused by itself: {_some(refused)}")
    if keyless := [at for at, each in enumerate(explained, 1) if each.decided_by is Decider.ROUND_ROBIN]:
        yield Finding(Problem.NO_KEY, f"each of its messages needs a partition key, and none is in {_some(keyless)}")
    keys = _distinct(each.key for each in explained)
    unknown = sum(each.decided_by is Decider.MESSAGE_ID and each.key is None for each in explained)
    if len(keys) + unknown > 1:
        others = [f"{unknown} of message ids not given yet"] if unknown else []
        text = f"all its messages must have one partition key, and there are {_some([*map(_shown, keys), *others])}"
        yield Finding(Problem.DIFFERENT_KEYS, text)
    sessions = _distinct(each.session_id for each in messages)
    if len(sessions) > 1:
        text = f"messages of different sessions cannot share it: {_some([*map(_shown, sessions)])}"
        yield Finding(Problem.DIFFERENT_SESSIONS, text)


def _distinct(values: Iterable[str | None]) -> list[str]:
    return [each for each in dict.fromkeys(values) if each is not None]


def _some(names: Sequence[object]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(map(str, names[:NAMES_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _shown(value: str) -> str:
    return repr(value if len(value) <= 40 else f"{value[:40]}…")
