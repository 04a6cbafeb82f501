"""`sbpair redrive`: reasons that select dead letters, what stays, and ends that are refused."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.testing import EmulatorThread, QueueDescription
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbpair.emulator.entities.queue import QueueEntity

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


def bury(queue: QueueEntity, message_id: str, reason: str | None) -> None:
    put(queue, stranded(message_id, None))
    for _ in range(2):
        (locked,) = queue.messages.receive(1)
        queue.messages.abandon(locked.lock_token)
    (locked,) = queue.messages.receive(1)
    queue.messages.dead_letter(locked.lock_token, reason, None)


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


def test_what_stays_is_named_with_the_reason_by_all_commands(world: World) -> None:
    namespace = world.orders.namespace
    terms = QueueDescription(requires_duplicate_detection=True)
    queue = world.do(lambda: namespace.create_queue("dedup", terms))
    for number in range(2):
        world.do(lambda number=number: bury(queue, f"d{number}", "Timeout"))
    line = "stayed: 2 messages (d0, d1): the destination detects duplicates, and may drop it until "
    code, out, _err = world.invoke("redrive", "dedup", "--dry-run")
    assert (code, out.splitlines()[1].split()[:3]) == (3, ["dedup/$deadletterqueue", "dedup", "2"])
    code, out, _err = world.invoke("redrive", "dedup")
    assert (code, line in out) == (3, True)
    code, out, _err = world.invoke("runs", "show", "2")
    assert (code, line in out, "redrive primary:dedup --once" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("redrive nope", "nope does not exist in contoso", "check its name"),
        ("redrive events", "events/$deadletterqueue does not exist", "of a topic, name a subscription"),
        ("move nope orders", "nope does not exist in contoso", "check its name"),
        ("move orders nope", "nope does not exist in contoso", "create it"),
        ("move forwarding orders --dead-letters", "orders", ""),
        ("move forwarding other", "forwarding forwards its messages", "the entity that it forwards to"),
    ],
)
def test_ends_that_cannot_be_used_are_refused(world: World, words: str, error: str, hint: str) -> None:
    namespace = world.orders.namespace
    world.do(lambda: namespace.create_topic("events"))
    world.do(lambda: namespace.create_queue("other"))
    world.do(lambda: namespace.create_queue("forwarding", QueueDescription(forward_to="orders")))
    code, out, err = world.invoke(*words.split())
    if not hint:
        assert (code, f"to {error}" in err[0]) == (0, True)
        return
    assert (code, out) == (2, "")
    assert error in err[0]
    assert hint in err[1]


def test_a_move_into_a_backlog_queue_warns(world: World) -> None:
    world.do(lambda: world.secondary.create_queue("contoso/x-servicebus-transfer/0"))
    code, _out, err = world.invoke("move", "orders", "0", "--dry-run")
    assert (code, err[0].endswith("the syphon dead-letters messages without aliases there")) == (0, True)


@pytest.mark.parametrize("wrong", ["", " "])
def test_empty_reason_is_refused(world: World, wrong: str) -> None:
    code, _out, err = world.run("--reason", wrong)
    assert (code, err[0]) == (2, "error: --reason is empty")
    assert len(world.dead()) == len(REASONS)


@pytest.mark.parametrize(
    ("words", "chosen", "moved"),
    [
        (("--reason", "It's late"), "reason = 'It''s late'", {"e0"}),
        (("--reason", "Bad", "--reason", "It's late"), "reason IN ('Bad', 'It''s late')", {"e0", "e1"}),
        (("--reason", "(none)"), "reason IS NULL OR reason = ''", {"e4"}),
        (
            ("--reason", "Bad", "--reason", "(none)", "--where", "sys.MessageId <> 'e4'"),
            "(sys.MessageId <> 'e4') AND (reason = 'Bad' OR reason IS NULL OR reason = '')",
            {"e1"},
        ),
        (("--reason", 'a "$HOME" `b` \\ !'), "reason = 'a \"$HOME\" `b` \\ !'", {"e2"}),
        (("--reason", "; sbpair move; --where"), "reason = '; sbpair move; --where'", {"e3"}),
        (("--where", "sys.MessageId = 'e2'"), "sys.MessageId = 'e2'", {"e2"}),
    ],
)
def test_refused_redrive_proposes_a_move_of_the_same_messages(
    world: World, tmp_path: Path, words: tuple[str, ...], chosen: str, moved: set[str]
) -> None:
    primary = world.orders.namespace
    topic = world.do(lambda: primary.create_topic("events"))
    audit = world.do(lambda: topic.create_subscription("audit"))
    parts = world.do(lambda: primary.create_queue("parts"))

    def strand() -> None:
        for number, reason in enumerate(("It's late", "Bad", 'a "$HOME" `b` \\ !', "; sbpair move; --where", None)):
            put(topic, stranded(f"e{number}", None))
            (locked,) = audit.messages.receive(1)
            audit.messages.dead_letter(locked.lock_token, reason, None)

    world.do(strand)
    code, _, err = world.invoke("redrive", "events/subscriptions/audit", *words, "--state", str(tmp_path))
    assert code == 2
    command = shlex.split(err[1][err[1].index("sbpair move 'primary:") :])
    assert ("compares reasons by case" in err[1]) == ("--reason" in words)
    source = "primary:events/subscriptions/audit/$deadletterqueue"
    assert command == ["sbpair", "move", source, "QUEUE", "--where", chosen, "--state", str(tmp_path)]
    code, _, err = world.invoke(*(each.replace("QUEUE", "parts") for each in command[1:]), "-q")
    assert code == 0, err
    assert {each.sections.read_properties().message_id for each in world.do(lambda: parts.messages.peek(0, 9))} == moved


def test_dead_letters_of_a_subscription_go_to_every_subscription_if_asked(world: World) -> None:
    primary = world.orders.namespace
    topic = world.do(lambda: primary.create_topic("events"))
    audit, billing = (world.do(lambda name=name: topic.create_subscription(name)) for name in ("audit", "billing"))

    def strand() -> None:
        for number in range(5):
            put(topic, stranded(f"e{number}", None))
        for locked in audit.messages.receive(5):
            audit.messages.dead_letter(locked.lock_token, "Bad", "why")

    world.do(strand)
    entity = "events/subscriptions/audit"
    code, _, err = world.invoke("redrive", entity)
    assert code == 2
    assert "its topic gives them to every subscription" in err[0]
    assert "--all-subscriptions" in err[1]
    assert len(world.do(lambda: audit.dead_letters.peek(0, 9))) == 5

    code, out, _ = world.invoke("redrive", entity, "--all-subscriptions", "--dry-run", "-q", "-o", "json")
    assert (code, json.loads(out)["messages"]) == (0, 5)
    assert len(world.do(lambda: audit.dead_letters.peek(0, 9))) == 5

    code, out, err = world.invoke("redrive", entity, "--all-subscriptions", "--max", "3", "-q", "-o", "json")
    assert (code, json.loads(out)["sent"]) == (0, 3), err
    code, out, err = world.invoke("redrive", entity, "--all-subscriptions", "-q", "-o", "json")
    assert (code, json.loads(out)["sent"]) == (0, 2), err
    back, copies = world.do(lambda: (audit.messages.peek(0, 99), billing.messages.peek(0, 99)))
    ids = [each.sections.read_properties().message_id for each in back]
    assert ids == [f"e{number}" for number in range(5)]
    assert len(copies) == 10
    assert not any(b"DeadLetter" in each.sections.application_properties for each in back)
    assert not world.do(lambda: audit.dead_letters.peek(0, 9))
