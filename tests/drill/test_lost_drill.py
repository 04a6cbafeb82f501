"""The drill whose primary is deleted, and its account: what makes it fail."""

import socket
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair import drill
from sbpair.amqp.message import Sections, data_body
from sbpair.drill import relay_drill
from sbpair.drill.drill_messages import OriginalMessage, originals
from sbpair.drill.lost_primary import Loss, LossReport
from sbpair.drill.relay_drill import RelayApplication
from sbpair.failover.clients import AsyncPairedClient
from sbpair.move.receipt import NamedMessage, Receipt
from tests.drill.test_drill import sections
from tests.kit.command import Here, environment
from tests.kit.json_schemas import parse_validated

# The SDK leaves the sockets of what has failed to whoever collects the garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FAST = ("--failover-interval", "0", "--rate", "100")


def counts(record: dict[str, Any]) -> tuple[int, ...]:
    return tuple(record[name] for name in ("lost", "duplicated", "altered"))


def test_everything_but_what_only_the_primary_had_is_received(here: Here) -> None:
    code, out, err = here("drill", "--lost", "--messages", "100", *FAST, "-o", "json", **environment(None))
    found = parse_validated(out)
    lost, live = found["primary_lost"], found["sending"]
    assert (code, counts(found), counts(live)) == (0, (0, 0, 0), (0, 0, 0)), (lost, err)
    assert (found["sent"], live["sent"]) == (found["received"], live["received"])
    assert live["secondary"] >= 20
    assert live["backlog"] >= 10
    # Each message was received, or was in the primary only; and both had at least the one whose answer was lost.
    assert found["sent"] + live["sent"] + lost["inside"] == 100 + live["primary"] + live["backlog"] + live["secondary"]
    assert lost["inside"] >= 10
    assert lost["copies"] >= 1
    assert (lost["unnamed"], lost["disordered"], lost["connections"]) == (0, 0, 0)
    assert [each["name"] for each in found["timeline"] if each["name"] != "sender"] == [
        *("start", "provision", "strand", "syphon", "primary-down", "delete", "declare", "deliver", "compare")
    ]


async def test_a_drill_finds_what_goes_wrong_after_the_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    declare, read_back, received = AsyncPairedClient.primary_lost, drill._read_back, drill.received

    def declare_and_contact(client: AsyncPairedClient) -> None:
        declare(client)
        with socket.create_connection((client.pair.primary.host, client.pair.primary.port)):
            pass

    async def lose_one_and_alter_one(*given: Any) -> list[tuple[str, bytes]]:
        found = await read_back(*given)
        ids = Counter(Sections.split(payload).read_properties().message_id for _, payload in found)
        # One with a copy would not be lost.
        found.sort(key=lambda each: ids[Sections.split(each[1]).read_properties().message_id])
        _lost, (path, payload), *rest = found
        altered = Sections.split(payload)
        altered.body = data_body(b"another")
        return [(path, altered.join()), *rest]

    async def in_reverse(*given: Any) -> list[bytes]:
        return [*reversed(await received(*given))]

    monkeypatch.setattr(AsyncPairedClient, "primary_lost", declare_and_contact)
    monkeypatch.setattr(drill, "_read_back", lose_one_and_alter_one)
    monkeypatch.setattr(drill, "received", in_reverse)
    result = await drill.run_drill(messages=60, queues=2, lost=True, intervals=drill.Intervals(failover=0, rate=200))
    lost = result.primary_lost
    assert lost is not None
    assert (result.exit_code, counts(asdict(result)), counts(asdict(result.sending))) == (3, (1, 0, 1), (0, 0, 0))
    assert lost.connections == 1
    assert lost.disordered >= 1


# The account


SENT = [replace(each, destination="orders", scheduled_at=None) for each in originals(8, now_ms=0)]
LIVE = {f"live-{number}": sections(message_id=f"live-{number}", session_id="s") for number in range(5)}
BACK = [each.sections.join() for each in SENT]
LIVE_BACK = [each.join() for each in LIVE.values()]


