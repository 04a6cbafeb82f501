"""One of the schedules over real sockets and processes, and what all of them are made of.

The rest: python -m tests.faults.schedules --real-seeds 0:200
"""

from collections import Counter

from tests.faults.real import carry_out, real_plan
from tests.faults.simulation.plan import SIMULATED_ONLY

NOW_MS = 1_790_000_000_000
WANTED = (
    *("crash", "stall", "reset", "detach", "swallow-acks", "expire-locks", "throttle", "quota"),
    *("destination-gone", "clock", "second", "backlog-remade"),
)
SHORT = 5
"""A seed that is over in seconds: the backlog queue made again, a reset, a jump of the clock, and latency."""


def test_a_schedule_over_real_sockets_and_processes_leaves_nothing_wrong() -> None:
    played = carry_out(SHORT)

    assert not played.wrong, f"python -m tests.faults.schedules --real-seeds {SHORT} -v"
    assert {"backlog-remade", "reset", "clock", "latency"} <= played.plan.kinds
    assert sum(" arrived " in line for line in played.lines) > 50


def test_each_kind_of_fault_is_in_many_of_the_two_hundred() -> None:
    kinds = Counter(kind for seed in range(200) for kind in real_plan(seed, NOW_MS).kinds)

    assert all(kinds[kind] >= 10 for kind in WANTED), kinds
    assert not SIMULATED_ONLY & set(kinds)
