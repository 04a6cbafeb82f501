"""`sbpair peek` and `sbpair deadletters`: shown messages, counts and wrong inputs; nothing changes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Char, Decimal32
from sbpair.cli.render.messages import message_table
from sbpair.cli.render.table import Layout
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.testing import EmulatorThread
from tests.kit import command
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put, stranded

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


def test_peek_prints_no_control_characters(world: World) -> None:
    world.put(world.orders, ODD)
    code, out, err = world.run("peek", "orders")
    assert (code, err) == (0, ["showed all 1 message"])
    assert [line.split()[:3:2] for line in out.splitlines()] == [["SEQUENCE", "ID"], ["1", "odd\ufffd[31m"]]
    assert not {"\x1b", "\x07"} & {*out}
    assert world.document("peek", "orders", "--body")["messages"][0]["body"] == "\x1b[2Jred\x07"


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
