"""Signals to a syphon whose primary does not answer: the second ends it within seconds, with a receipt."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.frontends.amqp.outgoing_link import OutgoingLink
from sbpair.testing import Emulator
from tests.faults.test_kill_syphon import DESTINATIONS, MESSAGES, QUEUES, in_backlog, in_primary, strand, syphon
from tests.kit.waiting import until

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
        for name in DESTINATIONS:
            emulator.namespaces["contoso"].create_queue(name)
        for index in range(QUEUES):
            emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", index))
        await strand(emulator)
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
