"""How many messages of a missing destination are dead-lettered."""

from hypothesis import given
from hypothesis import strategies as st

from sbpair.move.context import MAX_MISSING, MissingDestinations
from sbpair.move.receipt import MissingDestination

MESSAGES = st.lists(st.tuples(st.sampled_from(["orders", "Orders", "refunds"]), st.integers(1, 100)), max_size=20)


@given(MESSAGES, st.integers(0, 60))
def test_each_destination_has_a_limit_of_its_own_whatever_its_spelling(
    messages: list[tuple[str, int]], limit: int
) -> None:
    missing, asked = MissingDestinations(limit), dict.fromkeys(("orders", "refunds"), 0)
    allowed = dict.fromkeys(asked, 0)
    for name, count in messages:
        asked[name.lower()] += count
        allowed[name.lower()] += missing.allow(name, count)
        assert allowed[name.lower()] == min(limit, asked[name.lower()])
        assert missing.is_held(name.swapcase()) == (asked[name.lower()] > limit)
    assert {name.lower(): missing.dead_lettered[name] for name in missing} == {
        name: count for name, count in allowed.items() if asked[name]
    }


@given(MESSAGES)
def test_without_a_limit_nothing_is_held(messages: list[tuple[str, int]]) -> None:
    missing = MissingDestinations(None)
    assert all(missing.allow(name, count) == count for name, count in messages)
    assert not any(map(missing.is_held, missing))


def test_a_created_destination_is_held_no_longer_and_keeps_its_count() -> None:
    missing = MissingDestinations()
    assert missing.allow("orders", 100) == MAX_MISSING
    assert "--allow-missing" in missing.hold_error("orders").message
    assert "once it exists" in missing.hold_error("orders").hint
    missing.note_left("q/0", {"Orders": 50, "refunds": 1})
    missing.note_left("q/1", {"orders": 30})
    assert missing.result() == (MissingDestination("orders", MAX_MISSING, 80),)
    missing.found("ORDERS")
    assert not missing.is_held("orders")
    assert missing.result() == (MissingDestination("orders", MAX_MISSING, 0),)
    assert missing.allow("orders", 1) == 0
    assert missing.is_held("orders")
