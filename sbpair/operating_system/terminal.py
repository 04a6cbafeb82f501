"""Terminals and the standard streams."""

import os
import sys
from typing import TextIO


def can_be_redrawn(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences."""
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    if sys.platform == "win32":
        import colorama

        colorama.just_fix_windows_console()
    return True


def discard(stream: TextIO) -> None:
    """Redirect a stream to nowhere: Python flushes it again at exit, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_of_input() -> str:
    """Return the keys that end the input from a terminal."""
    return "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
