"""Processes that outlive the command that starts them: of no terminal, so that none ends with it. For POSIX."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

from sbpair.operating_system import require_posix


def start(words: Sequence[str], log: BinaryIO, lock: int) -> "subprocess.Popen[bytes]":
    """Start this program in the background, with stderr to a log. It holds the lock of a descriptor until it ends.

    The descriptor is its stdin: in a process without one, a lock of number 0 would be replaced.
    """
    require_posix("a process in the background", hint="run it in a window of its own")
    return subprocess.Popen(  # noqa: S603  # this program
        [sys.executable, "-m", "sbpair", *words],
        stdin=lock,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
    )


def end(process: int) -> None:
    """Ask a process to end. Raises OSError."""
    os.kill(process, signal.SIGTERM)
