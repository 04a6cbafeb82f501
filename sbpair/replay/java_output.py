"""The lines that Java and its workers write to stderr, as records of the logger `spark`."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("spark")

NOISE = ("WARNING: Using incubator modules",)
"""Beginnings of lines that Java always writes."""

_LEVEL = re.compile(r"^.{0,24}?\b(ERROR|WARN|INFO|DEBUG|TRACE) ")


@contextmanager
def logged_stderr() -> Iterator[int]:
    """Yield a descriptor for the stderr of a child. Its lines are logged until the last process has closed it."""
    reading, writing = os.pipe()
    threading.Thread(target=_log_lines, args=(reading,), name="java output", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _log_lines(descriptor: int) -> None:
    with open(descriptor, errors="replace") as lines:
        for line in lines:
            if line.strip():
                log.log(level_of(line), "%s", line.rstrip())


def level_of(line: str) -> int:
    """Return the level of a line: that of log4j, or a warning."""
    if line.startswith(NOISE):
        return logging.DEBUG
    found = _LEVEL.match(line)
    return logging.WARNING if found is None else logging.getLevelNamesMapping().get(found[1], logging.DEBUG)
