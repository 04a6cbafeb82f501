"""Lines on a terminal that replace the previous ones."""

import shutil
from collections.abc import Sequence

from sbpair.cli.render.screen import Screen

CLEAR, NO_WRAP, WRAP = "\x1b[H\x1b[2J", "\x1b[?7l", "\x1b[?7h"


class Redrawing:
    """Lines on stdout, drawn in place of those drawn before."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines = 0
        self._size = shutil.get_terminal_size()

    def draw(self, lines: Sequence[str], foot: str) -> None:
        """Print lines above a foot, as many as the terminal has room for."""
        size = shutil.get_terminal_size()
        shown = [*shortened(lines, size.lines - 2), foot]
        # After a resize, the terminal has rewrapped the old lines onto an unknown number of lines.
        start = CLEAR if size != self._size else f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
        self._screen.write(f"{start}{NO_WRAP}" + "\n".join(shown) + WRAP)
        self._lines, self._size = len(shown), size


def shortened(lines: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` lines: the first ones, how many are left out, and the last one."""
    if len(lines) <= limit:
        return list(lines)
    first = lines[: max(0, limit - 2)]
    return [*first, f"… {len(lines) - len(first) - 1} more lines", lines[-1]]
