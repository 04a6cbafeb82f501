"""Shortages of this machine, of open files, memory, threads and room on a disk, recognized as the cause of any error.

No namespace, file or peer is to blame for such an error, whatever the layers between have made of it. This module is
loaded early: without a free file, none can be.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from sbpair.errors import Exhausted, MachineLacks

FILES: Final = ("too many open files", "raise the limit, such as ulimit -n 65536, or end programs that keep files open")
MEMORY: Final = ("no memory is left", "end other programs, or raise the memory limit of the service or container")
THREADS: Final = ("no more threads can be started", "raise the limit: ulimit -u, or that of the service or container")
ROOM: Final = ("no space is left on the disk", "make room there; temporary files go to the directory that TMPDIR names")

_LACKS: Final = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), FILES),
    **dict.fromkeys((errno.ENOMEM, errno.ENOBUFS), MEMORY),
}
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_HIDE_A_LACK: Final = frozenset({"gaierror", "SSLError", "SSLCertVerificationError"})
"""Errors that libraries raise also when they could not open a file."""

_CANNOT_OPEN: Final = 14  # of SQLite
_PROBES: Final = 4
"""A library closes what it had open before it reports that the next one could not be opened."""


def shortage_of(error: BaseException, doing: str = "") -> Exhausted | None:
    """Return the shortage that caused an error, or None. `doing` comes first in its message."""
    for each in _causes(error):
        if isinstance(each, Exhausted):
            return each
        if (lack := _lack_of(each)) is not None:
            return Exhausted(f"{doing}: {lack[0]}" if doing else lack[0], hint=lack[1])
    return None


@contextmanager
def shortages_raised(doing: str = "") -> Iterator[None]:
    """Raise Exhausted in place of an error of the block that a shortage caused; all others as they are."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if (lack := shortage_of(error, doing)) is not None:
            raise lack from error
        raise


def no_room(error: BaseException) -> MachineLacks | None:
    """Return the error of a full disk, if that is the cause of one that does not name the disk."""
    numbers = {each.errno for each in _causes(error) if isinstance(each, OSError)}
    return MachineLacks(ROOM[0], hint=ROOM[1]) if numbers & {errno.ENOSPC, errno.EDQUOT} else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, those that a group holds, and those that it was made of, also by aiohttp and Azure's SDKs."""
    found, seen = [error], set[int]()
    while found:
        each = found.pop()
        if id(each) in seen:  # an error of azure-core is a cause of its cause
            continue
        seen.add(id(each))
        yield each
        parts = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        made_of = (each.__cause__, getattr(each, "inner_exception", None), getattr(each, "os_error", None))
        found += [part for part in (*parts, *made_of) if isinstance(part, BaseException)]


def _lack_of(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return THREADS
    if type(error).__name__ in _HIDE_A_LACK or getattr(error, "sqlite_errorcode", 0) & 0xFF == _CANNOT_OPEN:
        return FILES if _no_file_is_left() else None
    if not isinstance(error, OSError):
        return None
    # For a name with several addresses, asyncio joins the texts of all errors.
    number = error.errno or int((_ERRNO.search(str(error)) or "00")[1])
    return _LACKS.get(number)


def check_files() -> None:
    """Raise Exhausted unless a few files can be opened, as an event loop does: half of a loop ends with tracebacks."""
    if _no_file_is_left():
        raise Exhausted(FILES[0], hint=FILES[1])


def _no_file_is_left() -> bool:
    with ExitStack() as opened:
        try:
            for _ in range(_PROBES):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return _LACKS.get(error.errno or 0) is FILES
    return False
