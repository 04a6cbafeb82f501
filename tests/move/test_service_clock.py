"""Locks of the service, by the local clock: none is taken for longer than it may be, whatever the clocks say."""

from types import SimpleNamespace

import pytest

from sbpair.move import raw_source
from sbpair.move.raw_source import ServiceClock

LOOP, WALL = 100.0, 1_000_000.0


class Clocks:
    """The two clocks of this machine, which a test sets."""

    loop, wall = LOOP, WALL


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    loop = SimpleNamespace(time=lambda: found.loop)
    monkeypatch.setattr(raw_source, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    monkeypatch.setattr(raw_source, "time", SimpleNamespace(time=lambda: found.wall))
    return found


def until_ms(seconds: float) -> int:
    return int(1000 * (WALL + seconds))


@pytest.mark.parametrize(
    ("left", "lasts"),
    [(60.0, 60.0), (59.5, 59.5), (1.0, 1.0), (0.9, 60.0), (60.1, 60.0), (-3.0, 60.0), (7_200.0, 60.0), (-WALL, 60.0)],
)
def test_a_lock_lasts_as_stated_or_one_whole_lock(left: float, lasts: float) -> None:
    clock = ServiceClock(60.0)
    expires = until_ms(left)
    assert clock.local_time(expires) == pytest.approx(LOOP + lasts)
    assert clock.local_times([expires, expires]) == {expires: pytest.approx(LOOP + lasts)}


@pytest.mark.parametrize(("first", "lasts"), [(29.6, 30.0), (2.0, 5.0), (7_200.0, 300.0)])
def test_an_unknown_lock_lasts_as_long_as_the_first_one(first: float, lasts: float) -> None:
    clock = ServiceClock(None)
    clock.local_time(until_ms(first))
    assert clock.local_time(0) == LOOP + lasts


def test_the_clock_of_the_service_is_ahead_by_what_locks_say(clocks: Clocks) -> None:
    clock = ServiceClock(60.0)
    clock.local_time(0)
    assert (clock.ahead_ms, clock.service_ms) == (0, None)
    for transit in (3, 1, 2):  # seconds that a lock was on its way
        clocks.loop, clocks.wall = clocks.loop + 10, clocks.wall + 10
        clock.sample()
        clock.local_time(int(1000 * (clocks.wall + 500 - transit + 60)))
    # The first lock tells how far, and the one that came fastest what time it is.
    assert clock.ahead_ms == 497_000
    assert clock.service_ms == 1000 * (clocks.wall + 499)
    clocks.loop, clocks.wall = clocks.loop + 5, WALL
    assert clock.service_ms == 1000 * (WALL + 30 + 499 + 5)
