"""Signals to a syphon whose primary does not answer: the second ends it within seconds, with a receipt."""

import asyncio
import json
import signal
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.frontends.amqp.outgoing_link import OutgoingLink
from sbpair.testing import Emulator
from tests.faults.test_kill_syphon import (
    DESTINATIONS,
    MESSAGES,
    QUEUES,
    in_backlog,
    in_primary,
    locked_in_backlog,
    strand,
    syphon,
)
from tests.kit.waiting import until

CHOSEN, CHOSEN_MESSAGES = f"path = '{DESTINATIONS[1]}'", MESSAGES // 2
PATIENCE_SECONDS = 8.0
"""Less than the ten seconds after which the process would be cancelled without a receipt."""


@pytest.mark.parametrize("mode", ["--once", "--watch"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_it_with_a_receipt(
    mode: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping: set[str] = set()
    on_flow = OutgoingLink.on_flow

    def watched(outlet: Any) -> None:
        on_flow(outlet)
        if outlet._link.draining or not outlet._link.credit:
            stopping.add(outlet.path)

    async with asyncio.timeout(60), Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        await backlog_of(emulator)
        emulator.faults.swallow_acks("contoso")
        process = await syphon(emulator, mode, "--output", "json")
        await until(lambda: in_primary(emulator).total() == MESSAGES)
        monkeypatch.setattr(OutgoingLink, "on_flow", watched)
        process.send_signal(number)
        await until(lambda: len(stopping) == QUEUES)
        process.send_signal(number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
        receipt = json.loads(out)
        assert process.returncode == 130
        assert receipt["balanced"]
        assert (receipt["received"], receipt["in_doubt"], receipt["stopped"]) == (MESSAGES, MESSAGES, True)
        assert len(receipt["doubtful"]) == in_backlog(emulator) == MESSAGES


@pytest.mark.parametrize("mode", ["--once", "--watch"])
async def test_a_second_signal_unlocks_what_the_filter_left(mode: str) -> None:
    async with asyncio.timeout(60), Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        backlog = await backlog_of(emulator)
        emulator.faults.swallow_acks("contoso")
        process = await syphon(emulator, mode, "--output", "json", "--where", CHOSEN)
        await until(lambda: in_primary(emulator).total() == CHOSEN_MESSAGES)
        await until(lambda: locked_in_backlog(emulator) == MESSAGES)
        process.send_signal(signal.SIGINT)
        await until(lambda: locked_in_backlog(emulator) == CHOSEN_MESSAGES)  # before the pending sends have ended
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
        receipt = json.loads(out)
        assert (process.returncode, receipt["balanced"], locked_in_backlog(emulator)) == (130, True, 0)
        assert (receipt["received"], receipt["in_doubt"]) == (MESSAGES, CHOSEN_MESSAGES)
        assert receipt["skipped"] == MESSAGES - CHOSEN_MESSAGES
        assert delivery_counts(backlog) == [0] * MESSAGES


@pytest.mark.parametrize(("mode", "code"), [("--once", 130), ("--watch", 0)])
async def test_one_signal_unlocks_what_the_filter_left(mode: str, code: int) -> None:
    async with asyncio.timeout(60), Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        backlog = await backlog_of(emulator)
        others = [each for queue in backlog for each in queue.messages.receive(1)]  # `--once` waits for their locks
        process = await syphon(emulator, mode, "--output", "json", "--where", CHOSEN)
        left = MESSAGES - CHOSEN_MESSAGES
        await until(lambda: in_backlog(emulator) == locked_in_backlog(emulator) == left)
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
        receipt = json.loads(out)
        assert (process.returncode, receipt["balanced"], locked_in_backlog(emulator)) == (code, True, len(others))
        assert (receipt["sent"], receipt["skipped"]) == (CHOSEN_MESSAGES, left - len(others))
        assert delivery_counts(backlog) == [0] * left


async def backlog_of(emulator: Emulator) -> list[QueueEntity]:
    """Create all queues, and put the messages into the backlog. Return its queues."""
    for name in DESTINATIONS:
        emulator.namespaces["contoso"].create_queue(name)
    paths = [queue_path("contoso", index) for index in range(QUEUES)]
    backlog = [emulator.namespaces["contoso-dr"].create_queue(path) for path in paths]
    await strand(emulator)
    return backlog


def delivery_counts(backlog: list[QueueEntity]) -> list[int]:
    return [each.delivery_count for queue in backlog for each in queue.messages.peek(0, 10 * MESSAGES)]
