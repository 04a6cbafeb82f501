"""The output of a process, read as it comes, and waits for a line of it."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


class ProcessOutput:
    """The lines that a process and its children have written to a pipe. `ended` is whether all have closed it."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[str] = []
        self.ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(pipe,), name="process output", daemon=True).start()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def find(self, match: Callable[[str], Found | None], seconds: float) -> Found:
        """Wait for a line that matches, and return its match. Raises AssertionError at the end, or after `seconds`."""
        limit = time.monotonic() + seconds
        number, found = 0, None
        while found is None:
            with self._changed:
                assert self._changed.wait_for(partial(self._is_known, number), limit - time.monotonic()), self.text
            assert number < len(self.lines), self.text
            found = match(self.lines[number])
            number += 1
        return found

    def _is_known(self, number: int) -> bool:
        """Return whether a line has been read, or never will be."""
        return self.ended or number < len(self.lines)

    def wait_end(self, seconds: float) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, seconds), self.text

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()
