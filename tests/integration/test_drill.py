"""The drill, whole and for real: an emulator in a process of its own, and every message compared."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from sbpair import drill, errors
from sbpair.drill import service
from sbpair.move import events


def test_a_drill_brings_every_message_back_whole() -> None:
    told: list[Any] = []
    result = asyncio.run(drill.run(messages=200, on_event=told.append))
    gc.collect()
    assert (result.sent, result.received) == (200, 200)
    assert (result.lost, result.duplicated, result.altered, result.exit_code) == (0, 0, 0, 0), result.alterations
    assert result.receipt.balanced
    assert (result.receipt.sent, result.receipt.exit_code) == (200, 0)
    assert [each.name for each in told if isinstance(each, drill.Phase)] == [
        *("start", "provision", "strand", "syphon", "compare"),
    ]
    assert [each for each in told if isinstance(each, drill.Written)][-1] == drill.Written(200, 200)
    assert [each for each in told if isinstance(each, drill.Compared)][-1] == drill.Compared(200, 200)
    assert sum(isinstance(each, events.LaneDone) for each in told) == 10


def test_a_drill_that_is_interrupted_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    ready = service._ready

    async def seen(process: asyncio.subprocess.Process) -> Any:
        started.append(process)
        return await ready(process)

    monkeypatch.setattr(service, "_ready", seen)

    async def main() -> None:
        stranding = asyncio.Event()

        def on_event(event: Any) -> None:
            if isinstance(event, drill.Written):
                stranding.set()

        task = asyncio.create_task(drill.run(messages=100, queues=2, on_event=on_event))
        await stranding.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    assert started[0].returncode is not None


def test_an_emulator_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.sys, "executable", "/bin/false")
    with pytest.raises(errors.MachineLacks, match="the emulator did not start"):
        asyncio.run(drill.run(messages=1))


def test_a_drill_without_messages_is_refused() -> None:
    with pytest.raises(errors.UsageError):
        asyncio.run(drill.run(messages=0))
