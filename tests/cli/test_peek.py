"""`sbpair peek` and `sbpair deadletters`: shown messages, counts and wrong inputs; nothing changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Char, Decimal32
from sbpair.cli.render.messages import message_table
from sbpair.cli.render.table import Layout
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.testing import EmulatorThread, QueueDescription
from tests.kit import command
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.entities.queue import QueueEntity

QUEUES = [f"contoso/x-servicebus-transfer/{number}" for number in range(2)]
BACK = "bring dead letters back with sbpair redrive"
ODD = Sections(
    properties=Properties(message_id="odd\x1b[31m").encode(),
    application_properties=encode_map(APPLICATION_PROPERTIES, {"odd": Char("\u20ac"), "number": Decimal32(b"\0" * 4)}),
    body=data_body(b"\x1b[2Jred\x07"),
).join()


IN_SESSION = Sections(properties=Properties(group_id="s").encode(), body=data_body(b"")).join()


class World:
    """A pair with two backlog queues, and in its primary `orders`, `sessions` and the topic `events`."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self.emulator = thread.emulator
        primary, secondary = self.emulator.namespaces.values()
        self.do = thread.do
        self.orders = self.do(lambda: primary.create_queue("orders"))
        self.backlog = self.do(lambda: [secondary.create_queue(path) for path in QUEUES])
        self.environ = environment(self.emulator, NO_COLOR="1")
        self._here = here

    def run(self, *words: str, **changed: str) -> tuple[int, str, list[str]]:
        """Return the exit code, stdout and the lines of stderr."""
        code, out, err = self._here(*words, **self.environ | changed)
        return code, out, untimed(err).splitlines()

    def put(self, queue: QueueEntity, payload: bytes) -> None:
        self.do(lambda: put(queue, payload))

    def dead_letter(self, queue: QueueEntity, count: int, reason: str, to: str | None) -> None:
        self.do(lambda: dead_letter(queue, count, reason, to))

    def document(self, *words: str) -> dict[str, Any]:
        code, out, _err = self.run(*words, "-o", "json")
        assert code == 0
        found: dict[str, Any] = json.loads(out)
        return found


def dead_letter(queue: QueueEntity, count: int, reason: str, to: str | None) -> None:
    for number in range(count):
        put(queue, stranded(f"{reason}-{number}", to))
        (locked,) = queue.messages.receive(1)
        queue.messages.dead_letter(locked.lock_token, reason, f"why {number}")


@pytest.fixture
def world(here: Here) -> Iterator[World]:
    with EmulatorThread() as thread:
        yield World(thread, here)


def test_peek_shows_messages_of_either_side_and_changes_nothing(world: World) -> None:
    world.put(world.orders, ODD)
    for number in range(3):
        world.put(world.orders, stranded(f"m{number}", None, b"%d" % number))
    world.put(world.backlog[1], stranded("stranded", "orders"))
    code, out, err = world.run("peek", "orders")
    assert (code, err) == (0, ["showed all 4 messages"])
    assert [line.split()[:3:2] for line in out.splitlines()[:2]] == [["SEQUENCE", "ID"], ["1", "odd\ufffd[31m"]]
    assert not {"\x1b", "\x07"} & {*out}
    code, out, err = world.run("peek", "orders", "--from", "2", "--max", "2", "--body", "-o", "jsonl")
    assert [json.loads(line)["body"] for line in out.splitlines()] == ["0", "1"]
    assert (code, err) == (0, ["showed 2 of about 4 messages"])
    for name in ("1", QUEUES[1]):
        printed = world.document("peek", name)
        (message,) = printed.pop("messages")
        assert printed == {
            "schema": "sbpair/peek/1",
            "namespace": "contoso-dr",
            "side": "secondary",
            "entity": QUEUES[1],
            "total": 1,
            "complete": True,
        }
        assert (message["message_id"], message["destination"]) == ("stranded", "orders")
        assert (message["delivery_count"], "body" in message) == (0, False)
    assert world.document("peek", "orders", "--body")["messages"][0]["body"] == "\x1b[2Jred\x07"
    code, _out, err = world.run("peek", "1", "--side", "primary")
    assert (code, err[0]) == (2, "error: 1 does not exist in contoso")
    delivered = world.do(lambda: [*world.orders.messages.receive(9), *world.backlog[1].messages.receive(9)])
    assert [message.delivery_count for message in delivered] == [0] * 5


