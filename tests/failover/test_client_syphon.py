"""The syphon inside an application: it moves the backlog, and ends with the client."""

import asyncio
import inspect
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from sbpair import PairedClient
from sbpair.errors import LeaseHeld, SbpairError, UsageError
from sbpair.failover import client_syphon
from sbpair.failover.client_syphon import CLOSE_SECONDS, HURRY_SECONDS, AsyncBackgroundSyphon, BackgroundSyphon
from sbpair.failover.events import SyphonFaulted
from sbpair.model.retries import Backoff
from sbpair.move.events import QueueOpened
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.sync_async import LoopThread
from tests.faults.simulation.loop import in_virtual_time
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PATIENCE_SECONDS, Rig, ids

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]


class Arrivals:
    """Messages enqueued in the primary, which a test may wait for."""

    def __init__(self, rig: Rig) -> None:
        self._count = threading.Semaphore(0)
        enqueue = rig.orders.messages.enqueue

        def watched(*arguments: Any, **keywords: Any) -> Any:
            taken = enqueue(*arguments, **keywords)
            self._count.release()
            return taken

        rig.orders.messages.enqueue = watched  # type: ignore[method-assign]

    def wait(self) -> None:
        assert self._count.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_syphon, "RESTART_BACKOFF", Backoff(0.05, 300.0))
    monkeypatch.setattr(client_syphon, "LEASE_WAIT_SECONDS", 0.05)


def syphon_of(client: Any, **options: Any) -> Any:
    """Start the syphon of a client; of an aio client in its loop."""
    if isinstance(client, PairedClient):
        return client.syphon(**options)

    async def make() -> Any:
        return client._wrapped.syphon(**options)

    return client._run(make())


def is_fault(event: Any) -> bool:
    return isinstance(event, SyphonFaulted)


def strand(client: Any, name: str) -> None:
    client.force_failover("orders")
    client.get_queue_sender("orders").send_messages(ServiceBusMessage(name.encode(), message_id=name))
    client.failback("orders")


@KINDS
def test_the_syphon_moves_the_applications_own_backlog(rig: Rig, kind: str) -> None:
    arrivals = Arrivals(rig)
    with rig.client(kind) as (client, log):
        handle = syphon_of(client)
        strand(client, "first")
        arrivals.wait()
        strand(client, "second")
        arrivals.wait()
        assert handle.running
        assert ("sbpair syphon" in {each.name for each in threading.enumerate()}) is (kind == "sync")
        with pytest.raises(UsageError, match="has a syphon already"):
            syphon_of(client)
    assert not handle.running
    assert (handle.result.receipt.sent, handle.result.receipt.balanced, handle.result.stopped) == (2, True, True)
    assert sorted(ids(rig.in_queue(rig.orders))) == ["first", "second"]
    assert rig.in_backlog() == []
    assert log.of(SyphonFaulted) == []
    assert not [each.name for each in threading.enumerate() if each.name == "sbpair syphon"]


@pytest.mark.parametrize("state", [None, "mine"])
def test_the_syphon_waits_while_another_process_moves_the_pair(rig: Rig, tmp_path: Path, state: str | None) -> None:
    arrivals = Arrivals(rig)
    with rig.client() as (client, log):
        strand(client, "m")
        with hold_machine_leases(rig.pair.ends, tmp_path / "another", "another-run"):
            syphon_of(client, state=None if state is None else tmp_path / state)
            fault = log.wait_for(is_fault)
            assert "is moving messages of this pair" in fault.reason
            assert rig.in_queue(rig.orders) == []
        arrivals.wait()


