"""`sbpair redrive`: reasons that select dead letters, what stays, and ends that are refused."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.backlog import queue_path
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Ends
from sbpair.move.message.form import BACKLOG_DEAD_LETTERS
from sbpair.move.message.route import INVALID
from sbpair.runs.lease import hold_machine_leases
from sbpair.syphon.move_spec import MoveSpec
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
        ("move forwarding orders --dead-letters", "moving primary:forwarding/$deadletterqueue to primary:orders", ""),
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
        assert (code, err[0]) == (0, error)
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


# The dead letters of all backlog queues

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


def test_preview_of_the_backlog_moves_nothing(buried: World) -> None:
    code, out, _ = buried.invoke("redrive", "--backlog", "--dry-run", "-q", "-o", "json")
    found = json.loads(out)
    assert (code, found["messages"], found["sent"], found["refused"]) == (3, 7, 6, 1)
    assert [each["queue"] for each in found["queues"]] == [f"{path}/$deadletterqueue" for path in QUEUES]
    assert buried.do(lambda: dead_in_backlog(buried)) == 7


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


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("", "expected ENTITY or --backlog", "--backlog moves the dead letters of all backlog queues"),
        ("4 --backlog", "--backlog and ENTITY 4 exclude each other", "leave one of them out"),
        ("--backlog --namespace x", "--backlog and --namespace exclude each other", "leave one of them out"),
        ("--backlog --by-reason -n 5", "--by-reason counts those of one entity", "sbpair deadletters list"),
        ("--backlog --all-subscriptions", "--all-subscriptions is for a subscription", "leave it out with --backlog"),
        ("--backlog --watch -n 5", "--max and --watch exclude each other with --backlog", "use --once"),
        ("4 --count 2", "--count goes with --backlog only", "add --backlog"),
        ("--backlog --count 0", "pair 'default': backlog_queues is 0, and must be at least 1", "the default is 10"),
    ],
)
def test_options_without_a_meaning_for_the_backlog_are_refused(world: World, words: str, error: str, hint: str) -> None:
    code, out, err = world.invoke("redrive", *words.split())
    assert (code, out, err[0]) == (2, "", f"error: {error}")
    assert hint in err[1]


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