def test_peek_shows_subscriptions_sessions_and_dead_letters(world: World) -> None:
    primary = world.emulator.namespaces["contoso"]
    world.do(lambda: primary.create_queue("sessions", QueueDescription(requires_session=True)))
    world.do(lambda: primary.create_topic("events").create_subscription("audit"))
    world.dead_letter(world.orders, 2, "Poison", None)
    world.put(primary.find_queue("sessions"), IN_SESSION)
    assert world.document("peek", "sessions")["messages"][0]["session_id"] == "s"
    for words in (["orders", "--dead-letters"], ["orders/$DeadLetterQueue"]):
        code, out, err = world.run("peek", *words)
        assert (code, err) == (0, ["showed all 2 messages"])
        assert out.splitlines()[1].endswith("Poison: why 0")
    assert world.run("peek", "orders", "--dead-letters", "--max", "1")[2] == ["showed 1 of about 2 messages"]
    assert world.run("peek", "events/subscriptions/audit")[::2] == (0, ["no messages"])
    hint = "hint: read a subscription: sbpair peek TOPIC/subscriptions/NAME, sbpair receive TOPIC --subscription NAME"
    for verb in ("peek", "receive"):
        assert world.run(verb, "events") == (
            2,
            "",
            ["error: events is a topic, which holds no messages", hint],
        )


def test_dead_letters_are_counted_by_queue_reason_and_destination(world: World) -> None:
    assert world.run("deadletters", "list", "-n", "2") == (0, "", ["no dead letters"])
    world.dead_letter(world.backlog[0], 3, "DestinationNotFound", "gone")
    world.dead_letter(world.backlog[1], 1, "DestinationNotFound", "gone")
    world.dead_letter(world.backlog[1], 2, "InvalidBacklogMessage", None)
    code, out, err = world.run("deadletters", "list", "-n", "2")
    assert (code, err) == (0, [f"6 dead letters; {BACK} --backlog --count 2"])
    assert [[*line.split()[:2], *line.split()[3:]] for line in out.splitlines()] == [
        ["QUEUE", "DEAD", "DESTINATION", "REASON"],
        [QUEUES[0], "3", "gone", "DestinationNotFound"],
        [QUEUES[1], "1", "gone", "DestinationNotFound"],
        [QUEUES[1], "2", "(unknown)", "InvalidBacklogMessage"],
    ]
    code, out, err = world.run("deadletters", "list", "--max", "2", "--queue", "0")
    assert (code, out.split()[6]) == (0, "~2")
    assert err == [
        "~ is at least so many: not all messages were peeked; --max N peeks more",
        f"~2 dead letters; {BACK} 0",
    ]
    printed = world.document("deadletters", "list", "--max", "2")
    assert (printed["messages"], printed["exact"]) == (4, False)
    assert [(each["messages"], each["exact"]) for each in printed["groups"]] == [(2, False), (1, False), (1, False)]
    assert [queue.counts().dead_letter for queue in world.backlog] == [3, 3]


def test_dead_letters_are_shown_by_queue_and_reason(world: World) -> None:
    world.dead_letter(world.backlog[0], 3, "DestinationNotFound", "gone")
    world.dead_letter(world.backlog[1], 2, "InvalidBacklogMessage", None)
    code, out, err = world.run("deadletters", "show")
    assert (code, len(out.splitlines()), err) == (0, 6, ["showed all 5 messages", f"{BACK} --backlog"])
    assert out.splitlines()[1].split()[0] == QUEUES[0]
    assert out.splitlines()[1].endswith("DestinationNotFound: why 0")
    printed = world.document("deadletters", "show", "--reason", "invalidbacklogmessage", "--max", "1")
    assert (printed["complete"], printed["total"]) == (False, None)
    (message,) = printed["messages"]
    assert (message["queue"], message["dead_letter_description"]) == (QUEUES[1], "why 0")
    assert world.run("deadletters", "show", "--max", "4")[2][0] == "showed the first 4; there may be more"
    some = world.run("deadletters", "show", "--queue", "0", "--queue", "1", "--reason", "InvalidBacklogMessage", "-n2")
    chosen = "--reason InvalidBacklogMessage"
    assert some[2][1] == f"{BACK} 0 {chosen} and sbpair redrive 1 {chosen}"
    nothing = world.run("deadletters", "show", "--queue", "1", "--reason", "DestinationNotFound")
    assert nothing == (0, "", ["no messages"])


