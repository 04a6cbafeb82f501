"""The leases that keep two movers of one user and machine off a pair: locked files, which a crash unlocks.

One file stands for the pair's namespaces, whatever the local name of the pair; one is in the state directory.

Invariant: the holder has locked the file that is at the path now. A deleted or replaced file ends the lease, whatever
lock the old file has. So the file is never deleted, not even at the end of a run.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

from sbpair.errors import Exhausted, LeaseHeld, LeaseLost, MachineLacks, StateRefused, Unsafe
from sbpair.model.pair import AMQPS_PORT, Ends, is_loopback
from sbpair.operating_system import file_lock, ownership
from sbpair.operating_system.files import user_directory
from sbpair.operating_system.shortages import shortage_of
from sbpair.runs.database import make_directory, now_ms, unusable

log = logging.getLogger(__name__)

FILE_NAME = "lease"

DIRECTORY = ".leases"
"""Beside the state directories of pairs, whose names begin with a letter or a digit."""

_HELD_HINT = (
    "wait until it ends, or stop it: sbpair runs cancel RUN, or of a drain sbpair replay stop RUN; with --no-lease both"
    " run, and ordering is lost"
)


class Lock:
    """A file locked by this process until it ends. Raises BlockingIOError if another process holds the lock.

    Raises StateRefused for a file that another user made or can change, MachineLacks if it cannot be used.
    """

    def __init__(self, path: Path, content: str = "") -> None:
        self._path = path
        try:
            ownership.check_not_shared(path.parent, path.parent.stat())
            ownership.check_owner(path)
            self._file = file_lock.open_lock_file(path, create=True)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            ownership.check_lock_file(path, self._file)
            file_lock.lock(self._file)
            os.ftruncate(self._file, 0)
            os.write(self._file, content.encode())
            self._is = os.fstat(self._file)
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
                raise unusable(path, error) from error
            raise

    def empty(self) -> None:
        """Give back the room of the content."""
        os.ftruncate(self._file, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.release()

    def release(self) -> None:
        os.close(self._file)


def is_locked(path: Path) -> bool:
    """Return whether a live process has locked a file."""
    try:
        file = file_lock.open_lock_file(path, create=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(path, error) from error
    try:
        # Shared: two simultaneous checks do not mistake each other for the holder.
        file_lock.lock(file, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


class Lease(Lock):
    """The right to move the messages of a pair, or of one source, held from construction until `release`.

    Raises LeaseHeld if another process has it, MachineLacks if the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        run: str,
        name: str = FILE_NAME,
        *,
        moved: str = "this pair",
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        make_directory(directory)
        content = {"pid": os.getpid(), "run": run, "started_ms": clock_ms()}
        try:
            super().__init__(directory / name, json.dumps(content))
        except BlockingIOError:
            raise LeaseHeld(f"{_holder(self._path)} is moving messages of {moved}", hint=_HELD_HINT) from None

    def check(self) -> None:
        """Raise LeaseLost if the file was deleted or replaced: another mover may be at work."""
        with suppress(OSError):
            if os.path.samestat(os.stat(self._path), self._is):  # noqa: PTH116  called often
                return
        raise LeaseLost(f"the lease {self._path} was deleted or replaced", hint="do not touch that file; start again")


MACHINE = "this machine"
"""Part of the names that processes of a machine take; another machine has another one."""


class MachineName:
    """A name that keeps the user's other processes away until `release`, whatever their environment says.

    Raises LeaseHeld, StateRefused if another user has it, and OSError where names are forbidden.
    """

    def __init__(self, name: str, moved: str) -> None:
        full = f"{MACHINE}/{name}"
        try:
            self._taken = file_lock.take_name(full)
        except BlockingIOError:
            raise _name_taken(file_lock.holder_of_name(full), moved) from None

    def release(self) -> None:
        if self._taken is not None:
            self._taken.close()


def _name_taken(holder: tuple[int, int | None] | None, moved: str) -> Unsafe:
    if holder is None:
        return LeaseHeld(f"another process is moving messages of {moved}", hint=_HELD_HINT)
    process, user = holder
    if user is None:
        return LeaseHeld(f"process {process} is moving messages of {moved}", hint=_HELD_HINT)
    return StateRefused(
        f"process {process} of {ownership.user_name(user)} has taken the name by which movers of {moved} exclude each"
        " other",
        hint="let root end that process; with --no-lease movers of this user do not exclude each other",
    )


@contextmanager
def hold_machine_leases(
    ends: Ends, directory: Path | None, run: str, source: str | None = None
) -> Iterator[Callable[[], None]]:
    """Hold the lease of the pair's namespaces and, if given, that of the state directory. Yields their check.

    With a `source`, hold only the leases of that entity of the secondary.

    The namespaces' lease is a file, which names its holder, and a name of the machine, which every process of the user
    meets. If one of them cannot be had, a warning says so: two movers would lose no message, only the order between
    theirs, and a machine with a read-only home can still move messages. Raises LeaseHeld, and MachineLacks for
    `directory`.
    """
    moved, name = source or "this pair", lease_name(ends, source)
    with ExitStack() as stack:
        leases = []
        try:
            leases.append(stack.enter_context(Lease(lease_directory(os.environ), run, name, moved=moved)))
        except Exhausted:
            raise  # for a moment: other movers may have their leases
        except (MachineLacks, RuntimeError) as error:
            log.warning("movers with another --state are not kept off this pair: %s", error)
        try:
            stack.callback(MachineName(name, moved).release)
        except OSError as error:
            if (lack := shortage_of(error, "the name of the lease")) is not None:
                raise lack from error
            log.warning("movers with another home are not kept off this pair: %s", error.strerror)
        if directory is not None:
            file = FILE_NAME if source is None else f"{FILE_NAME}-{name_digest(name)}"
            leases.append(stack.enter_context(Lease(directory, run, file, moved=moved)))

        def check() -> None:
            for lease in leases:
                lease.check()

        yield check


def lease_directory(environ: Mapping[str, str]) -> Path:
    """Return this user's directory of leases. Raises RuntimeError for a user without a home."""
    return user_directory("state", environ)[0] / DIRECTORY


def lease_name(ends: Ends, source: str | None = None) -> str:
    """Return the name of a pair's file. Movers of the same queues have the same, whatever they call the pair.

    That of a `source` stands for one entity of the secondary.
    """
    secondary = urlsplit(f"//{ends.source.authority}")
    host = (secondary.hostname or "").rstrip(".")
    port = "" if secondary.port in (None, AMQPS_PORT) else f"-{secondary.port}"
    where = f"{'localhost' if is_loopback(host) else quote(host)}{port}"
    return f"{ends.backlog_of.lower()}+{where}" if source is None else f"{where}+{name_digest(source.lower())}"


def lease_holder(ends: Ends) -> str:
    """Return the process of this user that moves messages of the pair on this machine; "" if none is known."""
    try:
        path = lease_directory(os.environ) / lease_name(ends)
        return _holder(path) if is_locked(path) else ""
    except (MachineLacks, RuntimeError):
        return ""


def name_digest(text: str) -> str:
    """Return a short text for any name, however long, as a part of a file's name."""
    return sha256(text.encode()).hexdigest()[:32]


def _holder(path: Path) -> str:
    try:
        record = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["started_ms"] / 1000))
        return f"process {record['pid']} (run {record['run']}, since {since} UTC)"
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return "another process"
