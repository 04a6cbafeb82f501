"""When a run doubts that the primary is the right one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import Unsafe
from sbpair.move.wrong_primary import MAX_MISSING, WrongPrimaryBreaker

NAMES = st.sampled_from(["orders", "invoices", "refunds"])


def test_several_missing_destinations_trip_the_breaker() -> None:
    guard = WrongPrimaryBreaker()
    assert guard.missing("orders", MAX_MISSING) is None
    doubt = guard.missing("invoices", 1)
    assert isinstance(doubt, Unsafe)
    assert doubt.exit_code == 4
    assert "none of the 2 queues or topics" in doubt.message
    assert "orders, invoices" in doubt.message
    assert "--dry-run" in doubt.hint
    assert "--allow-missing" in doubt.hint


def test_while_one_is_still_asked_for_nothing_is_doubted() -> None:
    guard = WrongPrimaryBreaker()
    guard.asked("refunds")
    assert guard.missing("orders", MAX_MISSING) is None
    assert guard.missing("invoices", MAX_MISSING) is None
    assert guard.missing("refunds", 1) is not None


@given(st.lists(st.tuples(NAMES, st.integers(1, 100)), max_size=20))
def test_one_that_is_found_settles_it_for_good(messages: list[tuple[str, int]]) -> None:
    for guard in (WrongPrimaryBreaker(), WrongPrimaryBreaker(trusted=True)):
        guard.found()
        assert all(guard.missing(*each) is None for each in messages)
        assert guard.limit(1_000) == 1_000


@given(st.lists(st.tuples(st.just("orders"), st.integers(1, 1_000)), max_size=20))
def test_a_single_destination_that_is_missing_was_deleted(messages: list[tuple[str, int]]) -> None:
    guard = WrongPrimaryBreaker()
    assert all(guard.missing(*each) is None for each in messages)


@given(st.lists(st.tuples(NAMES, st.integers(1, 100)), max_size=20))
def test_few_messages_or_few_destinations_are_no_reason(messages: list[tuple[str, int]]) -> None:
    guard, count, seen = WrongPrimaryBreaker(), 0, set[str]()
    for name, number in messages:
        count, seen = count + number, seen | {name}
        doubted = guard.missing(name, number) is not None
        assert doubted == (count > MAX_MISSING and len(seen) > 1)
        assert guard.limit(1_000) == MAX_MISSING
