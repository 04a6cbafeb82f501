"""The lease that keeps two movers of one machine off a pair: a locked file, which a crash unlocks.

Invariant: the holder has locked the file that is at the path now. A deleted or replaced file ends the lease, whatever
lock the old file has. So the file is never deleted, not even at the end of a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from sbpair.errors import LeaseHeld, LeaseLost
from sbpair.runs.database import make_directory, now_ms, unusable

FILE_NAME = "lease"


class Lock:
    """A file locked by this process until it ends. Raises BlockingIOError if another process holds the lock."""

    def __init__(self, path: Path, content: str = "") -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, content.encode())
            self._is = os.fstat(self._file)
        except BlockingIOError:
            os.close(self._file)
            raise
        except OSError as error:
            os.close(self._file)
            raise unusable(path, error) from error

    def is_in_place(self) -> bool:
        """Return whether the file at the path is still the locked one."""
        try:
            return os.path.samestat(os.stat(self._path), self._is)  # noqa: PTH116  called often
        except OSError:
            return False

    def release(self) -> None:
        os.close(self._file)


def is_locked(path: Path) -> bool:
    """Return whether a live process has locked a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(path, error) from error
    try:
        # Shared: two simultaneous checks do not mistake each other for the holder.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


class Lease:
    """The right to move the messages of a pair, held from construction until `release`.

    Raises LeaseHeld if another process has it, MachineLacks if the directory cannot be used.
    """

    def __init__(self, directory: Path, run: str, *, clock_ms: Callable[[], int] = now_ms) -> None:
        make_directory(directory)
        self._path = directory / FILE_NAME
        content = {"pid": os.getpid(), "run": run, "started_ms": clock_ms()}
        try:
            self._lock = Lock(self._path, json.dumps(content))
        except BlockingIOError:
            raise LeaseHeld(
                f"{_holder(self._path)} is moving messages of this pair",
                hint="wait for it or stop it; with --no-lease both run, and ordering between them is lost",
            ) from None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def check(self) -> None:
        """Raise LeaseLost if the file was deleted or replaced: another mover may be at work."""
        if not self._lock.is_in_place():
            raise LeaseLost(
                f"the lease {self._path} was deleted or replaced", hint="do not touch that file; start again"
            )

    def release(self) -> None:
        self._lock.release()


def _holder(path: Path) -> str:
    try:
        record = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["started_ms"] / 1000))
        return f"process {record['pid']} (run {record['run']}, since {since} UTC)"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"
