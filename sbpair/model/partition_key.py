"""The property of a message that decides its partition, and the keys that the service rejects.

Pure. Only the service knows which partition a key belongs to: nothing here guesses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sbpair.errors import UsageError

MAX_CHARACTERS = 128
"""Limit of a session id, a partition key and a message id, in UTF-16 units as in .NET."""


class DecidingProperty(StrEnum):
    """The properties that can decide, by the names of the fields of MessageKeys."""

    SESSION_ID = "session_id"
    PARTITION_KEY = "partition_key"
    MESSAGE_ID = "message_id"


class KeyProblem(StrEnum):
    """The reasons for which the service refuses a message because of its keys."""

    DIFFERENT_KEYS = "different_keys"
    SESSION_MISSING = "session_missing"
    TOO_LONG = "too_long"
    NOT_TEXT = "not_text"


class KeyConflict(UsageError):
    """A message that the service refuses because of its keys."""

    def __init__(self, problem: KeyProblem, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """The properties of a message that can be its key. None is not set; an empty text is a text.

    Only an empty session id beside a partition key counts as not set.
    """

    session_id: str | None = None
    partition_key: str | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionedEntity:
    """The settings of a partitioned queue or topic that its keys depend on."""

    requires_sessions: bool = False
    detects_duplicates: bool = False


def deciding_property(keys: MessageKeys, entity: PartitionedEntity) -> DecidingProperty | None:
    """Return the property that decides the partition; None if the service chooses in turn. Raises KeyConflict.

    If MESSAGE_ID decides and `keys` has none, the sender's client assigns one.
    """
    _check(keys, entity)
    if keys.session_id is not None and (keys.session_id or keys.partition_key is None):
        return DecidingProperty.SESSION_ID
    if keys.partition_key is not None:
        return DecidingProperty.PARTITION_KEY
    return DecidingProperty.MESSAGE_ID if entity.detects_duplicates else None


def _check(keys: MessageKeys, entity: PartitionedEntity) -> None:
    for name in DecidingProperty:
        value = getattr(keys, name)
        if value is not None:
            _check_text(name, value)
    if entity.requires_sessions and keys.session_id is None:
        raise KeyConflict(
            KeyProblem.SESSION_MISSING, "session_id is missing and the entity requires sessions", hint="set session_id"
        )
    if keys.session_id and keys.partition_key not in (None, keys.session_id):
        raise KeyConflict(
            KeyProblem.DIFFERENT_KEYS, "partition_key differs from session_id", hint="set only one of them"
        )


def _check_text(name: str, value: str) -> None:
    try:
        length = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise KeyConflict(
            KeyProblem.NOT_TEXT, f"{name} has half of a surrogate pair", hint="send whole characters"
        ) from None
    if length > MAX_CHARACTERS:
        raise KeyConflict(
            KeyProblem.TOO_LONG,
            f"{name} has {length} characters; at most {MAX_CHARACTERS} are allowed",
            hint="shorten it; a character outside of the basic plane counts twice",
        )
