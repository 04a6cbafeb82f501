"""What the simulated syphons keep on disk: what is written there, by whom, and what a killed process leaves of it.

The law: a killed process writes nothing more. Its database and its locks are let go as the system would, and whatever
cleanup it would have liked to do finds them gone.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sbpair.runs import database
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import Lock, MachineName
from sbpair.runs.journal import ACCEPTED, DELETE, INSERT, UPDATE, _decode_keys
from tests.faults.simulation.loop import PROCESS, Process

Message = tuple[str, str, int, int, str | None]
"""As the journal knows one: namespace, queue, sequence number, enqueued at, message id."""


class Disk:
    """Judges what is written: `accuse` is told what may not be, and `tell` what the primary is known to have."""

    def __init__(self, tell: Callable[[str], None], accuse: Callable[[str], None]) -> None:
        self._tell = tell
        self._accuse = accuse
        self._flights: defaultdict[Path, dict[int, list[Message]]] = defaultdict(dict)
        self._accepted: defaultdict[Path, dict[int, list[Message]]] = defaultdict(dict)
        self._known: dict[RunDatabase, set[Message]] = {}
        self._sent: defaultdict[Process, set[tuple[str, int]]] = defaultdict(set)
        self._open: defaultdict[Process, dict[RunDatabase | Lock | MachineName, None]] = defaultdict(dict)

    def has_written(self, process: Process, queue: str, number: int) -> bool:
        """Whether a process has written down that it is about to send a message."""
        return (queue.lower(), number) in self._sent[process]

    def kill(self, process: Process) -> None:
        for each in self._open.pop(process, {}):
            if isinstance(each, RunDatabase):
                each._db.close()
            elif isinstance(each, MachineName):
                each.release()
            else:
                with Path(os.devnull).open() as nothing:
                    os.dup2(nothing.fileno(), each._file)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all that is opened, written and let go until the end of the block."""
        with ExitStack() as undo:
            # So that the log is folded into the file within a schedule.
            undo.enter_context(patch.object(database, "MAX_LOG_BYTES", 20_000))
            undo.enter_context(patch.object(RunDatabase, "__init__", self._opening(RunDatabase.__init__)))
            undo.enter_context(patch.object(RunDatabase, "write", self._writing(RunDatabase.write)))
            undo.enter_context(patch.object(RunDatabase, "close", self._closing(RunDatabase.close)))
            for kind in (Lock, MachineName):
                undo.enter_context(patch.object(kind, "__init__", self._opening(kind.__init__)))
                undo.enter_context(patch.object(kind, "release", self._closing(kind.release)))
            yield

    def _opening(self, really: Callable[..., None]) -> Callable[..., None]:
        def opened(thing: Any, *arguments: Any) -> None:
            really(thing, *arguments)
            process = PROCESS.get()
            if process is not None:
                self._open[process][thing] = None
            if isinstance(thing, RunDatabase):
                flights = self._accepted[thing.path].values()
                self._known[thing] = {message for messages in flights for message in messages}

        return opened

    def _closing(self, really: Callable[..., None]) -> Callable[..., None]:
        def closed(thing: Any) -> None:
            process = PROCESS.get()
            if process is not None:
                self._open[process].pop(thing, None)
            really(thing)

        return closed

    def _writing(self, really: Callable[..., None]) -> Callable[..., None]:
        def written(state: RunDatabase, *changes: Any) -> None:
            really(state, *changes)
            for statement, rows in changes:
                for row in rows:
                    self._wrote(state, statement, row)

        return written

    def _wrote(self, state: RunDatabase, statement: str, row: tuple[Any, ...]) -> None:
        process = PROCESS.get()
        assert process is not None
        flights, accepted = self._flights[state.path], self._accepted[state.path]
        if statement == INSERT:
            number, _, namespace, queue, *_, keys, _destination = row
            flights[number] = [(namespace, queue, *parts) for parts in _decode_keys(state, keys)]
            for message in flights[number]:
                self._sent[process].add((queue, message[2]))
                if message in self._known[state]:
                    self._accuse(f"{process.name} sends again what it knew the primary to have: {message}")
        elif statement == UPDATE and row[0] == ACCEPTED:
            accepted[row[1]] = flights[row[1]]
            self._known[state].update(flights[row[1]])
            numbers = ", ".join(str(message[2]) for message in flights[row[1]])
            self._tell(f"known to have arrived {flights[row[1]][0][1].rpartition('/')[2]}:{numbers}")
        elif statement == DELETE:
            accepted.pop(row[0], None)