def test_closing_releases_messages_of_a_stalled_primary(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.failover.client_syphon.CLOSE_SECONDS", 0.5)
    opened = threading.Event()
    with rig.client() as (client, _log):
        handle = syphon_of(client, on_event=lambda event: opened.set() if isinstance(event, QueueOpened) else None)
        assert opened.wait(PATIENCE_SECONDS)
        with rig.broken("swallow_acks", "contoso", "orders"):
            arrivals = Arrivals(rig)
            strand(client, "m")
            arrivals.wait()
            client.close()
        assert not handle.running
    assert handle.result.receipt.balanced
    assert handle.result.hurried


def test_a_stopped_syphon_can_be_started_again_until_the_client_closes(rig: Rig) -> None:
    arrivals = Arrivals(rig)
    with rig.client() as (client, _log):
        first = syphon_of(client)
        first.stop()
        assert not first.running
        second = syphon_of(client)
        strand(client, "m")
        arrivals.wait()
        assert second.running
        client.close()
        with pytest.raises(ValueError, match="has been closed"):
            syphon_of(client)


def a_result(*failures: Exception) -> Any:
    return SimpleNamespace(failures=[("orders", each) for each in failures])


# The seconds of a run and its end; the reason that is published, and the seconds until the next run.
RUNS: list[tuple[float, Any, str, float]] = [
    (0, SbpairError("no access"), "no access", 1),
    (0, ZeroDivisionError(), "unexpected ZeroDivisionError", 2),
    (0, LeaseHeld("it is moved already"), "it is moved already", 30),
    (0, a_result(SbpairError("a queue is gone"), SbpairError("another")), "a queue is gone", 8),
    (15, a_result(), "it has ended", 16),
    (33, SbpairError("late"), "late", 1),
    (0, SbpairError("again"), "again", 2),
]


@in_virtual_time
async def test_each_failure_in_a_row_doubles_the_wait_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, left, began, events = asyncio.get_running_loop(), iter(RUNS), list[float](), list[SyphonFaulted]()
    monkeypatch.setattr(client_syphon, "time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr(client_syphon, "RESTART_BACKOFF", Backoff(1.0, 300.0))
    monkeypatch.setattr(client_syphon, "LEASE_WAIT_SECONDS", 30.0)

    async def run(**events: asyncio.Event) -> Any:
        began.append(loop.time())
        seconds, end, *_ = next(left, (0, None))
        await (asyncio.sleep(seconds) if end else events["stop"].wait())
        if isinstance(end, Exception):
            raise end
        return end or a_result()

    syphon = AsyncBackgroundSyphon(run, events.append)
    await asyncio.sleep(1000)
    await syphon.stop()
    assert [(event.reason, event.retry_seconds) for event in events] == [(reason, wait) for *_, reason, wait in RUNS]
    expected = [sum(took + wait for took, *_, wait in RUNS[:count]) for count in range(len(RUNS) + 1)]
    assert began == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("obeys", "seconds"),
    [("stop", 0), ("hurry", CLOSE_SECONDS), ("nothing", CLOSE_SECONDS + HURRY_SECONDS), ("waits for a lease", 0)],
)
@in_virtual_time
async def test_a_syphon_that_does_not_stop_hurries_and_is_cancelled(obeys: str, seconds: float) -> None:
    async def run(**events: asyncio.Event) -> Any:
        if obeys == "waits for a lease":
            raise LeaseHeld("it is moved already")
        await events.get(obeys, asyncio.Event()).wait()
        return a_result()

    loop, events = asyncio.get_running_loop(), list[SyphonFaulted]()
    syphon = AsyncBackgroundSyphon(run, events.append)
    await asyncio.sleep(0.01)
    before = loop.time()
    await syphon.stop()
    assert loop.time() - before == pytest.approx(seconds, abs=0.01)
    await asyncio.sleep(0.1)
    assert (syphon.running, syphon.result is None) == (False, obeys not in ("stop", "hurry"))
    assert len(events) == (obeys == "waits for a lease")


def test_a_thread_that_hurries_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_syphon, "CLOSE_SECONDS", 0.01)

    async def run(*, stop: asyncio.Event, hurry: asyncio.Event) -> Any:
        await stop.wait()
        await hurry.wait()
        await asyncio.to_thread(threading.Event().wait, 0.1)
        return a_result()

    syphon = BackgroundSyphon(run, print)
    syphon.stop()
    assert (syphon.running, syphon.result) == (False, a_result())


def test_a_loop_that_has_ended_refuses_work() -> None:
    async def work_within(thread: LoopThread) -> None:
        thread.run(asyncio.sleep(0))

    async def slow_to_end() -> None:
        contexts.append(caller.get("none"))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(threading.Event().wait, 0.1)

    contexts, caller = list[str](), ContextVar[str]("caller")
    caller.set("the one that started the thread")
    thread = LoopThread("loop", slow_to_end())
    with pytest.raises(UsageError, match="its own event loop"):
        thread.run(work_within(thread))
    assert thread.run(asyncio.sleep(0, "done")) == "done"
    thread.end()
    assert (thread.running, contexts) == (False, ["none"])
    work = asyncio.sleep(0)
    with pytest.raises(UsageError, match="closed"):
        thread.run(work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    thread.call(print)


def test_a_loop_that_nobody_ends_keeps_no_program_alive() -> None:
    program = "from sbpair.sync_async import LoopThread; LoopThread('loop')"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=PATIENCE_SECONDS, check=True)
