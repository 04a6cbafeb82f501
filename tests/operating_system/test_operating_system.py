"""Ports, directories, signals and locks: as on Linux, and with fakes of what Windows lacks."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sbpair.doctor.machine_checks import file_check, java_check
from sbpair.errors import ExitCode, MachineLacks, PortInUse, SbpairError, UsageError
from sbpair.operating_system import can_be_redrawn, end_of_input, file_lock, files, listen, require_posix, signals
from sbpair.operating_system.files import mount_at
from sbpair.operating_system.signals import handlers_kept
from sbpair.replay.archive import make_directories
from sbpair.runs.file_lease import Lock, is_locked

ROOT = Path(__file__).parents[2]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


def test_a_port_that_listens_is_taken_and_free_again_once_closed() -> None:
    with ExitStack() as stack:
        with listen("127.0.0.1", 0) as first:
            port = first.getsockname()[1]
            with pytest.raises(PortInUse, match=f"^--port: port {port} on 127.0.0.1 is in use$"):
                listen("127.0.0.1", port, "--port", "--host")
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            accepted = stack.enter_context(first.accept()[0])
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()
        assert stack.enter_context(listen("127.0.0.1", port)).getsockname()[1] == port


@pytest.mark.parametrize(
    ("host", "fails", "error", "text"),
    [
        ("192.0.2.1", None, UsageError, "--host: '192.0.2.1' is not an address of this machine"),
        ("a..b", None, UsageError, "--host: 'a..b' is not an address of this machine"),
        ("x" * 300, None, UsageError, "is not an address of this machine"),
        ("127.0.0.1", errno.EACCES, MachineLacks, "--port: port 80 on 127.0.0.1: Permission denied"),
    ],
)
def test_a_port_that_cannot_be_opened_is_refused(
    host: str, fails: int | None, error: type[SbpairError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_named: Any) -> None:
        raise OSError(fails, "in other words")

    if fails:  # root may open any port
        monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(error, match=text):
        listen(host, 80, "--port", "--host")


def test_a_port_of_every_ipv6_address_serves_ipv4_too() -> None:
    try:
        listening = listen("::", 0)
    except UsageError:
        pytest.skip("without IPv6")
    with listening, socket.create_connection(("127.0.0.1", listening.getsockname()[1])):
        pass


@pytest.mark.parametrize("platform", ["linux", "freebsd14", "darwin", "win32"])
def test_an_xdg_variable_counts_on_every_system(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert files.user_directory("state", {"XDG_STATE_HOME": "/state"}) == (Path("/state/sbpair"), "XDG_STATE_HOME")


def test_macos_has_the_directories_of_platformdirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    platformdirs: Any = ModuleType("platformdirs")
    platformdirs.user_state_path = platformdirs.user_config_path = lambda name, **_: Path("/Library") / name
    monkeypatch.setitem(sys.modules, "platformdirs", platformdirs)
    assert files.user_directory("state", {}) == files.user_directory("config", {}) == (Path("/Library/sbpair"), "")


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("failure", [errno.EACCES, errno.ENOLCK])
def test_windows_locks_a_byte_beyond_the_content(failure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []

    def locking(descriptor: int, _mode: int, _length: int) -> None:
        if locked:
            raise OSError(failure, "locked")
        locked.append(os.lseek(descriptor, 0, os.SEEK_CUR))

    library: Any = ModuleType("msvcrt")
    library.locking, library.LK_NBLCK = locking, 2
    monkeypatch.setitem(sys.modules, "msvcrt", library)
    path = tmp_path / "lease"
    with Lock(path, "the holder"):
        assert (path.read_text(), locked) == ("the holder", [0x4000_0000])
        if failure == errno.EACCES:
            assert is_locked(path)
        with pytest.raises(BlockingIOError if failure == errno.EACCES else MachineLacks):
            Lock(path)


def test_checks_of_a_lock_do_not_see_each_other(tmp_path: Path) -> None:
    with Lock(tmp_path / "lease"):
        assert is_locked(tmp_path / "lease")
    check = file_lock.open_lock_file(tmp_path / "lease", create=False)
    file_lock.lock(check, shared=True)
    assert not is_locked(tmp_path / "lease")
    os.close(check)


def test_a_name_is_taken_by_one_process_until_it_is_released() -> None:
    name = f"a test, {os.getpid()}"
    for _ in range(2):
        taken = file_lock.take_name(name)
        with taken, pytest.raises(BlockingIOError):
            file_lock.take_name(name)
        assert taken.fileno() == -1
    with file_lock.take_name(name) or socket.socket():
        assert file_lock.holder_of_name(name) == (os.getpid(), None)
    assert file_lock.holder_of_name(name) is None


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
        signals.call_when_signalled(loop, lambda: None)

    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    try:
        with asyncio.Runner(loop_factory=LoopOfWindows) as runner:
            runner.run(receive())
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.usefixtures("windows")
async def test_what_windows_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match=r"^a replay needs Linux or macOS, and this is Windows$") as refused:
        require_posix("a replay", "run it elsewhere")
    assert (refused.value.exit_code, refused.value.hint) == (ExitCode.MACHINE, "run it elsewhere")
    with pytest.raises(MachineLacks, match=r"^an archive on a disk of this machine needs Linux or macOS"):
        make_directories(tmp_path, tmp_path / "segments")
    assert list(tmp_path.iterdir()) == []
    files.sync_directory(tmp_path / "missing")  # does nothing
    path = tmp_path / "config.toml"
    path.touch()
    path.chmod(0o666)
    assert file_check(path).reason == f"{path}, whose permissions are not checked on Windows"
    assert (await java_check({}, 1.0, wanted=True)).reason == "Spark is not started on Windows"
    assert end_of_input() == "Ctrl-Z and Enter"


@pytest.mark.parametrize(
    ("term", "platform", "expected"), [("xterm", "linux", 1), ("dumb", "linux", 0), ("xterm", "win32", 0)]
)
def test_a_terminal_of_posix_can_be_redrawn(
    term: str, platform: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    terminal_end, end = os.openpty()
    try:
        with os.fdopen(end, "w") as stream:
            monkeypatch.setattr(sys, "platform", platform)
            assert can_be_redrawn(stream) == expected
    finally:
        os.close(terminal_end)


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


def test_a_signal_while_spark_starts_takes_effect_afterwards() -> None:
    steps = []

    def start() -> None:
        with handlers_kept():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]


def test_an_ignored_signal_stays_ignored_after_spark_has_started() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handlers_kept():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


MOUNTS = """/dev/vda / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/vdb /run/my\\040disk ext4 rw 0 0
tmpfs /mnt tmpfs rw 0 0
/dev/vdc /mnt xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/run/a", "tmpfs"), ("/run/my disk/a", "ext4"), ("/runs", "ext4"), ("/mnt/a", "xfs"), ("/", "ext4")],
)
def test_the_filesystem_type_is_found(path: str, kind: str) -> None:
    assert mount_at(Path(path), MOUNTS) == (kind, "rw")
    assert mount_at(Path(path), "") == ("", "")
