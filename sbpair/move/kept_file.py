"""The file that removed messages are written to: the destination of a run that removes them.

Invariant: a batch is accepted only once all its lines are on the disk, and then shown. One that cannot be written whole
leaves nothing in the file. Earlier lines are never changed, except for half a line of a killed run, whose
message is still in its entity.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self, TypeAlias

from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, UnreadableMessage, UsageError
from sbpair.move.interface import Batch, RoutedMessage, SendOutcome
from sbpair.operating_system import file_lock, ownership
from sbpair.operating_system.files import open_new, open_to_append, sync_directory
from sbpair.runs.database import make_directory

if TYPE_CHECKING:
    from sbpair.move.interface import Sendable

Document: TypeAlias = "Mapping[str, object]"
Show: TypeAlias = "Callable[[Document], None]"
Render: TypeAlias = "Callable[[Sendable], Document]"
"""Returns a message as a document of JSON. Raises UnreadableMessage."""

AT_ONCE, SHOWN_AT_ONCE = 500, 10
"""Messages that are written together; those that are shown, too: a closed output leaves at most so many unseen."""

READ_BYTES = 64 * 1024
SCHEMA = "sbpair/receive/1"
OWN_LINE = b'{"schema": "sbpair/'
"""The beginning of each line that is written here."""

_ANOTHER = "name another file with --keep"


@dataclass(slots=True)
class KeptBatch(Batch):
    """Messages as documents, of which `payload` has the lines. `refusal` is why a single one cannot be kept."""

    documents: Sequence[Document] = ()
    refusal: SbpairError | None = None


@dataclass
class KeptFile:
    """Keeps messages in `path`, and gives each to `show`; without a path, or `show`, it does the other alone.

    It is open in its context. `lines` are those of this run, `size` is that of the file. Once `show` has failed, with
    `failure` at the line `unshown` of this run, nothing more is accepted, and `on_failure` is called. `cut` is whether
    half a line of a killed run was cut off.
    """

    path: Path | None
    render: Render
    show: Show | None = None
    on_failure: Callable[[], None] = lambda: None
    makes_directory: bool = False
    credit: int = 1
    lines: int = field(default=0, init=False)
    size: int = field(default=0, init=False)
    unshown: int = field(default=0, init=False)
    failure: Exception | None = field(default=None, init=False)
    cut: bool = field(default=False, init=False)
    broken: None = field(default=None, init=False)
    _start: int = field(default=0, init=False)
    _file: int | None = field(default=None, init=False)
    _turn: Lock = field(default_factory=Lock, init=False)

    def __enter__(self) -> Self:
        """Open the file. Raises UsageError, LeaseHeld, StateRefused, MachineLacks."""
        if self.path is not None:
            if self.makes_directory:
                for each in (self.path.parent.parent, self.path.parent):  # the state, and its directory of files
                    make_directory(each)
            self._file = self._opened(self.path)
        return self

    def __exit__(self, *_details: object) -> None:
        """Close the file, and remove an empty one."""
        with self._turn:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                if self.path is not None and not self.size:
                    self.path.unlink(missing_ok=True)

    @property
    def id(self) -> str:
        """The path; "" without a file."""
        return "" if self.path is None else str(self.path)

    def line_number(self, line: int) -> int:
        """Return the number in the file of a line of this run, from 1 on. Raises OSError."""
        if self.path is None:
            return line
        left, before = self._start, 0
        with self.path.open("rb") as file:
            while left and (part := file.read(min(left, READ_BYTES))):
                left, before = left - len(part), before + part.count(b"\n")
        return before + line

    # As the connection to a destination.

    async def check(self) -> None:
        """Do nothing: the file is open."""

    async def wait_lost(self) -> None:
        """Wait for ever: a file is not lost as a connection is."""
        await asyncio.Event().wait()

    def abort(self, error: SbpairError) -> None:
        """Do nothing: a write that has begun soon ends."""

    async def close(self) -> None:
        """Do nothing: the connections of a run share the file."""

    # As a destination, and as its link.

    async def ready(self, _destination: str) -> KeptFile:
        return self

    def encode(self, routed: Sequence[RoutedMessage]) -> KeptBatch:
        """Render the first messages. One that cannot be read is alone in its batch, which is refused."""
        if self.path is None and self.show is None:
            return KeptBatch(len(routed), b"")
        limit = AT_ONCE if self.show is None else SHOWN_AT_ONCE if self.path is not None else 1
        documents: list[Document] = []
        for each in routed[:limit]:
            try:
                documents.append(self._rendered(each.message))
            except UnreadableMessage as error:
                if not documents:
                    return KeptBatch(1, b"", refusal=error)
                break
        payload = b"" if self.path is None else b"".join(map(_line, documents))
        return KeptBatch(len(documents), payload, documents=documents)

    def send(self, batch: Batch) -> SendOutcome:
        assert isinstance(batch, KeptBatch)  # noqa: S101  # `encode` made it
        if batch.refusal is not None:
            raise batch.refusal
        return partial(self._outcome, batch)

    def _rendered(self, message: Sendable) -> Document:
        if message.content is None:
            raise UnreadableMessage(message.facts.flaw, hint="remove it with --no-keep")
        return self.render(message)

    async def _outcome(self, batch: KeptBatch) -> None:
        if not batch.documents:
            return
        try:
            # In a thread: a disk may be slow, and the reader of the output may pause. Locks are renewed meanwhile.
            await asyncio.to_thread(self._accept, batch)
        finally:
            if self.failure is not None:
                self.on_failure()

    # In a thread.

    def _accept(self, batch: KeptBatch) -> None:
        with self._turn:
            if self.failure is None:
                if self._file is not None:
                    self.append(batch.payload)
                before, self.lines = self.lines, self.lines + batch.count
                if self._is_shown(batch, before) or self.path is not None:
                    return
            raise MachineLacks("the output takes no more", hint="messages that were not printed are still there")

    def _is_shown(self, batch: KeptBatch, before: int) -> bool:
        if (show := self.show) is None:
            return True
        for at, document in enumerate(batch.documents, before + 1):
            try:
                show(document)
            except (BrokenPipeError, SbpairError) as error:
                self.failure, self.unshown = error, at
                return False
        return True

    def append(self, lines: bytes) -> None:
        """Append lines, on disk on return, or nothing of them. Raises MachineLacks."""
        file = self._file
        assert file is not None  # noqa: S101  # it is open
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
            if not os.fstat(file).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was deleted")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, self.size)
            raise _unwritable(self.path, error) from error
        self.size += len(lines)

    def _opened(self, path: Path) -> int:
        """Open the file, and end its last line. Returns the descriptor."""
        try:
            if path.exists() and not path.is_file():
                raise UsageError(f"{path} is not a regular file", hint=_ANOTHER)
            ownership.check_owner(path)
            with suppress(FileExistsError):
                os.close(open_new(path))
                sync_directory(path.parent)
            file = open_to_append(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            file_lock.lock(file)
            self._end_last_line(path, file)
        except BlockingIOError:
            os.close(file)
            raise LeaseHeld(f"{path} is in use by another run", hint=_ANOTHER) from None
        except OSError as error:
            os.close(file)
            raise _unwritable(path, error) from error
        except UsageError:
            os.close(file)
            raise
        return file

    def _end_last_line(self, path: Path, file: int) -> None:
        if os.read(file, 1) not in (b"", b"{"):
            raise UsageError(f"{path} has other lines than kept messages", hint=_ANOTHER)
        size, tail = os.fstat(file).st_size, b""
        for back in count(1):
            at = max(0, size - back * READ_BYTES)
            os.lseek(file, at, os.SEEK_SET)
            tail = os.read(file, size - at - len(tail)) + tail
            if b"\n" in tail or not at:
                break
        tail = tail.rpartition(b"\n")[2]
        if tail and _is_json(tail):
            os.write(file, b"\n")
        elif tail.startswith(OWN_LINE) or (tail and OWN_LINE.startswith(tail)):
            os.ftruncate(file, size - len(tail))
            self.cut = True
        elif tail:
            raise UsageError(f"{path} ends with half a line that is not of sbpair", hint=_ANOTHER)
        self.size = self._start = os.fstat(file).st_size


def _line(document: Document) -> bytes:
    return f"{json.dumps({'schema': SCHEMA, **document})}\n".encode()


def _is_json(text: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _unwritable(path: Path | None, error: OSError) -> MachineLacks:
    return MachineLacks(
        f"{path} cannot be written: {error.strerror}",
        hint=f"{_ANOTHER}, or make room: what is not in the file is still in its entity",
    )
