"""The syphon against a broker built on rhea, which shares no code with anything here. See node/broker.mjs.

What holds in every one of these: a message is settled in the backlog only after the primary has accepted it, and not a
frame is larger, a transfer earlier or a delivery more than rhea has allowed.
"""

import asyncio
import base64
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_of
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ABANDONED, ACCEPTED, RELEASED, dead_letter
from sbpair.backlog import queue_path
from sbpair.drill.drill_messages import OriginalMessage, message_differences, originals
from sbpair.model.pair import Endpoint, Pair, SasKey
from sbpair.model.retries import Backoff
from sbpair.move.timings import MoveTimings
from sbpair.syphon import runner
from sbpair.syphon.run_request import RunTimings
from tests.amqp_client.peers import take
from tests.kit.moves import run_syphon
from tests.kit.waiting import PATIENCE_SECONDS

BROKER = Path(__file__).parent / "node" / "broker.mjs"
QUEUES = 2
MESSAGES = 60
NOW_MS = 1_800_000_000_000
KEY = SasKey("RootManageSharedAccessKey", "no secret")
PLAIN_TERMS = {
    "maxFrameSize": 65_536,
    "window": 2_048,
    "creditWindow": 1_000,
    "settlesSecond": False,
    "answersDrain": True,
    "answers": {},
}


HASTY = RunTimings(backoff=Backoff(0.02, 60.0), empty_wait_seconds=0.2, move=MoveTimings(backoff=Backoff(0.01, 60.0)))


class Broker:
    """A running broker. `record` is what it has seen, once it has been stopped."""

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, int]) -> None:
        self._process = process
        self.pair = Pair(
            "p", _endpoint("contoso", ports["primary"]), _endpoint("contoso-dr", ports["secondary"]), QUEUES
        )
        self.record: dict[str, Any] = {}

    async def stop(self) -> None:
        out, _ = await self._process.communicate(b"")
        self.record = json.loads(out)

    def of(self, kind: str) -> list[list[Any]]:
        return [entry[1:] for entry in self.record["log"] if entry[0] == kind]

    def settled(self, outcome: str) -> list[str]:
        return [message_id for message_id, name, _ in self.of("settled") if name == outcome]


def _endpoint(name: str, port: int) -> Endpoint:
    return Endpoint(name, f"127.0.0.1:{port}", "127.0.0.1", port, tls=False, credential=KEY, emulator=True)


