"""Messages to systemd: sockets of both kinds, the watchdog's variables, and a process that is stopped."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbpair.service.run_health import REPORT_SECONDS, systemd_notifier
from tests.cli.test_runs import open_pair


def interval(environ: Mapping[str, str], pid: int = 7) -> tuple[bool, float]:
    notifier = systemd_notifier({"NOTIFY_SOCKET": "/x", **environ}, pid)
    assert notifier is not None
    return notifier.has_watchdog, notifier.interval


@pytest.mark.parametrize("abstract", [False, True])
def test_a_datagram_has_the_assignments_on_lines(tmp_path: Path, abstract: bool) -> None:
    name = f"@sbpair-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(name.replace("@", "\0"))
        notifier = systemd_notifier({"NOTIFY_SOCKET": name}, 7)
        assert notifier is not None
        assert notifier.send(READY=1, STATUS="a\nMAINPID=1\udcff") is True
        assert received.recv(100) == b"READY=1\nSTATUS=a MAINPID=1?"
        notifier.close()


def test_a_socket_that_is_gone_or_full_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "notify")
    notifier = systemd_notifier({"NOTIFY_SOCKET": path}, 7)
    assert notifier is not None
    assert [notifier.send(READY=1) for _ in range(3)] == [False] * 3
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(path)
        assert notifier.send(READY=1) is True
        while notifier.send(STATUS="x"):
            pass
        received.recv(100)
        assert notifier.send(STATUS="y") is True
    notifier.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_the_interval_is_half_of_the_watchdogs_time() -> None:
    assert interval({}) == (False, REPORT_SECONDS)
    assert interval({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "7"}) == (True, 2.0)
    assert interval({"WATCHDOG_USEC": "600000000"}) == (True, REPORT_SECONDS)
    for other in ({"WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "²"}):
        assert interval({"WATCHDOG_USEC": "4000000", **other}) == (False, REPORT_SECONDS)


def test_without_a_usable_socket_there_is_no_notifier(caplog: pytest.LogCaptureFixture) -> None:
    assert systemd_notifier({}, 7) is systemd_notifier({"NOTIFY_SOCKET": ""}, 7) is None
    assert caplog.records == []
    assert systemd_notifier({"NOTIFY_SOCKET": "vsock:2:1"}, 7) is None
    assert "NOTIFY_SOCKET is not the path of a socket" in caplog.text


async def test_a_process_notifies_until_it_is_stalled_and_when_it_stops(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with open_pair(tmp_path / "state") as pair:
        await pair.strand(2)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
            received.setblocking(False)
            received.bind(str(tmp_path / "notify"))

            async def line(start: str) -> str:
                while True:
                    for each in (await loop.sock_recv(received, 4096)).decode().splitlines():
                        if each.startswith(start):
                            return each

            own = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
            process = await pair.start("syphon", "--watch", "--quiet", "--health-port", "0", "--no-lease", **own)
            await line("READY=1")
            await line("STATUS=moving: 2 received, 2 sent")
            await line("WATCHDOG=1")
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(TimeoutError):  # noqa: PT012  the last messages are still in the queue
                while True:
                    async with asyncio.timeout(1.0):
                        await line("")
            process.send_signal(signal.SIGCONT)
            await line("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            await line("STOPPING=1")
        _, err = await process.communicate()
        assert process.returncode == 0
        assert err.startswith(b"20")
        assert b" health at http://127.0.0.1:" in err
