"""Ramps of `sbpair move` in a process of its own, while an official client consumes; and pauses of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from sbpair.amqp.message import Sections, data_body
from sbpair.emulator.entities.stored_message import StoredMessage
from tests.cli.test_runs import Pair, open_pair
from tests.cli.test_runs_control import asked
from tests.kit.stranded import put, stranded

COUNT = 30
RAMP = ("--ramp", "1,5,20,25", "--observe", "1s")
ROUTE = ("move", "orders-old", "primary:news")
WITHOUT_ID = Sections(body=data_body(b"body")).join()


async def fill(pair: Pair, *messages: bytes) -> None:
    """Create a queue with messages, and a topic with two subscriptions."""
    primary = pair.emulator.namespaces["contoso"]
    old, topic = primary.create_queue("orders-old"), primary.create_topic("news")
    for name in ("billing", "audit"):
        topic.create_subscription(name)
    for each in messages:
        put(old, each)


def is_bad(message_id: str) -> bool:
    """Return whether a message is each tenth one, or got its id from the service."""
    return len(message_id) == 32 or message_id.endswith("0")


@asynccontextmanager
async def consuming(pair: Pair, subscription: str) -> AsyncIterator[None]:
    """Complete what a subscription gets with an official client, but dead-letter bad messages."""
    done, connection_string = asyncio.Event(), pair.emulator.ready.namespaces[0].connection_string

    async def consume() -> None:
        async with (
            ServiceBusClient.from_connection_string(connection_string) as client,
            client.get_subscription_receiver("news", subscription) as receiver,
        ):
            while not done.is_set():  # it may swallow a cancellation
                for message in await receiver.receive_messages(max_message_count=50, max_wait_time=0.3):
                    if is_bad(message.message_id):
                        await receiver.dead_letter_message(message, reason="Poison", error_description="one in ten")
                    else:
                        await receiver.complete_message(message)

    consumer = asyncio.create_task(consume())
    try:
        yield
    finally:
        done.set()
        await consumer


def counts(pair: Pair, path: str) -> tuple[int, int]:
    found = pair.emulator.namespaces["contoso"].entity(path).counts()
    return found.active, found.dead_letter


async def moved(pair: Pair, *words: str, code: int) -> dict[str, Any]:
    done, out, err = await pair.run(*words, "-q", "-o", "json")
    assert done == code, err
    receipt: dict[str, Any] = json.loads(out)
    return receipt


async def test_ramp_into_a_topic_stops_at_dead_letters_of_a_subscription(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await fill(pair, *(stranded(f"m{number}", None) for number in range(1, COUNT + 1)))
        async with consuming(pair, "billing"):
            receipt = await moved(pair, *ROUTE, *RAMP, code=3)
        ramp, sent = receipt["ramp"], receipt["sent"]
        first, second, third = ([each[name] for name in ("total", "sent", "came_back")] for each in ramp["steps"])
        assert (first, second) == ([1, 1, 0], [5, 5, 0])
        # A peek may come while the third step is sent, or between its two dead letters.
        assert third == [20, sent, len(ramp["came_back"])]
        assert 10 <= sent <= 20
        assert (ramp["state"], ramp["came_back_total"], ramp["other_dead_letters"]) == ("stopped", third[2], 0)
        assert {each["message_id"] for each in ramp["came_back"]} <= {"m10", "m20"}
        assert {(each["queue"], each["destination"], each["reason"]) for each in ramp["came_back"]} == {
            ("news/subscriptions/billing/$deadletterqueue", "news/subscriptions/billing", "Poison: one in ten")
        }
        assert counts(pair, "orders-old") == (COUNT - sent, 0)
        assert counts(pair, "news/subscriptions/audit") == (sent, 0)
        [shown] = [each for each in receipt["next_commands"] if "redrive" in each]
        assert "redrive primary:news/subscriptions/billing --by-reason" in shown


async def test_message_without_an_id_is_recognised_by_that_of_the_service(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await fill(pair, *[WITHOUT_ID] * 3)
        async with consuming(pair, "billing"):
            receipt = await moved(pair, *ROUTE, "--canary", "1", "--observe", "5s", code=3)
        [back] = receipt["ramp"]["came_back"]
        assert (len(back["message_id"]), receipt["ramp"]["other_dead_letters"]) == (32, 0)
        assert (receipt["sent"], counts(pair, "orders-old")) == (1, (2, 0))


async def test_dead_letters_of_messages_without_an_id_stop_a_ramp_as_others(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await fill(pair)
        source = pair.emulator.namespaces["contoso"].queue("orders-old")
        source.messages.enqueue([StoredMessage(Sections.split(WITHOUT_ID), len(WITHOUT_ID)) for _ in range(3)])
        async with consuming(pair, "billing"):
            receipt = await moved(pair, *ROUTE, "--canary", "1", "--observe", "5s", code=3)
        ramp = receipt["ramp"]
        assert (ramp["state"], ramp["came_back"], ramp["other_dead_letters"]) == ("stopped", [], 1)
        [failure] = receipt["failures"]
        assert failure["queue"] == "news/subscriptions/billing"
        assert failure["reason"] == "1 other dead letter came: none is known to be a moved message"
        assert (receipt["sent"], counts(pair, "orders-old")) == (1, (2, 0))


async def test_a_pause_while_a_ramp_observes_is_confirmed_and_cancelled(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await fill(pair, *(stranded(f"m{number}", None) for number in range(1, 6)))
        process = await pair.start(*ROUTE, "--ramp", "2,4", "--observe", "1h", "--log-format", "json", "-o", "json")
        assert process.stderr is not None
        state = ""
        while state != "observing":
            event = json.loads(await process.stderr.readline())
            state = event.get("state", "")  # of an event of the ramp
        [run] = await pair.runs()
        assert (await asked(pair, "pause", run["id"]))["outcome"] == "paused"
        [listed] = await pair.runs()
        assert (listed["outcome"], counts(pair, "orders-old")) == ("paused", (3, 0))
        assert (await asked(pair, "resume", run["id"]))["outcome"] == "running"
        assert (await asked(pair, "pause", run["id"]))["outcome"] == "paused"
        assert (await asked(pair, "cancel", run["id"]))["outcome"] == "stopped"
        out, _ = await process.communicate()
        receipt = json.loads(out)
        assert (process.returncode, receipt["sent"], receipt["released"], receipt["balanced"]) == (130, 2, 0, True)
        assert (receipt["ramp"]["state"], counts(pair, "orders-old")) == ("observing", (3, 0))
