"""The two drivers of steps: concurrency, results and cancellation."""

import asyncio
import inspect
import threading
from contextlib import suppress
from typing import Any

import pytest

from sbpair.failover.clients import AsyncPairedSender, PairedSender
from sbpair.sync_async import Call, Gather, Pause, Steps, drive, drive_async
from tests.kit.waiting import PATIENCE_SECONDS


def meeting(barrier: Any, name: str) -> Steps[str]:
    """Wait at the barrier for the other procedures."""
    yield Call(lambda on, _seconds: on.wait(), barrier, 5.0)
    return name


def all_of(*procedures: Steps[Any]) -> Steps[list[Any]]:
    found: list[Any] = yield Gather(procedures)
    return found


def test_methods_are_described_by_their_procedure() -> None:
    for method in (PairedSender.schedule_messages, AsyncPairedSender.schedule_messages):
        assert (method.__name__, inspect.signature(method).return_annotation) == ("schedule_messages", "list[int]")
        assert inspect.getdoc(method).startswith("Schedule messages.")
    assert inspect.iscoroutinefunction(AsyncPairedSender.schedule_messages)


async def test_gathered_procedures_return_in_order() -> None:
    barrier, async_barrier = threading.Barrier(3, timeout=PATIENCE_SECONDS), asyncio.Barrier(3)
    assert drive(all_of(*(meeting(barrier, name) for name in "abc"))) == ["a", "b", "c"]
    assert await drive_async(all_of(*(meeting(async_barrier, name) for name in "abc"))) == ["a", "b", "c"]
    assert drive(all_of(meeting(threading.Barrier(1), "alone"))) == ["alone"]


async def test_a_cancellation_reaches_all_gathered_procedures() -> None:
    ended: list[str] = []

    def long(name: str) -> Steps[None]:
        try:
            yield Pause(3600)
        finally:
            ended.append(name)

    task = asyncio.create_task(drive_async(all_of(long("a"), long("b"))))
    # One turn for the task, and one for those that it makes.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize(("answer", "noticed"), [(None, True), ([], True), (["a message"], False)])
async def test_a_cancellation_swallowed_by_the_sdk_is_raised(answer: Any, noticed: bool) -> None:
    async def keeps_it(_on: object, _seconds: float) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return answer

    def steps() -> Steps[Any]:
        return (yield Call(keeps_it, None, 3600.0))

    task = asyncio.create_task(drive_async(steps()))
    await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError) if noticed else outcome == answer
