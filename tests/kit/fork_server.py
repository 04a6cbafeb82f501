"""Command lines in processes of their own, forked from one that has imported the package already.

Each is a process like any other, with its own files, environment and signals; it only lacks the time of the imports.
`python fork_server.py FD` is the server. A request is one datagram on the socket FD: a pickled `(arguments,
environment, folder, strict)`, with four files: stdin, stdout, stderr, and a socket that gets the process's id and then
its exit status.
"""

import gc
import importlib
import os
import pickle
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SERVER = Path(__file__)
PACKAGE = "sbpair"
NOT_BEFORE = tuple(f"{PACKAGE}.{name}" for name in ("__main__", "replay", "spark", "testing"))
"""Modules that are not imported: these start threads, which a fork does not copy, or are not for commands."""
MAX_BYTES = 1 << 20
OPEN_FILES = 1024
STRICT = ("-W", "error")
"""Python's options that make a warning an error."""


# For tests


class Forked:
    """A process that was asked for."""

    def __init__(self, reply: socket.socket) -> None:
        self.reply = reply
        self.pid = int(reply.recv(32))
        self.returncode: int | None = None

    def reap(self) -> int:
        """Wait for the exit status, and return it as `subprocess` does."""
        if self.returncode is None:
            status = self.reply.recv(32)
            self.reply.close()
            assert status, "the fork server has ended"
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode


@cache
def _server() -> int:
    """Return the descriptor of a server's socket. The server ends with this process, which closes it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
    with theirs:
        descriptor = theirs.fileno()
        words = (sys.executable, *STRICT, str(SERVER), str(descriptor))
        environ = {name: value for name, value in os.environ.items() if not name.startswith(f"{PACKAGE.upper()}_")}
        subprocess.Popen(words, pass_fds=[descriptor], env=environ, cwd="/").returncode = 0
    return ours.detach()


READ_AT_IMPORT = ("FORCE_COLOR", "GITHUB_ACTIONS", "LANG", "LC_", "LD_", "PY", "TERMINAL_WIDTH", "_TYPER")


def can_fork(environ: Mapping[str, str]) -> bool:
    """Return whether all variables that count while Python starts are those of this process."""

    def counting(variables: Mapping[str, str]) -> dict[str, str]:
        own = "PYTEST_CURRENT_TEST"
        return {name: value for name, value in variables.items() if name.startswith(READ_AT_IMPORT) and name != own}

    return counting(environ) == counting(os.environ)


def fork(words: tuple[str, ...], environ: Mapping[str, str], files: Sequence[int], *, strict: bool) -> Forked:
    """Run a command line with these files as stdin, stdout and stderr. If `strict`, a warning is an error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = words, dict(environ), str(Path.cwd()), strict
    with theirs, socket.socket(fileno=os.dup(_server())) as server:
        socket.send_fds(server, [pickle.dumps(request)], [*files, theirs.fileno()])
    return Forked(ours)


# The server


def serve(requests: socket.socket) -> Any:
    """Answer requests until the socket is closed, which ends this process. Return only in children, with a request."""
    for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
        if not module.name.startswith(NOT_BEFORE):
            importlib.import_module(module.name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would not be forked"
    gc.collect()
    gc.freeze()
    children: dict[int, tuple[int, socket.socket]] = {}  # by their pidfd
    while True:
        for ready in select.select([requests, *children], [], [])[0]:
            if ready is requests:
                message, files, _, _ = socket.recv_fds(requests, MAX_BYTES, 4)
                if not message:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    _take(files, [requests, *[reply for _, reply in children.values()]])
                    return pickle.loads(message)  # noqa: S301  # the test's own
                for file in files[:3]:
                    os.close(file)
                reply = socket.socket(fileno=files[3])
                _answer(reply, pid)
                children[os.pidfd_open(pid)] = pid, reply
            else:
                pid, reply = children.pop(ready)
                os.close(ready)
                with reply:
                    _answer(reply, os.waitpid(pid, 0)[1])


def _take(files: Sequence[int], others: Sequence[socket.socket]) -> None:
    """Take these files as stdin, stdout and stderr, and close all others."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for other in others:
        other.detach()
    os.closerange(3, OPEN_FILES)


def _answer(reply: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it any more
        reply.send(str(number).encode())


def become(words: tuple[str, ...], environ: dict[str, str], folder: str, strict: bool) -> None:
    """Make this process what Python would have made of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(folder)
    sys.argv = [PACKAGE, *words]
    if not strict:
        warnings.simplefilter("ignore")
    stdin, stdout, stderr = [os.fdopen(number, "rw"[number > 0], encoding="utf-8") for number in range(3)]
    stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = stdin, stdout, stderr


if __name__ == "__main__":
    sys.path.remove(str(SERVER.parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)
