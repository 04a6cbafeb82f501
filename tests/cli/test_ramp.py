"""`--ramp` and `--canary` of the movers: the receipt, the exit code, the forecast, and wrong ramps."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.emulator.entities.queue import QueueEntity
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

QUEUE = "contoso/x-servicebus-transfer/0"
NUMBERS = range(1, 31)
WAYS = {
    "syphon": ("syphon", "--once"),
    "move": ("move", "orders-old", "primary:orders"),
    "redrive": ("redrive", "orders"),
}
POISON = "m10"


class World:
    """A pair with thirty messages for `orders` in each kind of source, and a consumer that refuses one of them."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self.do, self._here = thread.do, here
        primary, secondary = thread.emulator.namespaces.values()
        self.backlog: QueueEntity = self.do(lambda: secondary.create_queue(QUEUE))
        self.old: QueueEntity = self.do(lambda: primary.create_queue("orders-old"))
        self.orders: QueueEntity = self.do(lambda: primary.create_queue("orders"))
        self.environ = environment(thread.emulator, NO_COLOR="1")
        self.do(self._fill)

    def _fill(self) -> None:
        for number in NUMBERS:
            put(self.orders, stranded(f"m{number}", None))
            (locked,) = self.orders.messages.receive(1)
            self.orders.messages.dead_letter(locked.lock_token, "Before", None)
            put(self.backlog, stranded(f"m{number}", "orders"))
            put(self.old, stranded(f"m{number}", None))

    def consume(self) -> None:
        """Complete what arrives in `orders` from now on, but dead-letter the poisonous message."""
        messages, loop = self.orders.messages, self.do(asyncio.get_running_loop)
        enqueue = messages.enqueue

        def settle() -> None:
            for each in messages.receive(100):
                if each.sections.read_properties().message_id == POISON:
                    messages.dead_letter(each.lock_token, "Poison", "it is bad")
                else:
                    messages.complete(each.lock_token)

        def consumed(*arguments: Any, **keywords: Any) -> Any:
            loop.call_soon(settle)
            return enqueue(*arguments, **keywords)

        messages.enqueue = consumed  # type: ignore[method-assign]

    def run(self, *words: str) -> tuple[int, str, list[str]]:
        code, out, err = self._here(*words, **self.environ)
        return code, out, untimed(err).splitlines()

    def document(self, *words: str, code: int = 0) -> dict[str, Any]:
        done, out, err = self.run(*words, "-q", "-o", "json")
        assert done == code, err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def world(here: Here, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here)


RAMP = ("--ramp", "1,5,20,25", "--observe", "1s")


@pytest.mark.parametrize("way", WAYS)
def test_ramp_stops_with_3_and_names_messages_that_came_back(world: World, way: str) -> None:
    world.consume()
    found = world.document(*WAYS[way], *RAMP, code=3)
    ramp = found["ramp"]
    assert [(each["total"], each["came_back"]) for each in ramp["steps"]] == [(1, 0), (5, 0), (20, 1)]
    assert (found["sent"], ramp["state"], ramp["came_back_total"], ramp["other_dead_letters"]) == (20, "stopped", 1, 0)
    [back] = ramp["came_back"]
    assert (back["message_id"], back["destination"], back["reason"]) == (POISON, "orders", "Poison: it is bad")
    [failure] = found["failures"]
    assert failure == {"queue": "orders", "reason": "1 of 20 sent messages came back as dead letters"}
    entity = "primary:orders" if way == "move" else "orders"
    assert f"sbpair redrive {entity} --by-reason" in found["next_commands"]
    assert found["remaining"]["messages"] == 10 + (way == "redrive")
    shown = world.document("runs", "show", found["run"])
    assert shown["runs"][0]["receipt"]["ramp"] == ramp
    assert shown["runs"][0]["error"] == "1 of 20 sent messages came back as dead letters"


def test_ramp_is_shown_as_a_table_with_what_came_back(world: World) -> None:
    world.consume()
    code, out, err = world.run(*WAYS["syphon"], *RAMP)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 3
    at = lines.index("STEP TOTAL SENT OBSERVED CAME BACK")
    assert [line.split()[:3] for line in lines[at + 1 : at + 5]] == [
        ["1", "1", "1"],
        ["2", "5", "5"],
        ["3", "20", "20"],
        ["4", "25"],
    ]
    assert f"came back: 1 message ({POISON}): Poison: it is bad" in lines
    assert "to see the dead letters: sbpair redrive orders --by-reason" in lines
    assert any(line.startswith("ramp step 2 of 4: 5 messages sent, observing dead letters for 1s") for line in err)
    assert "warning: ramp step 3 of 4: 20 messages sent, stopped: dead letters came" in err
    assert any("1 of 20 sent messages came back as dead letters; the others stay in the source" in line for line in err)


def test_canary_is_a_ramp_of_one_step(world: World) -> None:
    found = world.document(*WAYS["move"], "--canary", "3", "--observe", "1s", "--max", "7")
    assert found["sent"] == 7
    assert [(each["total"], each["sent"]) for each in found["ramp"]["steps"]] == [(3, 3)]


def test_forecast_has_the_steps_of_the_ramp(world: World) -> None:
    found = world.document("syphon", "--dry-run", "--ramp", "1,10,100,1000", "--observe", "30s")
    assert found["ramp"] == {
        "totals": [1, 10, 100, 1000],
        "observe_seconds": 30.0,
        "steps": [1, 10, 30],
        "seconds": 90.0,
    }
    _code, out, _err = world.run("move", "orders-old", "orders", "--dry-run", "--canary", "10")
    text = "ramp: observes dead letters for 30s after 10 messages, 30s in all; then 20 at full speed"
    assert text in out.splitlines()
