"""`sbpair redrive`: reasons that select dead letters, what stays, and ends that are refused."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Ends
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, INVALID
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon.move_spec import MoveSpec
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

REASONS = ("Timeout", "Poison", None, "TIMEOUT", "Time")


class World:
    """A pair, and a queue with dead letters of several reasons."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        primary, self.secondary = thread.emulator.namespaces.values()
        self.orders: QueueEntity = thread.do(lambda: primary.create_queue("orders"))
        self.do, self._here = thread.do, here
        self._environ = environment(thread.emulator, NO_COLOR="1")
        for number, reason in enumerate(REASONS):
            self.do(lambda number=number, reason=reason: bury(self.orders, f"m{number}", reason))

    def run(self, *words: str) -> tuple[int, str, list[str]]:
        return self.invoke("redrive", "orders", *words)

    def invoke(self, *words: str) -> tuple[int, str, list[str]]:
        code, out, err = self._here(*words, **self._environ)
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


def bury(queue: QueueEntity, message_id: str, reason: str | None, path: str | None = None) -> None:
    put(queue, stranded(message_id, path))
    for _ in range(2):
        (locked,) = queue.messages.receive(1)
        queue.messages.abandon(locked.lock_token)
    (locked,) = queue.messages.receive(1)
    queue.messages.dead_letter(locked.lock_token, reason, None)


@pytest.fixture
def world(here: Here, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here)


QUEUES = [queue_path("contoso", number) for number in (0, 1, 12)]
"""The last one is beyond the pair's count."""


@pytest.fixture
def buried(world: World) -> World:
    """Bury a message for `orders` of either reason in each backlog queue, and in the first one without a destination.

    `orders` is empty.
    """
    world.dead()
    for queue in [world.do(lambda path=path: world.secondary.create_queue(path)) for path in QUEUES]:
        for reason in ("Timeout", "Poison"):
            name = f"{queue.path[-2:]}-{reason}"
            world.do(lambda queue=queue, name=name, reason=reason: bury(queue, name, reason, "orders"))
    world.do(lambda: bury(backlog_of(world)[0], "odd", INVALID, None))
    return world


def backlog_of(world: World) -> list[QueueEntity]:
    return [world.secondary.queue(path) for path in QUEUES]


def dead_in_backlog(world: World) -> int:
    return sum(each.counts().dead_letter for each in backlog_of(world))


@pytest.mark.parametrize(
    ("words", "code", "sent", "skipped"),
    [
        ([], 3, 6, 1),
        (["--reason", "timeout"], 0, 3, 4),
        (["--where", "sys.MessageId LIKE '%-Poison' AND path = 'orders'"], 0, 3, 4),
        (["--reason", "Timeout", "--reason", "Poison", "--max", "4"], 0, 4, 0),
        (["--reason", "Poison", "--canary", "1", "--observe", "0.1s"], 0, 3, 4),
        (["--reason", "Poison", "--max", "9"], 0, 3, 4),
        (["--reason", "Poison", "--order", "none", "--ttl", "remaining"], 0, 3, 4),
    ],
)
def test_one_run_moves_the_dead_letters_of_all_backlog_queues(
    buried: World, words: list[str], code: int, sent: int, skipped: int
) -> None:
    found, out, err = buried.invoke("redrive", "--backlog", *words, "-q", "-o", "json")
    assert found == code, err
    receipt = json.loads(out)
    arrived = buried.do(lambda: buried.orders.messages.peek(0, 99))
    assert (receipt["sent"], len(arrived), buried.do(lambda: dead_in_backlog(buried))) == (sent, sent, 7 - sent)
    assert receipt["skipped"] == skipped or "--max" in words
    assert not any(b"DeadLetter" in each.sections.application_properties for each in arrived)
    assert not any(b"x-ms-path" in each.sections.application_properties for each in arrived)
    _, out, _ = buried.invoke("runs", "list", "-q", "-o", "json")
    assert [each["command"] for each in json.loads(out)["runs"]] == ["redrive --backlog --once"]


@pytest.mark.parametrize("odd", [1, 21])
def test_words_of_a_redrive_of_the_backlog_name_what_moves(buried: World, tmp_path: Path, odd: int) -> None:
    for _ in range(odd - 1):
        buried.do(lambda: bury(backlog_of(buried)[0], "odd", INVALID))
    code, out, err = buried.invoke("redrive", "--backlog", "--state", str(tmp_path), "--count", "9")
    assert (code, err[0]) == (3, "moving the dead letters of 3 backlog queues to contoso")
    assert not [line for line in err if "beyond" in line]
    ways = dict(line.split(": ", 1) for line in out.splitlines() if ": sbpair " in line)
    assert list(ways) == ["to see those without a destination", "to choose their destination"]
    see, choose = ([*shlex.split(way)[1:]] for way in ways.values())
    code, out, _ = buried.invoke(*see, "-q", "-o", "json")
    assert {each["message_id"] for each in json.loads(out)["messages"]} == {"odd"}
    assert choose[-2:] == ["--state", str(tmp_path)]
    buried.do(lambda: buried.orders.namespace.create_queue("odd"))
    code, out, err = buried.invoke(*(each.replace("QUEUE", "odd") for each in choose), "-q", "-o", "json")
    assert (code, json.loads(out)["sent"]) == (0, odd), err
    assert buried.do(lambda: dead_in_backlog(buried)) == 0


def test_dead_letters_of_a_backlog_have_one_mover(buried: World, tmp_path: Path) -> None:
    source = backlog_of(buried)[1].path
    ends = Ends(
        "p",
        *(
            endpoint_from_connection_string(each.connection_string, name=each.name)
            for each in (buried.orders.namespace, buried.secondary)
        ),
    )
    held = MoveSpec(ends, form=BACKLOG_DEAD_LETTERS).leased
    with hold_machine_leases(held[0], None, "r", held[1]):
        for words in (["redrive", "--backlog"], ["redrive", source], ["move", source, "orders", "--dead-letters"]):
            code, _, err = buried.invoke(*words, "--state", str(tmp_path))
            assert code == 4
            assert "moving messages of contoso/x-servicebus-transfer/*/$deadletterqueue" in err[-2]
        assert buried.invoke("syphon", "--once", "--state", str(tmp_path))[0] == 0
