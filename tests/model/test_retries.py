"""Retries of failed calls, and the rate of management calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import ServiceRefused, Throttled, Unavailable
from sbpair.management.calls import CALLS_A_SECOND, FIRST_SECOND_CALLS, start_seconds
from sbpair.model.retries import ATTEMPTS, JITTER, MAX_WAIT_SECONDS, attempt, wait_seconds

CHANCES = st.floats(0, 1, exclude_max=True)


def asking(error: Unavailable, seconds: float | None) -> Unavailable:
    error.retry_after_seconds = seconds
    return error


async def waits(*errors: Exception, chance: float = 0.0) -> list[float]:
    """Return the waits while these errors occur in turn. Raises the last error if no attempt remains."""
    waited: list[float] = []
    left = list(errors)

    async def action() -> None:
        if left:
            raise left.pop(0)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    await attempt("do it", action, sleep=sleep, on_event=lambda _event: None, chance=lambda: chance)
    return waited


async def test_waits_grow_and_are_longer_for_a_busy_service() -> None:
    assert await waits() == []
    assert await waits(Unavailable("x"), Unavailable("x")) == [1.0, 4.0]
    assert await waits(Throttled("x"), Unavailable("x")) == [10.0, 4.0]


async def test_requested_wait_is_honoured_even_if_short() -> None:
    assert await waits(asking(Throttled("x"), 3)) == [3.0]
    assert await waits(asking(Throttled("x"), 0)) == [1.0]
    assert await waits(asking(Unavailable("x"), 30)) == [30.0]


async def test_wait_beyond_the_maximum_raises_at_once() -> None:
    with pytest.raises(Throttled):
        await waits(asking(Throttled("x"), MAX_WAIT_SECONDS + 1))


async def test_retriable_errors_get_three_attempts_and_others_one() -> None:
    with pytest.raises(Unavailable):
        await waits(*[Unavailable("x")] * ATTEMPTS)
    with pytest.raises(ServiceRefused):
        await waits(ServiceRefused("x"))


@given(st.integers(1, ATTEMPTS - 1), st.one_of(st.none(), st.integers(0, 100)), CHANCES, CHANCES)
def test_jitter_never_shortens_a_wait(number: int, asked: int | None, one: float, other: float) -> None:
    for error in (asking(Throttled("x"), asked), asking(Unavailable("x"), asked)):
        minimum = wait_seconds(number, error, 0.0)
        assert minimum >= (asked or 0)
        assert minimum <= wait_seconds(number, error, one) < minimum * (1 + JITTER) + 1e-9
        assert (one < other) <= (wait_seconds(number, error, one) <= wait_seconds(number, error, other))


@given(st.integers(0, 2_000), st.sampled_from([CALLS_A_SECOND, FIRST_SECOND_CALLS]))
def test_no_second_has_more_calls_than_standard_has_credits(first: int, at_once: int) -> None:
    start = start_seconds(first, at_once)
    inside = [number for number in range(first, first + 150) if start_seconds(number, at_once) < start + 1.0]
    assert len(inside) <= FIRST_SECOND_CALLS


@given(st.integers(0, 2_000))
def test_after_the_first_second_half_of_the_credits_are_left_to_others(number: int) -> None:
    assert start_seconds(number, FIRST_SECOND_CALLS) <= start_seconds(number + 1, FIRST_SECOND_CALLS)
    later = number + FIRST_SECOND_CALLS
    assert start_seconds(later + CALLS_A_SECOND, FIRST_SECOND_CALLS) - start_seconds(
        later, FIRST_SECOND_CALLS
    ) == pytest.approx(1.0)