def account(
    received: list[bytes],
    inside: tuple[str, ...] = (),
    named: tuple[str, ...] = (),
    doubtful: tuple[str, ...] = (),
    sent: list[OriginalMessage] = SENT,
) -> tuple[LossReport, list[OriginalMessage], dict[str, Sections]]:
    """Return the account of these messages in 2 backlog queues, and those that had to be received."""
    names = tuple(NamedMessage("queue", 1, each, "orders", "in doubt") for each in named)
    sent, sending = list(sent), SimpleNamespace(sent=dict(LIVE), doubtful=set(doubtful))
    loss = Loss(dict.fromkeys(inside), Receipt(doubtful=names), 2, 0, 2)
    return loss.account(sent, sending, received), sent, sending.sent  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("received", "disordered"),
    [
        ([*BACK, *LIVE_BACK], 0),
        ([*BACK[1::2], *BACK[::2], *LIVE_BACK], 0),  # queues have no order between them
        ([*BACK, *LIVE_BACK[3:], *LIVE_BACK[:3]], 0),  # new sends overtake what waits
        ([*BACK, *LIVE_BACK, BACK[0], LIVE_BACK[0]], 0),  # a duplicate comes later
        ([BACK[2], BACK[0], *BACK[4:], *LIVE_BACK], 1),
        ([*BACK, LIVE_BACK[1], LIVE_BACK[0]], 1),
        ([*BACK, LIVE_BACK[4], LIVE_BACK[3]], 1),
    ],
)
def test_order_is_that_of_a_backlog_queue_and_of_a_sender(received: list[bytes], disordered: int) -> None:
    found, sent, live = account(received)
    assert (found.disordered, found.failed, sent, live) == (disordered, bool(disordered), SENT, LIVE)


def test_scheduled_messages_come_at_their_time() -> None:
    later = [replace(SENT[0], scheduled_at=1), *SENT[1:]]
    assert account([*BACK[1:], BACK[0]], sent=later)[0].disordered == 0


@pytest.mark.parametrize(
    ("named", "doubtful", "unnamed"),
    [
        ((SENT[0].message_id,), ("live-0",), 0),
        ((SENT[0].message_id, "live-0"), (), 0),
        ((SENT[0].message_id,), (), 1),
        ((), (), 2),
    ],
)
def test_copies_of_what_the_primary_had_are_named(
    named: tuple[str, ...], doubtful: tuple[str, ...], unnamed: int
) -> None:
    inside = (SENT[0].message_id, SENT[1].message_id, "live-0", "live-1", "of a ping")
    found, sent, live = account([BACK[0], *BACK[2:], LIVE_BACK[0], *LIVE_BACK[2:]], inside, named, doubtful)
    assert (found.copies, found.unnamed, found.failed) == (2, unnamed, bool(unnamed))
    assert found.inside == 2
    assert sent == [SENT[0], *SENT[2:]]
    assert list(live) == ["live-0", "live-2", "live-3", "live-4"]


@pytest.mark.parametrize("wrong", ["unnamed", "disordered", "connections"])
def test_each_failure_of_the_account_fails_the_drill(wrong: str) -> None:
    figures = dict.fromkeys(("inside", "copies", "unnamed", "disordered", "connections"), 0)
    assert not LossReport(**figures | {"inside": 5, "copies": 5}).failed
    assert LossReport(**figures | {wrong: 1}).failed


# Relays


def test_the_second_endpoint_serves_everything(here: Here) -> None:
    code, out, _ = here("drill", "--relay", "--lost", "--rate", "100", "-o", "json", **environment(None))
    found = parse_validated(out)
    assert (code, found["wrong"], found["failed"], found["problems"]) == (0, 0, 0, []), found
    assert found["secondary"] >= 20
    assert found["sent"] == found["primary"] + found["secondary"] + found["in_doubt"]
    assert [each["name"] for each in found["timeline"] if each["name"] != "relay"] == [
        *("start", "sending", "primary-down", "delete", "compare")
    ]


async def test_a_request_that_the_second_endpoint_does_not_answer_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    play = relay_drill._play

    async def play_and_forge(running: RelayApplication, *given: Any, **named: Any) -> None:
        await play(running, *given, **named)
        answered = next(each for each in running.requests[running.before_loss :] if each.outcome == "answered")
        answered.side = "primary"

    monkeypatch.setattr(relay_drill, "_play", play_and_forge)
    result = await relay_drill.run_relay_drill(rate=100, lost=True)
    assert result.exit_code == 3
    assert "did not answer it" in result.tally.problems[0][1]
