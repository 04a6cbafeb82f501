"""The command line in a process that kills itself at a write of its journal, or of its file of removed messages.

python -m tests.faults.killed_at_journal before|after|torn|kept NTH COMMAND …
"""

import os
import signal
import sys
from typing import Any

from sbpair import __main__
from sbpair.move import kept_file
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import DELETE, INSERT, UPDATE

STEPS = (INSERT, UPDATE, DELETE)
"""A batch is about to be sent, was accepted, is complete in its source."""


def kill_at(when: str, nth: int) -> None:
    """Let the process end before or after the nth of its writes with a step of a batch.

    For `torn` and `kept`, that is a write of removed messages, of which half, or all, is in the file.
    """
    kept_file.AT_ONCE = kept_file.SHOWN_AT_ONCE
    write, append = RunDatabase.write, kept_file.KeptFile.append
    left = nth

    def tearing(keep: kept_file.KeptFile, lines: bytes) -> None:
        nonlocal left
        left -= 1
        append(keep, lines[: len(lines) // 2] if not left and when == "torn" else lines)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if when in ("torn", "kept"):
        kept_file.KeptFile.append = tearing  # type: ignore[method-assign]
        return

    def killing(state: RunDatabase, *changes: Any) -> None:
        nonlocal left
        left -= any(statement in STEPS for statement, _ in changes)
        if left or when == "after":
            write(state, *changes)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    RunDatabase.write = killing  # type: ignore[method-assign]


if __name__ == "__main__":
    given, number, *words = sys.argv[1:]
    kill_at(given, int(number))
    sys.exit(__main__.run(words))
