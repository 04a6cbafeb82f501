"""`sbpair redrive` of one dead-letter reason: the others stay, and keep their delivery counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.entities.queue import QueueEntity

REASONS = ("Timeout", "Poison", None, "TIMEOUT", "Time")


class World:
    """A pair, and a queue with dead letters of several reasons."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self.orders: QueueEntity = thread.do(lambda: thread.emulator.namespaces["contoso"].create_queue("orders"))
        self.do, self._here = thread.do, here
        self._environ = environment(thread.emulator, NO_COLOR="1")
        for number, reason in enumerate(REASONS):
            self.do(lambda number=number, reason=reason: self._bury(f"m{number}", reason))

    def _bury(self, message_id: str, reason: str | None) -> None:
        put(self.orders, stranded(message_id, None))
        for _ in range(2):
            (locked,) = self.orders.messages.receive(1)
            self.orders.messages.abandon(locked.lock_token)
        (locked,) = self.orders.messages.receive(1)
        self.orders.messages.dead_letter(locked.lock_token, reason, None)

    def run(self, *words: str) -> tuple[int, str, list[str]]:
        code, out, err = self._here("redrive", "orders", *words, **self._environ)
        return code, out, untimed(err).splitlines()

    def redrive(self, *words: str) -> dict[str, Any]:
        code, out, err = self.run(*words, "-q", "-o", "json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def dead(self) -> dict[str, int]:
        """Return the delivery counts of the dead letters. None may be locked."""
        held = self.do(lambda: self.orders.dead_letters.peek(0, 100))
        assert len(self.do(lambda: self.orders.dead_letters.receive(100))) == len(held)
        return {each.sections.read_properties().message_id: each.delivery_count for each in held}


@pytest.fixture
def world(here: Here, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here)


@pytest.mark.parametrize(
    ("words", "stay"),
    [
        (["--reason", "timeout"], {"m1", "m2", "m4"}),
        (["--reason", "Poison", "--reason", "(none)"], {"m0", "m3", "m4"}),
        (["--reason", "Time%"], {"m0", "m1", "m2", "m3", "m4"}),
    ],
)
def test_dead_letters_of_other_reasons_stay_with_their_delivery_counts(
    world: World, words: list[str], stay: set[str]
) -> None:
    receipt = world.redrive(*words)
    moved = len(REASONS) - len(stay)
    assert (receipt["received"], receipt["sent"], receipt["skipped"], receipt["released"]) == (5, moved, len(stay), 0)
    assert world.dead() == dict.fromkeys(stay, 2)


def test_groups_of_a_reason_are_counted(world: World) -> None:
    groups = world.redrive("--by-reason", "--reason", "timeout")["groups"]
    assert [(each["reason"], each["messages"]) for each in groups] == [("Timeout", 1), ("TIMEOUT", 1)]


@pytest.mark.parametrize("wrong", ["", " "])
def test_empty_reason_is_refused(world: World, wrong: str) -> None:
    code, _out, err = world.run("--reason", wrong)
    assert (code, err[0]) == (2, "error: --reason is empty")
    assert len(world.dead()) == len(REASONS)
