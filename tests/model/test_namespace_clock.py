"""The time of a namespace, as answers show it, while the local clock says whatever it says."""

import pickle
from email.utils import formatdate

import pytest

from sbpair.model.namespace_clock import NamespaceClock

NOW = 1_790_000_000.0
DAY, YEAR = 86_400.0, 31_557_600.0


class Machine:
    """A machine whose clock is wrong by `ahead` seconds, `passed` seconds after the start of a test."""

    def __init__(self, ahead: float) -> None:
        self.ahead, self.passed = ahead, 0.0
        self.clock = NamespaceClock(wall=lambda: NOW + self.passed + self.ahead, uptime=lambda: 500 + self.passed)

    @property
    def error(self) -> float | None:
        known = self.clock.known()
        return None if known is None else known - NOW - self.passed


@pytest.mark.parametrize("ahead", [0.0, 7_200.0, -7_200.0, 40 * DAY, -10 * YEAR, -NOW])
def test_the_date_of_an_answer_goes_on_whatever_the_local_clock_says(ahead: float) -> None:
    machine = Machine(ahead)
    assert (machine.error, machine.clock.now()) == (None, NOW + ahead)
    machine.clock.observe_date(formatdate(NOW - 1, usegmt=True), 1.0)
    machine.passed, machine.ahead = 3_600.0, 2 * ahead + DAY
    assert machine.error == 0.0
    assert machine.clock.latest() == max(NOW, NOW + machine.ahead) + 3_600


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"])
def test_an_answer_without_a_date_shows_nothing(date: str | None) -> None:
    machine = Machine(0.0)
    machine.clock.observe_date(date)
    assert machine.error is None


def test_an_unknown_time_is_the_local_one_of_the_start() -> None:
    machine = Machine(DAY)
    machine.passed, machine.ahead = 10.0, -DAY
    assert (machine.clock.known_ms(), machine.clock.now()) == (None, NOW + DAY + 10)
    assert machine.clock.latest() == NOW + DAY + 10


@pytest.mark.parametrize("ahead", [0.0, 100.0, -100.0, 7_200.0, -7_200.0, -NOW])
@pytest.mark.parametrize("given", [60.0, None])
def test_a_lock_never_shows_a_later_time_than_the_true_one(ahead: float, given: float | None) -> None:
    machine = Machine(ahead)
    for transit in (2.0, 1.0, 3.0):
        machine.passed += 10
        machine.clock.observe_lock(NOW + machine.passed - transit + 60, given)
    assert machine.error is not None
    least = -1.0 if given else -300.0
    assert least <= machine.error <= (100.0 if abs(ahead) == 100 and given is None else 0.0)
    machine.clock.observe_lock(0.0)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (299.0, ""),
        (-302.0, "5 minutes behind"),
        (7_200.0, "2 hours ahead of"),
        (-DAY, "24 hours behind"),
        (40 * DAY, "40 days ahead of"),
        (-10 * YEAR, "10 years behind"),
        (-NOW, "57 years behind"),
    ],
)
def test_a_difference_of_five_minutes_is_one_warning(ahead: float, said: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Machine(ahead).clock
    for _ in range(2):
        clock.observe_date(formatdate(NOW, usegmt=True))
    text = f"this machine's clock is {said} the service's" if said else ""
    assert clock.difference() == text
    assert [record.getMessage() for record in caplog.records] == (
        [f"{text}: synchronise this machine's clock by NTP"] if said else []
    )


def test_locks_alone_warn_only_of_what_they_surely_show(caplog: pytest.LogCaptureFixture) -> None:
    for ahead, warnings in ((-500.0, 0), (-700.0, 1), (700.0, 2)):
        Machine(ahead).clock.observe_lock(NOW + 60, 60.0)
        assert len(caplog.records) == warnings


def test_a_copy_of_a_clock_for_a_task_knows_nothing_and_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = NamespaceClock()
    clock.observe_date(formatdate(0.0, usegmt=True))
    copy = pickle.loads(pickle.dumps(clock))  # noqa: S301  # made above
    assert copy.known() is None
    copy.observe_date(formatdate(0.0, usegmt=True))
    assert len(caplog.records) == 1
