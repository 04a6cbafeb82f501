"""The branches for Windows and macOS, with fakes. Untested on these systems themselves."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sbpair.doctor.machine import file_check, java_check
from sbpair.errors import MachineLacks
from sbpair.model.reachability import cause_of
from sbpair.operating_system import file_lock, files, rebind_at_once, require_posix, signals, terminal, uptime
from sbpair.replay import local_files
from sbpair.runs.lease import Lock, is_locked
from tests.operating_system.fake_windows import find_folders_by_environment, locking

ROOT = Path(__file__).parents[2]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


def fake_library(monkeypatch: pytest.MonkeyPatch, lock: Any) -> None:
    library: Any = ModuleType("msvcrt")
    library.locking, library.LK_NBLCK = lock, 2
    monkeypatch.setitem(sys.modules, "msvcrt", library)
    monkeypatch.setattr(file_lock, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("platform", "expected"), [("darwin", "home/Library/Application Support/sbpair"), ("win32", "local/sbpair")]
)
def test_the_users_directories_are_those_of_the_system(
    platform: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "platformdirs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    find_folders_by_environment()
    for kind in ("config", "state"):
        assert files.user_directory(kind, os.environ) == (tmp_path / expected, "")
    for name in [name for name in sys.modules if name.split(".")[0] == "platformdirs"]:
        del sys.modules[name]


@pytest.mark.parametrize("platform", ["linux", "freebsd14", "darwin", "win32"])
def test_an_xdg_variable_counts_on_every_system(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert files.user_directory("state", {"XDG_STATE_HOME": "/state"}) == (Path("/state/sbpair"), "XDG_STATE_HOME")


@pytest.mark.parametrize("environ", [{"HOME": "/home/ann"}, {"HOME": "/home/ann", "XDG_STATE_HOME": "relative"}])
def test_other_systems_have_the_places_of_linux(environ: dict[str, str]) -> None:
    assert files.user_directory("state", environ) == (Path("/home/ann/.local/state/sbpair"), "")
    assert files.user_directory("config", environ) == (Path("/home/ann/.config/sbpair"), "")


@pytest.mark.usefixtures("windows")
def test_a_locked_file_can_be_read_and_is_found_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_library(monkeypatch, locking)
    path = tmp_path / "lease"
    with Lock(path, "the holder"):
        assert (path.read_text(), is_locked(path)) == ("the holder", True)
        with pytest.raises(BlockingIOError):
            Lock(path)
        assert path.read_text() == "the holder"
    assert not is_locked(path)


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("failures", [0, 1, file_lock.TRIES - 1, file_lock.TRIES])
def test_a_lock_outlasts_checks_by_others(failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = []

    def lock(descriptor: int, _mode: int, _length: int) -> None:
        positions.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        if len(positions) <= failures:
            raise OSError(errno.EACCES, "Permission denied")

    fake_library(monkeypatch, lock)
    descriptor = file_lock.open_lock_file(tmp_path / "lease", create=True)
    try:
        if failures == file_lock.TRIES:
            with pytest.raises(BlockingIOError):
                file_lock.lock(descriptor)
        else:
            file_lock.lock(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0
    finally:
        os.close(descriptor)
    assert positions == [file_lock.LOCKED_BYTE] * min(failures + 1, file_lock.TRIES)


@pytest.mark.usefixtures("windows")
def test_another_failure_of_a_lock_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(*_arguments: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    fake_library(monkeypatch, lock)
    with pytest.raises(MachineLacks, match="lease cannot be used for state: No locks available"):
        Lock(tmp_path / "lease")


class LoopOfWindows(asyncio.SelectorEventLoop):
    """A loop without signal handlers."""

    def add_signal_handler(self, *_arguments: Any) -> None:
        raise NotImplementedError

    def remove_signal_handler(self, _number: int) -> bool:
        raise NotImplementedError


def test_signals_reach_a_loop_without_signal_handlers() -> None:
    received: asyncio.Queue[str] = asyncio.Queue()

    async def receive() -> None:
        loop = asyncio.get_running_loop()
        handled = signals.call_when_signalled(loop, lambda: received.put_nowait("signal"))
        signal.raise_signal(signal.SIGTERM)
        assert await received.get() == "signal"
        signals.ignore_next(loop, handled)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert received.empty()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    try:
        with asyncio.Runner(loop_factory=LoopOfWindows) as runner:
            runner.run(receive())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_signal_after_the_end_of_such_a_loop_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    loop = LoopOfWindows()
    try:
        signals.call_when_signalled(loop, lambda: None)
        loop.close()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.usefixtures("windows")
def test_what_needs_posix_is_refused_in_two_lines(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match=r"^a replay needs Linux or macOS, and this is Windows$") as refused:
        require_posix("a replay", "run it elsewhere")
    assert (refused.value.exit_code, refused.value.hint) == (7, "run it elsewhere")
    with pytest.raises(MachineLacks, match=r"^an archive on a disk of this machine needs Linux or macOS"):
        local_files.make_directories(tmp_path, tmp_path / "segments")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("windows")
async def test_doctor_says_what_it_does_not_check_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.touch()
    path.chmod(0o666)
    found = file_check(path)
    assert (found.outcome.value, found.reason) == ("ok", f"{path}, whose permissions are not checked on Windows")
    java = await java_check({}, 1.0, wanted=True)
    assert (java.outcome.value, java.reason) == ("note", "Spark is not started on Windows")


@pytest.mark.usefixtures("windows")
def test_small_differences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(time, "clock_gettime")
    assert uptime() == pytest.approx(time.monotonic(), abs=60)
    assert cause_of(OSError(errno.ECONNREFUSED, "in another language")) == "connection refused"
    assert terminal.end_of_input() == "Ctrl-Z and Enter"
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    assert signals.detached() == {"creationflags": 0x200}
    files.sync_directory(tmp_path / "missing")  # does nothing


def test_a_port_is_not_shared_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    options = []

    class Listening:
        def setsockopt(self, *option: int) -> None:
            options.append(option)

    listening: Any = Listening()
    rebind_at_once(listening)
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    rebind_at_once(listening)
    assert options == [(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_SOCKET, -5, 1)]


def test_a_terminal_of_windows_is_taught_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = []
    library: Any = ModuleType("colorama")
    library.just_fix_windows_console = lambda: taught.append(True)
    monkeypatch.setitem(sys.modules, "colorama", library)
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    terminal_end, end = os.openpty()
    try:
        with os.fdopen(end, "w") as stream:
            assert terminal.can_be_redrawn(stream)
            monkeypatch.setenv("TERM", "dumb")
            assert not terminal.can_be_redrawn(stream)
    finally:
        os.close(terminal_end)
    assert taught == [True]


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_the_package_uses_only_what_a_system_has(platform: str, tmp_path: Path) -> None:
    """Early returns for a system make the rest of a function unreachable for it."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-warn-unreachable", "--platform", platform, "--cache-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
