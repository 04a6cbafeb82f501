"""The health of a run in each of its states, as a probe over HTTP and systemd get it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import runs
from sbpair.amqp_client.limits import ANSWER_SECONDS
from sbpair.move import events
from sbpair.move.raw_source import RawSource
from sbpair.service.run_health import LIVE, READY, RunHealth, RunsHealth, Supervision, SystemdNotifier
from sbpair.syphon.run_request import DEFAULT_TIMINGS
from sbpair.syphon.run_store import LiveRun
from tests.kit.moves import HASTY
from tests.kit.waiting import until
from tests.syphon.test_pause import ask, moving
from tests.syphon.test_syphon_lease import LEASES, sessions
from tests.syphon.worlds import World, world

QUEUE = "contoso/x-servicebus-transfer/0"


class Probed:
    """A watch with a port for probes, and a socket in the place of systemd's."""

    def __init__(self, supervision: Supervision, received: socket.socket) -> None:
        self._supervision = supervision
        self._received = received
        self.sent: list[str] = []

    async def probe(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        port = int(self._supervision.port.url.rpartition(":")[2].removesuffix(READY))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), content.decode().strip()

    async def until_ready_is(self, status: int, state: str) -> None:
        while await self.probe(READY) != (status, state):
            pass

    def receive(self) -> None:
        self.sent += self._received.recv(4096).decode().splitlines()


@asynccontextmanager
async def probed(w: World, tmp_path: Path, **terms: Any) -> AsyncIterator[Probed]:
    """Watch the backlog, and stop at the end of the block."""
    live, address, loop = LiveRun(), str(tmp_path / "notify"), asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.setblocking(False)
        received.bind(address)
        notifier = SystemdNotifier(address, 0.1)
        with closing(Supervision(RunsHealth({"orders": live}), ("127.0.0.1", 0), notifier)) as supervision:
            w.watchers.append(supervision.take)
            run = w.run(once=False, live=live, **terms)
            watching = asyncio.create_task(supervision.serve_during(run, w.stop))
            found = Probed(supervision, received)
            loop.add_reader(received, found.receive)
            try:
                yield found
            finally:
                w.stop.set()
                await watching
                await until(lambda: found.sent[-1].startswith("STATUS=stopping"))
                loop.remove_reader(received)


async def test_a_watch_is_alive_without_a_namespace_and_ready_with_both(tmp_path: Path) -> None:
    async with world() as w:
        w.primary.take_down()
        async with probed(w, tmp_path) as found:
            await found.until_ready_is(503, "primary away")
            assert await found.probe(LIVE) == (200, "primary away")
            await until(lambda: any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in found.sent))
            assert "READY=1" not in found.sent
            w.primary.bring_up()
            await found.until_ready_is(200, "moving")
            assert await found.probe(LIVE) == (200, "moving")
            assert found.sent.count("READY=1") == 1
            w.strand(1, 2)
            await until(lambda: "STATUS=moving: 2 received, 2 sent" in found.sent)
            w.secondary.take_down()
            await found.until_ready_is(503, "secondary away")
            assert await found.probe(LIVE) == (200, "secondary away")
            beats = found.sent.count("WATCHDOG=1")
            await until(lambda: found.sent.count("WATCHDOG=1") > beats)
            w.secondary.bring_up()
            await found.until_ready_is(200, "moving")
            assert (await found.probe("/metrics"))[0] == 404
        assert (found.sent.count("READY=1"), found.sent.count("STOPPING=1")) == (1, 1)
        assert found.sent[-1].startswith("STATUS=stopping: 2 received, 2 sent")
        assert "SharedAccessKey" not in "".join(found.sent)


async def test_a_paused_run_is_ready_and_a_stopping_one_is_not(tmp_path: Path) -> None:
    live = LiveRun()
    monitor = Supervision(RunsHealth({"orders": live}))
    async with world() as w, moving(w, tmp_path, once=False, live=live):
        assert monitor.read() == RunHealth(is_live=True, is_ready=False, state="connecting")
        await w.told_of(events.QueueOpened)
        await ask(w, runs.pause, tmp_path)
        assert monitor.read() == RunHealth(is_live=True, is_ready=True, state="paused")
        await ask(w, runs.resume, tmp_path)
        assert monitor.read() == RunHealth(is_live=True, is_ready=True, state="moving")
        monitor.stopping = True
        assert monitor.read() == RunHealth(is_live=True, is_ready=False, state="stopping")


