"""Which property decides where a message goes, and what one message, or one transaction, is refused for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.partition_key import Decider, Entity, Message, Problem, explain, refused_together

PLAIN, DETECTING, ORDERED = Entity(), Entity(detects_duplicates=True), Entity(requires_sessions=True)
ids = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from("ab")
messages = st.builds(Message, ids, ids, ids)
entities = st.builds(Entity, st.booleans(), st.booleans())


def problems(message: Message, entity: Entity = PLAIN) -> list[Problem]:
    return [finding.problem for finding in explain(message, entity).findings]


def together(*sent: Message, entity: Entity = PLAIN) -> list[Problem]:
    return [finding.problem for finding in refused_together(sent, entity)]


@pytest.mark.parametrize(
    ("message", "entity", "decided_by", "key"),
    [
        (Message("s", "s", "m"), PLAIN, Decider.SESSION_ID, "s"),
        (Message("s", None, "m"), DETECTING, Decider.SESSION_ID, "s"),
        (Message("", None, "m"), PLAIN, Decider.SESSION_ID, ""),
        (Message(None, "k", "m"), PLAIN, Decider.PARTITION_KEY, "k"),
        (Message(None, "k", "m"), DETECTING, Decider.PARTITION_KEY, "k"),
        (Message(None, None, "m"), DETECTING, Decider.MESSAGE_ID, "m"),
        (Message(), DETECTING, Decider.MESSAGE_ID, None),
        (Message(None, None, "m"), PLAIN, Decider.ROUND_ROBIN, None),
        (Message(), PLAIN, Decider.ROUND_ROBIN, None),
    ],
)
def test_the_session_id_decides_then_the_partition_key_then_the_message_id(message, entity, decided_by, key) -> None:
    explained = explain(message, entity)
    assert (explained.decided_by, explained.key, explained.findings) == (decided_by, key, ())


@pytest.mark.parametrize(
    ("message", "entity", "problem"),
    [
        (Message("s", "k"), PLAIN, Problem.KEYS_CONFLICT),
        (Message("s", "S"), PLAIN, Problem.KEYS_CONFLICT),
        (Message("s", ""), PLAIN, Problem.KEYS_CONFLICT),
        (Message(None, "k"), ORDERED, Problem.SESSION_MISSING),
        (Message(), ORDERED, Problem.SESSION_MISSING),
        (Message("s" * 129), PLAIN, Problem.TOO_LONG),
        (Message(None, "k" * 129), PLAIN, Problem.TOO_LONG),
        (Message(None, None, "m" * 129), PLAIN, Problem.TOO_LONG),
        (Message("\N{GRINNING FACE}" * 65), PLAIN, Problem.TOO_LONG),
        (Message("half \ud83d"), PLAIN, Problem.NO_TEXT),
    ],
)
def test_a_message_that_would_be_refused(message, entity, problem) -> None:
    assert problems(message, entity) == [problem]


@pytest.mark.parametrize("length", [1, 128])
def test_the_longest_id_is_accepted(length) -> None:
    assert problems(Message("s" * length, "s" * length, "m" * length)) == []


@pytest.mark.parametrize(
    ("sent", "entity", "found"),
    [
        ([Message("s", None, "1"), Message("s", "s", "2")], PLAIN, []),
        ([Message(None, "k"), Message("k")], PLAIN, []),
        ([Message(None, None, "m")] * 2, DETECTING, []),
        ([Message()], DETECTING, []),
        ([], PLAIN, []),
        ([Message("s")] * 100, PLAIN, []),
        ([Message("s")] * 101, PLAIN, [Problem.TOO_MANY]),
        ([Message(None, "a"), Message(None, "b")], PLAIN, [Problem.DIFFERENT_KEYS]),
        ([Message("a"), Message("b")], PLAIN, [Problem.DIFFERENT_KEYS, Problem.DIFFERENT_SESSIONS]),
        ([Message("a"), Message(None, "b")], PLAIN, [Problem.DIFFERENT_KEYS]),
        ([Message(None, "a"), Message(None, "a", "m"), Message()], PLAIN, [Problem.NO_KEY]),
        ([Message(), Message()], DETECTING, [Problem.DIFFERENT_KEYS]),
        ([Message(None, "a"), Message()], DETECTING, [Problem.DIFFERENT_KEYS]),
        ([Message("a", "b")], PLAIN, [Problem.REFUSED_MESSAGE]),
    ],
)
def test_what_one_transaction_is_refused_for(sent, entity, found) -> None:
    assert together(*sent, entity=entity) == found


@given(messages, entities)
def test_the_key_is_always_what_the_property_that_decides_says(message, entity) -> None:
    explained = explain(message, entity)
    if explained.decided_by is Decider.ROUND_ROBIN:
        assert explained.key is None
    else:
        assert explained.key == getattr(message, explained.decided_by)


@given(messages, entities)
def test_a_message_id_never_decides_but_where_duplicates_are_detected(message, entity) -> None:
    other = replace(message, message_id="another")
    same = explain(message, entity).key == explain(other, entity).key
    decides = entity.detects_duplicates and message.session_id is None and message.partition_key is None
    assert same is (not decides or message.message_id == "another")


@given(st.lists(messages, max_size=6), entities)
def test_what_a_transaction_takes_has_one_key_and_no_message_that_is_refused(sent, entity) -> None:
    if not refused_together(sent, entity):
        explained = [explain(message, entity) for message in sent]
        assert len({each.key for each in explained}) <= 1
        assert not any(each.findings or each.decided_by is Decider.ROUND_ROBIN for each in explained)


@given(st.lists(messages, min_size=1, max_size=6), entities, st.randoms())
def test_the_order_of_a_transaction_does_not_matter(sent, entity, random) -> None:
    shuffled = random.sample(sent, len(sent))
    assert together(*sent, entity=entity) == together(*shuffled, entity=entity)


@given(st.lists(messages, max_size=4), messages, entities)
def test_a_transaction_that_is_refused_is_not_mended_by_one_more_message(sent, more, entity) -> None:
    assert set(together(*sent, entity=entity)) <= set(together(*sent, more, entity=entity))
