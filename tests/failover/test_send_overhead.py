"""The overhead of a paired sender, in bytecodes and tasks."""

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from sbpair.failover import clients, timer_runner
from sbpair.failover.shared_state import JITTER, FailoverState
from sbpair.failover.timer_runner import MAX_CONCURRENT_TASKS, TimerRunner
from tests.failover.test_states import a_pair
from tests.faults.simulation.loop import in_virtual_time


def send(_message: object, **_options: Any) -> None:
    """Do as an SDK sender without costs, so that only the overhead is counted."""


async def send_async(_message: object, **_options: Any) -> None: ...


def bytecodes(run: Callable[[], None]) -> int:
    count = 0

    def counting(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return counting

    def tracing(frame: FrameType, _event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return counting

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 counts none unless a frame has it by now
    sys.settrace(tracing)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


SDKS_BYTECODES = {"sync": 8_000, "aio": 10_400}
"""Bytecodes of the SDK's senders for a message of 1 KB. tests/benchmarks/sender.py measures the time."""


@pytest.mark.filterwarnings("ignore::sbpair.ShortTimeout")
def test_a_healthy_send_adds_few_bytecodes_to_the_sdk() -> None:
    message = ServiceBusMessage(b"x" * 1024)
    client = clients.PairedClient(a_pair())
    sender = client.get_queue_sender("orders")
    sender._connections._make = lambda *_: SimpleNamespace(send_messages=send)
    sender.send_messages(message)
    count = bytecodes(lambda: sender.send_messages(message, timeout=60))
    assert 0 < count < 0.03 * SDKS_BYTECODES["sync"]


async def test_a_healthy_async_send_adds_few_bytecodes_to_the_sdk() -> None:
    message = ServiceBusMessage(b"x" * 1024)

    sender = clients.AsyncPairedClient(a_pair()).get_queue_sender("orders")
    sender._connections._make = lambda *_: SimpleNamespace(send_messages=send_async)
    for _ in range(2):
        await sender.send_messages(message)

    def drive() -> None:
        assert next(sender.send_messages(message, timeout=60).__await__(), "ended") == "ended"

    # Now and then a send also sets the shared timer again, which is not the cost of a send.
    assert 0 < min(bytecodes(drive) for _ in range(5)) < 0.042 * SDKS_BYTECODES["aio"]
    sender._timeout.cancel()


async def unanswered(*_: object) -> None:
    await asyncio.Event().wait()


@in_virtual_time
async def test_ten_thousand_failed_over_entities_share_a_task_and_a_timer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("ERROR", "sbpair")
    monkeypatch.setattr(timer_runner, "send_ping", unanswered)
    loop = asyncio.get_running_loop()
    pair = a_pair(failover_interval=60, ping_interval=60)
    state = FailoverState(pair, chance=random.Random(7))
    pings = TimerRunner(pair, state, loop.time)
    state.timers.on_earlier = pings.wake
    running = asyncio.create_task(pings.run())
    before = threading.active_count()
    for number in range(10_000):
        state.register(f"queue-{number}")
        state.primary_failed(f"queue-{number}", TimeoutError(), loop.time())
    await asyncio.sleep(61)
    assert len([each for each in state.states().values() if each.value == "failed over"]) == 10_000
    assert (len(asyncio.all_tasks()), threading.active_count()) == (2, before)
    assert len(loop._scheduled) == 1  # type: ignore[attr-defined]
    # And when all of them are pinged, so many at a time.
    await asyncio.sleep(60 * (1 + JITTER))
    assert len(asyncio.all_tasks()) == 2 + MAX_CONCURRENT_TASKS
    running.cancel()
    await asyncio.wait((running,))