async def test_a_worker_that_takes_no_turn_ends_the_watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def wait_for_good(*_arguments: Any, **_named: Any) -> list[Any]:
        await release.wait()
        return []

    async with world() as w:
        monkeypatch.setattr(RawSource, "receive", wait_for_good)
        async with probed(w, tmp_path, timings=replace(HASTY, stuck_seconds=0.3)) as found:
            try:
                await until(lambda: f"STATUS=stuck: {QUEUE}: 0 received, 0 sent" in found.sent)
                assert await found.probe(LIVE) == await found.probe(READY) == (503, f"stuck: {QUEUE}")
                assert "WATCHDOG=1" not in found.sent[found.sent.index(f"STATUS=stuck: {QUEUE}: 0 received, 0 sent") :]
            finally:
                monkeypatch.undo()
                release.set()
            while (await found.probe(LIVE))[0] != 200:
                pass


async def test_only_waits_with_a_limit_make_a_worker_stuck(tmp_path: Path) -> None:
    assert DEFAULT_TIMINGS.stuck_seconds > DEFAULT_TIMINGS.long_poll_seconds + 2 * ANSWER_SECONDS
    live, timings = LiveRun(), replace(HASTY, stuck_seconds=0.0)
    async with world() as w, moving(w, tmp_path, once=False, live=live, timings=timings):
        await w.told_of(events.QueueOpened)
        await until(lambda: live.stuck_queues() == [QUEUE])
        await ask(w, runs.pause, tmp_path)
        assert live.stuck_queues() == []
        await ask(w, runs.resume, tmp_path)
        await until(lambda: live.stuck_queues() == [QUEUE])
        w.secondary.take_down()
        await w.told_of(events.QueueFailed)
        await until(lambda: live.stuck_queues() == [])
    assert live.stuck_queues() == []


async def test_a_lease_is_unconfirmed_once_its_connection_is_lost() -> None:
    live = LiveRun()
    async with world() as w:
        sessions(w)
        async with w.watching(lease_queue=LEASES, live=live):
            await w.told_of(events.QueueOpened)
            assert live.has_lease() is True
            w.secondary.take_down()
            await until(lambda: not live.has_lease())
            w.secondary.bring_up()
            await until(live.has_lease)


def test_an_unconfirmed_lease_is_alive_and_not_ready() -> None:
    live = LiveRun()
    monitor = Supervision(RunsHealth({"orders": live}))
    live.state.take(events.QueueOpened(QUEUE))
    live.has_lease = lambda: False
    assert monitor.read() == RunHealth(is_live=True, is_ready=False, state="the lease is not confirmed")


def test_all_pairs_are_ready_together_and_the_first_ends_the_start(tmp_path: Path) -> None:
    lives, address = {"orders": LiveRun(), "billing": LiveRun()}, str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address)
        received.setblocking(False)
        with closing(Supervision(RunsHealth(lives), None, SystemdNotifier(address))) as monitor:
            assert monitor.read().state == "0 of 2 pairs are ready; orders: connecting; billing: connecting"
            lives["billing"].halted = "failed: refused"
            opened = events.QueueOpened(QUEUE)
            lives["orders"].state.take(opened)
            monitor.take(opened)
            state = "1 of 2 pairs are ready; billing: failed: refused"
            assert monitor.read() == RunHealth(is_live=True, is_ready=False, state=state)
            assert received.recv(4096).decode().splitlines() == ["READY=1", f"STATUS={state}"]
            lives["billing"].begin_again()
            lives["billing"].state.take(opened)
            assert monitor.read() == RunHealth(is_live=True, is_ready=True, state="2 of 2 pairs are ready")
            lives["orders"].stuck_queues = lambda: [QUEUE]
            assert (monitor.read().is_live, monitor.read().is_ready) == (False, False)
