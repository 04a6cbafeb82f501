"""A terminal that a test holds one end of, and a command the other."""

import asyncio
import fcntl
import os
import pty
import struct
import termios
from types import TracebackType
from typing import Self


class PseudoTerminal:
    """A terminal without a screen, for the duration of a `with`; `theirs` is the command's end."""

    def __init__(self, columns: int = 80) -> None:
        self._ours, self.theirs = pty.openpty()
        self._handed_over = False
        self.resize(columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hand_over()
        os.close(self._ours)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def hand_over(self) -> None:
        """Close the command's end here, once the command has it, so that the terminal ends with the command."""
        if not self._handed_over:
            self._handed_over = True
            os.close(self.theirs)

    def take(self) -> None:
        """Make it the terminal that controls a process, in that process."""
        os.setsid()
        fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)

    def write(self, typed: bytes) -> None:
        os.write(self._ours, typed)

    def read(self) -> str:
        """Return what is shown next."""
        return os.read(self._ours, 65_536).decode(errors="replace")

    def read_until(self, *ends: str) -> str:
        """Return what is shown until these texts have come, in this order."""
        seen, after = "", 0
        for end in ends:
            while (at := seen.find(end, after)) < 0:
                seen += self.read()
            after = at + len(end)
        return seen

    async def shown(self, *ends: str) -> str:
        """Return what is shown until these texts have come, and let the loop run meanwhile."""
        return await asyncio.to_thread(self.read_until, *ends)

    def read_to_the_end(self) -> str:
        """Return what is shown until no command has the terminal."""
        seen = ""
        try:
            while shown := self.read():
                seen += shown
        except OSError:  # that was all
            pass
        return seen
