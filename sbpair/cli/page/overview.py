"""The contents of namespaces: read periodically while a page is open, and the changes that a page has not got yet.

Invariant: a slow page gets the newest state of what it missed, never a queue of it; and readings stop some time after
the last page was closed.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

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
    message was enqueued, in seconds since 1970. `active` may be that of a sample.
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
    is_sample: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceReading:
    """The entities of a namespace. `state` is up, down or refused, for the `reason`. `note` is what it cannot show.

    That of a secondary also names runs with messages in archives, and its `headline` leads the page.
    """

    side: str
    name: str
    rows: Sequence[EntityRow] = ()
    state: str = "up"
    reason: str = ""
    note: str = ""
    headline: str = ""

    @classmethod
    def failed(cls, side: str, name: str, error: SbpairError) -> "NamespaceReading":
        """Return the reading of a namespace that refused the credential, or could not be read."""
        return cls(side, name, state="refused" if isinstance(error, AccessError) else "down", reason=error.message)


@dataclass(frozen=True, slots=True)
class _ShownNamespace:
    """A reading without its rows; since when it has been in its state; its rows, and samples of `active`, by path."""

    reading: NamespaceReading
    since: float
    rows: Mapping[str, EntityRow]
    lines: Mapping[str, tuple[int, ...]]


Shown = Mapping[str, _ShownNamespace]


class Overview:
    """The newest reading of each namespace, and what of it a page has not got yet.

    `clock` is in seconds since 1970. `server` tells a page whether the server that it came from has restarted.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Sequence[NamespaceReading]]], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.server = secrets.token_urlsafe(6)
        self._read = read
        self._clock = clock
        self._shown: Shown = {}
        self._changed, self._opened = asyncio.Event(), asyncio.Event()
        self._closed = False
        self._readers = 0
        self._sampled_at = self._left_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[str]:
        """Iterate over JSON documents: all that is known, then what has changed; "" now and then without a change.

        Ends when this is closed.
        """
        self._readers += 1
        self._opened.set()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._run(), name="read what namespaces hold")
        seen: Shown = {}
        try:
            while not self._closed:
                changed, shown = self._changed, self._shown
                if shown and shown is not seen:
                    yield self._since(seen, shown)
                    seen = shown
                    continue
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
        readings, now = await self._read(), self._clock()
        is_sampled = now - self._sampled_at >= SAMPLE_SECONDS
        if is_sampled:
            self._sampled_at = now
        shown = {each.side: self._next(each, now, is_sampled=is_sampled) for each in readings}
        if shown != self._shown:
            self._shown = shown
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _run(self) -> None:
        loop, took = asyncio.get_running_loop(), 0.0
        while not self._closed and (self._readers or self._clock() - self._left_at < KEEP_SECONDS):
            began = loop.time()
            await self.read_again()
            if all(each.reading.state != "down" for each in self._shown.values()):
                took = loop.time() - began  # Else most of it was waiting, which is no load.
            least = READ_SECONDS if self._readers else SAMPLE_SECONDS
            self._opened.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), min(MAX_WAIT_SECONDS, max(least, SHARE * took)))

    def _next(self, reading: NamespaceReading, now: float, *, is_sampled: bool) -> _ShownNamespace:
        """Return what is shown after a reading; one that failed leaves the rows as they were."""
        known = self._shown.get(reading.side) or _ShownNamespace(reading, now, {}, {})
        rows = known.rows if reading.reason and not reading.rows else {each.path: each for each in reading.rows}
        lines = known.lines
        if is_sampled:
            samples = {path: -1 if row.active is None else row.active for path, row in rows.items()}
            lines = {path: (*lines.get(path, ()), active)[-SAMPLES:] for path, active in samples.items()}
        since = known.since if known.reading.state == reading.state else now
        return _ShownNamespace(replace(reading, rows=()), since, rows, lines)

    def _since(self, seen: Shown, shown: Shown) -> str:
        """Return what has changed since a page saw `seen` as JSON, or everything: after a sample, or if rows went."""
        everything = not seen or any(
            each.lines is not shown[side].lines or not each.rows.keys() <= shown[side].rows.keys()
            for side, each in seen.items()
        )
        namespaces = []
        for side, each in shown.items():
            known = {} if everything else seen[side].rows
            rows = [
                {name: value for name, value in row._asdict().items() if value or name == "active"}
                | {"line": each.lines.get(path, ())}
                for path, row in each.rows.items()
                if known.get(path) != row
            ]
            head = {
                name: getattr(each.reading, name) for name in ("side", "name", "state", "reason", "note", "headline")
            }
            namespaces.append({**head, "since": each.since, "entities": rows})
        document = {"server": self.server, "all": everything, "namespaces": namespaces}
        return json.dumps(document, separators=(",", ":"))