SCREEN = """\
backlog queues contoso/x-servicebus-transfer/…
QUEUE  SEQUENCE  ENQUEUED              DESTINATION  ID
…/0           1  2026-11-22T10:15:00Z  sales/eu     5843cdde-0384…9-85926a0d4412
  DestinationNotFound: queue or topic 'sales/eu' does not exist in the primary
    namespace
…/1    72057595  2026-11-22T10:15:01Z  sales/eu     3fd7f13b-e082…b-0cbb5076d0c7
  DestinationNotFound: queue or topic 'sales/eu' does not exist in the primary
    namespace
"""


def test_shown_dead_letters_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.cli.render.table.stdout_layout", lambda: Layout(80))
    ids = "5843cdde-0384-4cf6-ab89-85926a0d4412", "3fd7f13b-e082-46a0-9cbb-0cbb5076d0c7"
    entries = [
        {
            "from": "secondary",
            "state": "active",
            "destination": "sales/eu",
            "size": 505,
            "queue": queue,
            "sequence_number": number,
            "enqueued_at": f"2026-11-22T10:15:0{at}.250000+00:00",
            "message_id": ids[at],
            "dead_letter_reason": "DestinationNotFound",
            "dead_letter_description": "queue or topic 'sales/eu' does not exist in the primary namespace",
        }
        for at, (queue, number) in enumerate(zip(QUEUES, (1, 72057595), strict=True))
    ]
    assert "".join(f"{line}\n" for line in message_table(entries)) == SCREEN


@pytest.mark.parametrize(
    "words", [["peek", "orders"], ["deadletters", "list", "-n2"], ["deadletters", "show"]], ids=" ".join
)
def test_a_missing_listen_claim_is_named(world: World, words: list[str]) -> None:
    send = AuthorizationRule("send", "c2VuZA==", "c2VuZDI=", frozenset({AccessRight.SEND}))
    changed = {}
    for side, namespace in zip(command.SIDES, world.emulator.namespaces.values(), strict=True):
        namespace.keys = (*namespace.keys, send)
        given = world.environ[f"SBPAIR_{side}_CONNECTION_STRING"].split(";")
        named = ["SharedAccessKeyName=send", "SharedAccessKey=c2VuZA=="]
        changed[f"SBPAIR_{side}_CONNECTION_STRING"] = ";".join([given[0], *named, given[-1]])
    code, out, err = world.run(*words, "--output", "json", **changed)
    assert (code, out) == (5, "")
    assert "Listen" in err[-2]
    assert err[-1] == "hint: use a key, or a role, that has this claim"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["peek", "orders"], ["receive", "orders"], ["deadletters", "list"]], ids=" ".join)
def test_a_pair_that_is_down_is_named(world: World, words: list[str]) -> None:
    for name in world.emulator.namespaces:
        world.do(lambda name=name: world.emulator.faults.namespace_down(name))
    code, out, err = world.run(*words)
    assert (code, out) == (6, "")
    assert (err[-2][:7], err[-1][:6]) == ("error: ", "hint: ")


@pytest.mark.parametrize("name", ["nowhere", "77", "events/subscriptions/none"])
def test_a_missing_queue_is_named(world: World, name: str) -> None:
    code, out, err = world.run("peek", name)
    assert (code, out, len(err)) == (2, "", 2)
    assert name in err[0]
    assert err[1].startswith("hint: check the name")
