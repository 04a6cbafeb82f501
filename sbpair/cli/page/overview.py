"""The contents of namespaces: read periodically while a page is open, and the changes that a page has not got yet.

Invariant: a slow page gets the newest state of what it missed, never a queue of it; and readings stop some time after
the last page was closed.
"""

import asyncio
import json
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sbpair.errors import AccessError, SbpairError

READ_SECONDS: Final = 2.0
SHARE: Final = 40
"""The wait after a reading is so many times as long as the reading took, within the limits here."""

MAX_WAIT_SECONDS: Final = 60.0
BEAT_SECONDS: Final = 15.0
"""A reader whose page is gone is noticed when something is sent to it."""

SAMPLE_SECONDS: Final = 30.0
SAMPLES: Final = 60
KEEP_SECONDS: Final = SAMPLE_SECONDS * SAMPLES
"""Readings go on for so long after the last reader, for the line that the next one sees."""


class EntityRow(NamedTuple):
    """An entity of a namespace and its counts; None where unknown.

    `kind` is queue, topic, subscription or backlog. `active` counts locked messages too. `oldest` is when its first
    message was enqueued, in seconds since 1970. Unless `exact`, `active` is that of a sample.
    """

    path: str
    kind: str
    active: int | None = None
    dead_letter: int | None = None
    scheduled: int | None = None
    deferred: int | None = None
    transfer: int | None = None
    transfer_dead_letter: int | None = None
    size_bytes: int | None = None
    oldest: float | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class NamespaceReading:
    """The entities of a namespace. `state` is up, down or refused, for the `reason`. `note` is what it cannot show."""

    side: str
    name: str
    rows: Sequence[EntityRow] = ()
    state: str = "up"
    reason: str = ""
    note: str = ""

    @classmethod
    def failed(cls, side: str, name: str, error: SbpairError) -> "NamespaceReading":
        """Return the reading of a namespace that refused the credential, or could not be read."""
        return cls(side, name, state="refused" if isinstance(error, AccessError) else "down", reason=error.message)


Read = Callable[[], Awaitable[Sequence[NamespaceReading]]]


@dataclass(slots=True)
class _Entity:
    row: EntityRow
    version: int
    line: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class _ShownNamespace:
    """The newest reading without its rows, and since when it has been up or down."""

    reading: NamespaceReading
    since: float
    entities: dict[str, _Entity] = field(default_factory=dict)


class Overview:
    """The newest reading of each namespace, with versions of what has changed.

    `clock` is in seconds since 1970. `server` tells a page whether the server that it came from has restarted.
    """

    def __init__(self, read: Read, *, clock: Callable[[], float] = time.time) -> None:
        self.server = secrets.token_urlsafe(6)
        self._read = read
        self._clock = clock
        self._namespaces: dict[str, _ShownNamespace] = {}
        self._version = 0
        self._removed_at = 0
        self._changed, self._opened = asyncio.Event(), asyncio.Event()
        self._closed = False
        self._readers = 0
        self._sampled_at = self._left_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._encoded: tuple[tuple[int, int], str] = ((0, 0), "")

    async def events(self) -> AsyncGenerator[str]:
        """Iterate over JSON documents: all that is known, then what has changed; "" now and then without a change.

        Ends when this is closed.
        """
        self._readers += 1
        self._opened.set()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._run(), name="read what namespaces hold")
        seen = -1
        try:
            while not self._closed:
                if self._version and seen != self._version:
                    document, seen = self._since(seen), self._version
                    yield document
                    continue
                changed = self._changed
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), BEAT_SECONDS)
                if not changed.is_set():
                    yield ""
        finally:
            self._readers -= 1
            self._left_at = self._clock()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._opened.set()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def read_again(self) -> None:
        """Read now, since something was changed."""
        self._apply(await self._read())

    async def _run(self) -> None:
        while not self._closed and (self._readers or self._clock() - self._left_at < KEEP_SECONDS):
            began = time.monotonic()
            await self.read_again()
            took = time.monotonic() - began
            least = READ_SECONDS if self._readers else SAMPLE_SECONDS
            self._opened.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), min(MAX_WAIT_SECONDS, max(least, SHARE * took)))

    def _apply(self, readings: Sequence[NamespaceReading]) -> None:
        now, version = self._clock(), self._version + 1
        is_changed = False
        for reading in readings:
            head, known = replace(reading, rows=()), self._namespaces.get(reading.side)
            if known is None:
                known = self._namespaces[reading.side] = _ShownNamespace(head, now)
                is_changed = True
            if known.reading.state != head.state:
                known.since = now
            is_changed |= known.reading != head
            known.reading = head
            if reading.reason and not reading.rows:
                continue  # what was there when it was last seen
            is_changed |= self._apply_rows(known, reading.rows, version)
        if now - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = now
            self._sample()
        if is_changed:
            self._version = version
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _apply_rows(self, known: _ShownNamespace, rows: Sequence[EntityRow], version: int) -> bool:
        is_changed = False
        entities = known.entities
        for row in rows:
            entity = entities.get(row.path)
            if entity is None:
                entities[row.path] = _Entity(row, version)
            elif entity.row != row:
                entity.row, entity.version = row, version
            else:
                continue
            is_changed = True
        if len(entities) > len(rows):
            for path in entities.keys() - {row.path for row in rows}:
                del entities[path]
            self._removed_at, is_changed = version, True
        return is_changed

    def _sample(self) -> None:
        self._encoded = ((0, 0), "")
        for namespace in self._namespaces.values():
            for entity in namespace.entities.values():
                entity.line.append(-1 if entity.row.active is None else entity.row.active)
                del entity.line[:-SAMPLES]

    def _since(self, seen: int) -> str:
        """Return what has changed since a version as JSON, or everything: once for all readers that saw the same."""
        key = (seen, self._version)
        if self._encoded[0] != key:
            everything = seen < self._removed_at or seen < 0
            namespaces = []
            for namespace in self._namespaces.values():
                changed = [each for each in namespace.entities.values() if everything or each.version > seen]
                shown = [_document(each, with_line=everything) for each in changed]
                reading = namespace.reading
                head = {name: getattr(reading, name) for name in ("side", "name", "state", "reason", "note")}
                namespaces.append({**head, "since": namespace.since, "entities": shown})
            document = {"time": self._clock(), "server": self.server, "all": everything, "namespaces": namespaces}
            self._encoded = (key, json.dumps(document, separators=(",", ":")))
        return self._encoded[1]


def _document(entity: _Entity, *, with_line: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: value for name, value in entity.row._asdict().items() if value not in (None, 0) or name == "active"
    }
    if entity.row.exact:
        found.pop("exact")
    if with_line:
        found["line"] = list(entity.line)
    return found
