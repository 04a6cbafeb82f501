"""The property that decides the partition of a message, and the keys that are refused."""

import pytest

from sbpair.errors import UsageError
from sbpair.management.partitioning import (
    DecidingProperty,
    KeyConflict,
    KeyProblem,
    MessageKeys,
    PartitionedEntity,
    deciding_property,
)

PLAIN = PartitionedEntity()
DETECTING = PartitionedEntity(detects_duplicates=True)
ORDERED = PartitionedEntity(requires_sessions=True)


@pytest.mark.parametrize(
    ("keys", "entity", "decides"),
    [
        (MessageKeys("s", "s", "m"), PLAIN, DecidingProperty.SESSION_ID),
        (MessageKeys("s", None, "m"), DETECTING, DecidingProperty.SESSION_ID),
        (MessageKeys("s", None, "m"), ORDERED, DecidingProperty.SESSION_ID),
        (MessageKeys("", None, "m"), PLAIN, DecidingProperty.SESSION_ID),
        (MessageKeys("", None, "m"), ORDERED, DecidingProperty.SESSION_ID),
        (MessageKeys("", "k", "m"), PLAIN, DecidingProperty.PARTITION_KEY),
        (MessageKeys(None, "k", "m"), PLAIN, DecidingProperty.PARTITION_KEY),
        (MessageKeys(None, "k", "m"), DETECTING, DecidingProperty.PARTITION_KEY),
        (MessageKeys(None, None, "m"), DETECTING, DecidingProperty.MESSAGE_ID),
        (MessageKeys(), DETECTING, DecidingProperty.MESSAGE_ID),
        (MessageKeys(None, None, "m"), PLAIN, None),
        (MessageKeys(), PLAIN, None),
    ],
)
def test_the_session_id_decides_then_the_partition_key_then_the_message_id(keys, entity, decides) -> None:
    assert deciding_property(keys, entity) is decides


@pytest.mark.parametrize(
    ("keys", "entity", "problem"),
    [
        (MessageKeys("s", "k"), PLAIN, KeyProblem.DIFFERENT_KEYS),
        (MessageKeys("s", "S"), PLAIN, KeyProblem.DIFFERENT_KEYS),
        (MessageKeys("s", ""), PLAIN, KeyProblem.DIFFERENT_KEYS),
        (MessageKeys(None, "k"), ORDERED, KeyProblem.SESSION_MISSING),
        (MessageKeys(), ORDERED, KeyProblem.SESSION_MISSING),
        (MessageKeys("s" * 129), PLAIN, KeyProblem.TOO_LONG),
        (MessageKeys(None, "k" * 129), PLAIN, KeyProblem.TOO_LONG),
        (MessageKeys(None, None, "m" * 129), PLAIN, KeyProblem.TOO_LONG),
        (MessageKeys("\N{GRINNING FACE}" * 65), PLAIN, KeyProblem.TOO_LONG),
        (MessageKeys("half \ud83d"), PLAIN, KeyProblem.NOT_TEXT),
    ],
)
def test_keys_that_the_service_refuses_are_a_conflict(keys, entity, problem) -> None:
    with pytest.raises(KeyConflict) as refused:
        deciding_property(keys, entity)
    assert refused.value.problem is problem
    assert isinstance(refused.value, UsageError)
    assert refused.value.hint


@pytest.mark.parametrize("key", ["s", "s" * 128, "\N{GRINNING FACE}" * 64])
def test_a_key_of_at_most_128_characters_is_accepted(key) -> None:
    assert deciding_property(MessageKeys(key, key, key), PLAIN) is DecidingProperty.SESSION_ID
