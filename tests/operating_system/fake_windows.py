"""A process on Linux without the modules, functions and signals that Windows lacks.

`python -m tests.operating_system.fake_windows WORDS... [-- WORDS...]` runs one or more command lines, and prints the
exit code of each to stderr; `--import PACKAGE` imports all modules of a package. It finds calls that Windows does not
have. It cannot show how Windows itself behaves.
"""

from __future__ import annotations

import asyncio
import asyncio.unix_events
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from itertools import groupby
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, NoReturn

# Other packages have branches of their own for Windows, which need Windows: they are imported before it is faked.
THIRD_PARTY = (
    *("aiohttp", "azure.core", "azure.identity.aio", "azure.servicebus.aio.management", "azure.servicebus.aio"),
    *("cryptography.x509", "lark", "rich.console", "rich.live", "rich.markdown", "typer.main"),
    *("ctypes.util", "sqlite3", "ssl", "tempfile", "websockets.asyncio.client", "websocket"),
)
WITHOUT = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "winreg"}
MISSING: dict[Any, tuple[str, ...]] = {
    os: ("O_DIRECTORY", "O_NOFOLLOW", "fork", "forkpty", "getegid", "geteuid", "getgid", "getuid", "killpg", "setsid"),
    signal: ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGWINCH"),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime"),
}
LOCKED_BEYOND = 1_000_000


class Hidden:
    """An import hook that hides modules."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name in WITHOUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def locking(descriptor: int, mode: int, length: int) -> None:
    """Lock as `msvcrt.locking` does, from the position of the descriptor."""
    assert (mode, length) == (2, 1)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > LOCKED_BEYOND, "others could not read what is locked"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def unsupported(*_arguments: object) -> NoReturn:
    raise NotImplementedError


def pretend() -> None:
    """Fake Windows for everything that is imported from now on."""
    for name in THIRD_PARTY:
        import_module(name)
    break_key, open_file = signal.SIGUSR2, os.open

    def open_no_directory(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        if os.path.isdir(path):  # noqa: PTH112
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_file(path, flags, *arguments, **keywords)

    for module, names in MISSING.items():
        for name in names:
            delattr(module, name)
    vars(signal)["SIGBREAK"] = break_key
    vars(socket)["SO_EXCLUSIVEADDRUSE"] = socket.SO_KEEPALIVE
    vars(subprocess)["CREATE_NEW_PROCESS_GROUP"] = 0
    os.open = open_no_directory
    loops: Any = asyncio.unix_events.SelectorEventLoop
    loops.add_signal_handler = loops.remove_signal_handler = unsupported
    library: Any = ModuleType("msvcrt")
    library.locking, library.LK_NBLCK = locking, 2
    sys.modules["msvcrt"] = library
    for name in WITHOUT:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())
    sys.platform = "win32"
    find_folders_by_environment()


def find_folders_by_environment() -> None:
    """Import platformdirs without the ways to ask Windows for its folders."""
    real = import_module("ctypes")
    sys.modules["ctypes"] = None  # type: ignore[assignment]
    try:
        import_module("platformdirs")
    finally:
        sys.modules["ctypes"] = real


def import_all(package: str) -> int:
    """Import every module of a package. Returns 0."""
    for each in walk_packages(import_module(package).__path__, f"{package}."):
        import_module(each.name)
    return 0


def main(words: list[str]) -> None:
    pretend()
    assert [name for name in sys.modules if name.startswith("sbpair.")] == []
    from sbpair.__main__ import run

    for is_end, command in groupby(words, lambda word: word == "--"):
        if not is_end:
            words = [*command]
            code = import_all(words[1]) if words[0] == "--import" else run(words)
            sys.stderr.write(f"exit code {code}\n")
            sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