@asynccontextmanager
async def running(node: str, modules: Path, backlog: dict[str, Any], **terms: Any) -> AsyncIterator[Broker]:
    process = await asyncio.create_subprocess_exec(
        *(node, str(BROKER)),
        env={"PATH": os.environ["PATH"], "MODULES": f"{modules}/"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({**PLAIN_TERMS, **terms, "backlog": backlog}).encode() + b"\n")
        yield Broker(process, json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def in_backlog(messages: list[OriginalMessage]) -> dict[str, Any]:
    """The messages by their backlog queues, without the sections that a service writes."""
    queues: dict[str, Any] = {queue_path("contoso", index): [] for index in range(QUEUES)}
    for message in messages:
        sections = Sections.split(message.in_backlog())
        sections.header = sections.message_annotations = b""
        queue = queue_path("contoso", message.number % QUEUES)
        queues[queue].append({"id": message.message_id, "raw": base64.b64encode(sections.join()).decode()})
    return queues


def corpus(count: int = MESSAGES) -> list[OriginalMessage]:
    """Messages of all types, but for what the service adds: the broker writes headers and annotations itself."""
    found = originals(count, now_ms=NOW_MS)
    for each in found:
        each.sections.header = each.sections.message_annotations = b""
    return found


async def moved(node: str, modules: Path, backlog: dict[str, Any], **terms: Any) -> tuple[Broker, runner.SyphonResult]:
    async with running(node, modules, backlog, **terms) as broker:
        result = await run_syphon(broker.pair, once=True, timings=HASTY)
        await broker.stop()
    assert result.receipt.balanced
    assert broker.record["violations"] == []
    assert_settled_after_accept(broker)
    return broker, result


def assert_settled_after_accept(broker: Broker) -> None:
    stored = set()
    for kind, *entry in broker.record["log"]:
        if kind == "stored":
            stored.add(entry[2]["message_id"])
        elif kind == "settled" and entry[1] == "accepted":
            assert entry[0] in stored, f"{entry[0]} was completed before the primary had it"


def assert_whole(broker: Broker, messages: list[OriginalMessage], *, but: tuple[str, ...] = ()) -> None:
    """Every message is in its destination once, as it was sent."""
    by_id = {message.message_id: message for message in messages}
    arrived: Counter[str] = Counter()
    for destination, raw, shown in broker.of("stored"):
        message = by_id[shown["message_id"]]
        arrived[message.message_id] += 1
        assert destination == message.destination
        assert message_differences(message, Sections.split(base64.b64decode(raw))) == []
        assert shown.get("group_id") == message.session_id
        assert shown["schedule"] == message.scheduled_at
    assert set(arrived) == set(by_id) - set(but)
    assert set(arrived.values()) == {1}


TERMS: dict[str, dict[str, Any]] = {
    "rhea's own": {},
    "frames of 512 bytes": {"maxFrameSize": 512},
    "a window of 4": {"window": {"incoming": 4, "outgoing": 2_048}},
    "frames of 512 bytes and a window of 4": {"maxFrameSize": 512, "window": {"incoming": 4, "outgoing": 2_048}},
    "a credit of 1": {"creditWindow": 1},
    "a credit of 3, and settled by the sender first": {"creditWindow": 3, "settlesSecond": True},
    "few deliveries at once": {"window": {"incoming": 2_048, "outgoing": 3}},
    "no word on a drain": {"answersDrain": False},
}


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
async def test_every_message_arrives_as_it_was_sent(node: str, modules: Path, terms: dict[str, Any]) -> None:
    messages = corpus()
    broker, result = await moved(node, modules, in_backlog(messages), **terms)
    assert_whole(broker, messages)
    assert_in_order(broker, messages)
    assert (result.exit_code, result.receipt.sent) == (0, MESSAGES)
    assert sorted(broker.settled("accepted")) == sorted(message.message_id for message in messages)
    assert not any(broker.record["left"].values())
    if "maxFrameSize" in terms:
        assert broker.record["largestFrame"] <= terms["maxFrameSize"]
        assert broker.record["transfers"] > 5 * MESSAGES


async def test_what_rhea_encodes_is_restored_too(node: str, modules: Path) -> None:
    scheduled_at = NOW_MS + 3_600_000
    aliases = [
        {"path": "orders"},
        {"path": "orders", "sessionId": "s-1"},
        {"path": "billing/invoices", "ttlTicks": 600_000_000},
        {"path": "orders", "sessionId": "\u2603", "ttlTicks": 36_000_000_000, "scheduledAt": scheduled_at},
    ]
    named = [f"m{number}" for number in range(len(aliases))]
    plain = [
        {"message_id": name, "subject": "a subject", "body": f"body of {name}", "aliases": each}
        for name, each in zip(named, aliases, strict=True)
    ]
    queue = [{"id": each["message_id"], "plain": each} for each in plain]
    broker, result = await moved(node, modules, {queue_path("contoso", 0): queue, queue_path("contoso", 1): []})
    assert (result.exit_code, result.receipt.sent) == (0, len(plain))
    arrived = {shown["message_id"]: (destination, shown) for destination, _, shown in broker.of("stored")}
    assert {name: destination for name, (destination, _) in arrived.items()} == {
        each["message_id"]: each["aliases"]["path"] for each in plain
    }
    assert [arrived[name][1] for name in named] == [
        {
            "message_id": each["message_id"],
            "schedule": each["aliases"].get("scheduledAt"),
            "content": each["body"],
            "own": ["kept"],
            **({"group_id": each["aliases"]["sessionId"]} if "sessionId" in each["aliases"] else {}),
            **({"ttl": each["aliases"]["ttlTicks"] // 10_000} if "ttlTicks" in each["aliases"] else {}),
        }
        for each in plain
    ]


async def test_a_batch_arrives_as_its_messages(node: str, modules: Path) -> None:
    messages = [message for message in corpus() if message.destination == "orders"]
    payload = batch_of([message.sections.join() for message in messages])

    async def main() -> Broker:
        async with asyncio.timeout(PATIENCE_SECONDS), running(node, modules, {}, maxFrameSize=512) as broker:
            async with connect(broker.pair.primary) as wire:
                await (await wire.sender("orders")).send(payload, message_format=BATCH_FORMAT)
            await broker.stop()
        return broker

    broker = await main()
    assert broker.record["violations"] == []
    assert [base64.b64decode(raw) for _, raw, _ in broker.of("stored")] == [each.sections.join() for each in messages]
    assert [message_format for *_, message_format in broker.of("answered")] == [BATCH_FORMAT]


async def test_each_outcome_of_the_client_and_its_drain_are_understood(node: str, modules: Path) -> None:
    refused = dead_letter("why", "text")
    outcomes = {"accepted": ACCEPTED, "released": RELEASED, "modified": ABANDONED, "rejected": refused}
    queue, messages = queue_path("contoso", 0), corpus(2 * len(outcomes))

    async with asyncio.timeout(PATIENCE_SECONDS), running(node, modules, in_backlog(messages)) as broker:
        async with connect(broker.pair.secondary) as wire:
            receiver = await wire.receiver(queue)
            receiver.grant(len(outcomes))
            for delivery, outcome in zip(await take(receiver, len(outcomes)), outcomes.values(), strict=True):
                await receiver.settle([delivery], outcome)
            receiver.grant(100)
            await receiver.drain(seconds=600)
            assert receiver.credit == 0
        await broker.stop()
    assert broker.record["violations"] == []
    assert [outcome for _, outcome, _ in broker.of("settled")] == list(outcomes)


@pytest.mark.parametrize("second", [False, True], ids=["settled at once", "settled by the sender first"])
async def test_what_the_primary_gives_back_is_sent_again(node: str, modules: Path, second: bool) -> None:
    messages = corpus()
    answers = {messages[3].message_id: ["released"], messages[20].message_id: ["modified", "released"]}
    broker, result = await moved(node, modules, in_backlog(messages), answers=answers, settlesSecond=second)
    assert_whole(broker, messages)
    assert (result.exit_code, result.receipt.sent) == (0, MESSAGES)
    assert Counter(answer for answer, *_ in broker.of("answered"))["released"] == 2
    assert_in_order(broker, messages)


@pytest.mark.parametrize("second", [False, True], ids=["settled at once", "settled by the sender first"])
async def test_what_the_primary_refuses_is_dead_lettered_with_what_it_said(
    node: str, modules: Path, second: bool
) -> None:
    messages = corpus()
    unwanted = (messages[5].message_id, messages[6].message_id)
    answers = {message_id: ["rejected"] for message_id in unwanted}
    broker, result = await moved(node, modules, in_backlog(messages), answers=answers, settlesSecond=second)
    assert_whole(broker, messages, but=unwanted)
    assert (result.exit_code, result.receipt.sent, result.receipt.dead_lettered) == (3, MESSAGES - 2, 2)
    rejected = {message_id: why for message_id, outcome, why in broker.of("settled") if outcome == "rejected"}
    assert set(rejected) == set(unwanted)
    assert all(f"{message_id} is not wanted" in why for message_id, why in rejected.items())


def assert_in_order(broker: Broker, messages: list[OriginalMessage]) -> None:
    """Of each backlog queue, the messages of a destination arrive in the queue's order."""
    numbers = {message.message_id: message.number for message in messages}
    arrived: dict[tuple[str, int], list[int]] = {}
    for destination, _, shown in broker.of("stored"):
        number = numbers[shown["message_id"]]
        arrived.setdefault((destination, number % QUEUES), []).append(number)
    assert all(found == sorted(found) for found in arrived.values())
