"""The property that decides the partition of a message, and the keys that are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
ids = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from("ab")
all_keys = st.builds(MessageKeys, ids, ids, ids)
entities = st.builds(PartitionedEntity, st.booleans(), st.booleans())


def problem_of(keys: MessageKeys, entity: PartitionedEntity = PLAIN) -> KeyProblem | None:
    try:
        deciding_property(keys, entity)
    except KeyConflict as conflict:
        return conflict.problem
    return None


@pytest.mark.parametrize(
    ("keys", "entity", "decides"),
    [
        (MessageKeys("s", "s", "m"), PLAIN, DecidingProperty.SESSION_ID),
        (MessageKeys("s", None, "m"), DETECTING, DecidingProperty.SESSION_ID),
        (MessageKeys("s", None, "m"), ORDERED, DecidingProperty.SESSION_ID),
        (MessageKeys("", None, "m"), PLAIN, DecidingProperty.SESSION_ID),
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


@given(all_keys, entities)
def test_the_property_that_decides_is_the_first_that_is_set(keys, entity) -> None:
    if problem_of(keys, entity) is None:
        decides = deciding_property(keys, entity)
        if keys.session_id == "" and keys.partition_key is not None:
            keys = replace(keys, session_id=None)
        first = next((name for name in ("session_id", "partition_key") if getattr(keys, name) is not None), None)
        assert decides == (first or ("message_id" if entity.detects_duplicates else None))


@given(all_keys, entities)
def test_short_keys_conflict_only_with_each_other_or_the_entity(keys, entity) -> None:
    missing = entity.requires_sessions and keys.session_id is None
    different = bool(keys.session_id) and keys.partition_key not in (None, keys.session_id)
    expected = KeyProblem.SESSION_MISSING if missing else KeyProblem.DIFFERENT_KEYS if different else None
    assert problem_of(keys, entity) is expected


@given(all_keys)
def test_a_message_id_never_decides_unless_duplicates_are_detected(keys) -> None:
    if problem_of(keys) is None:
        assert deciding_property(keys, PLAIN) is deciding_property(replace(keys, message_id="another"), PLAIN)
        assert deciding_property(keys, PLAIN) is not DecidingProperty.MESSAGE_ID
