"""The drill of relays with real sockets, and the account of its requests."""

import asyncio
import random
from typing import Any

import pytest

from sbpair.drill import relay_drill
from sbpair.drill.drill_pair import Awaited
from sbpair.drill.relay_drill import LARGE, DrillRequest, accounted, described, expected_answer, run_relay_drill
from sbpair.errors import TimedOut
from tests.kit.command import Here, environment, untimed
from tests.kit.json_schemas import parse_validated


def test_every_request_of_the_drill_is_accounted_for(here: Here) -> None:
    code, out, err = here("drill", "--relay", "--rate", "100", "-o", "json", **environment(None))
    found = parse_validated(out)
    assert (code, found["wrong"], found["problems"]) == (0, 0, []), found
    assert found["sent"] == found["answered"] + found["in_doubt"] + found["failed"]
    assert found["answered"] == found["primary"] + found["secondary"]
    assert min(found["primary"], found["secondary"]) >= 10
    assert found["failed"] >= 20
    # A POST of each side was executed when its answer was lost. A GET was reissued.
    assert [each["executions"] for each in found["doubtful"] if each["method"] == "POST"].count(1) >= 2
    assert found["repeated"] >= 1
    assert [each["name"] for each in found["timeline"] if each["name"] != "relay"] == [
        *("start", "sending", "primary-down", "secondary-down", "up", "compare")
    ]
    lines = [line.partition(" s  ")[2] for line in untimed(err).splitlines()]
    assert lines == [each["text"] for each in found["timeline"]]
    swaps = [line for line in lines if "is active now" in line]
    assert swaps[0].startswith("service-west: the secondary is active now")


class Waiting(Awaited):
    def __init__(self) -> None:
        self.changed, self.max_phase_seconds = asyncio.Event(), 0.01


async def test_an_outage_that_does_not_come_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(*_given: object, **_named: object) -> None:
        await Waiting().until("the secondary to be active", lambda: False)

    monkeypatch.setattr(relay_drill, "_play", play)
    with pytest.raises(TimedOut, match=r"the drill waited 0\.01 s for the secondary to be active"):
        await run_relay_drill()


def request(outcome: Any, method: str = "POST", **own: Any) -> DrillRequest:
    return DrillRequest("r", method, b"", 100, outcome, "primary", **own)


@pytest.mark.parametrize(
    ("sent", "executions", "problem"),
    [
        (request("answered"), {"r": 1}, ""),
        (request("answered", "PUT"), {"r": 2}, ""),
        (request("in doubt"), {}, ""),
        (request("in doubt"), {"r": 1}, ""),
        (request("failed"), {}, ""),
        (request("answered"), {}, "POST: it was answered, and never executed"),
        (request("answered"), {"r": 2}, "POST: it was executed 2 times"),
        (request("in doubt"), {"r": 2}, "POST: it was executed 2 times"),
        (request("failed"), {"r": 1}, "POST: it was executed, and reported as failed"),
        (request("failed", "GET"), {"r": 1}, "GET: it was executed, and reported as failed"),
        (request("refused", problem="it was refused"), {}, "POST: it was refused"),
        (request(""), {"r": 1}, "POST: it has no outcome"),
        (request("answered", problem="another answer"), {"r": 1}, "POST: another answer"),
    ],
)
def test_outcomes_that_do_not_fit_the_executions_are_wrong(
    sent: DrillRequest, executions: dict[str, int], problem: str
) -> None:
    tally = accounted([sent], executions)
    assert [text for _, text in tally.problems] == ([problem] if problem else [])
    assert tally.wrong == bool(problem)


def test_requests_that_were_never_sent_are_wrong() -> None:
    tally = accounted([], {"x": 1}, [("", "the roles were swapped")])
    assert tally.problems == (("", "the roles were swapped"), ("x", "it was executed, and never sent"))


def test_the_same_seed_makes_the_same_requests() -> None:
    first, second = ([described(number, random.Random(7)) for number in range(100)] for _ in range(2))
    assert first == second
    assert {len(each.body) == LARGE for each in first if each.body} == {True, False}
    assert {each.method for each in first} == {"GET", "POST", "PUT", "DELETE"}


def test_an_answer_depends_on_the_request() -> None:
    answers = {expected_answer(*each, 100) for each in (("a", b""), ("b", b""), ("a", b"x"), ("b", b"x"))}
    assert len(answers) == 4
