"""The reusable timeout against asyncio.timeout, in virtual time."""

import asyncio
from typing import Any

import pytest

from sbpair.sync_async import ReusableTimeout
from tests.faults.simulation.loop import in_virtual_time


@in_virtual_time
async def test_a_long_use_times_out_and_the_next_one_does_not() -> None:
    loop, timeout = asyncio.get_running_loop(), ReusableTimeout()
    for seconds in (5, 2, 60):
        before = loop.time()
        with pytest.raises(TimeoutError), timeout.limit(seconds):
            await asyncio.Event().wait()
        assert loop.time() == pytest.approx(before + seconds, abs=1e-3)
        with timeout.limit(seconds):
            await asyncio.sleep(seconds / 2)


@in_virtual_time
async def test_consecutive_uses_share_one_timer() -> None:
    loop, timeout = asyncio.get_running_loop(), ReusableTimeout()
    for _ in range(100):
        with timeout.limit(10):
            pass
        assert len(loop._scheduled) == 1  # type: ignore[attr-defined]
    # It comes when the first would have been over, and is put off for the one that goes on.
    await asyncio.sleep(9)
    with timeout.limit(10):
        await asyncio.sleep(9.5)
    await asyncio.sleep(60)
    assert not loop._scheduled  # type: ignore[attr-defined]


@in_virtual_time
async def test_a_foreign_cancellation_stays_a_cancellation() -> None:
    async def watched(watch: ReusableTimeout) -> None:
        with watch.limit(5):
            await asyncio.Event().wait()

    timeout = ReusableTimeout()
    task = asyncio.create_task(watched(timeout))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Both at the same moment: whoever cancels is not denied.
    task = asyncio.create_task(watched(timeout))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(5, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    timeout.cancel()


def test_a_use_outside_of_a_task_is_refused() -> None:
    loop = asyncio.new_event_loop()
    caught: list[Any] = []
    loop.set_exception_handler(lambda _, context: caught.append(context["exception"]))
    loop.call_soon(ReusableTimeout().limit, 5)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert [type(each) for each in caught] == [RuntimeError]
