"""The HTTP port of a run: small pages, for few readers such as a scraper of metrics or a health probe.

Invariant: a run never waits for a reader, and no request ends it. A connection has MAX_SECONDS for all. At most
MAX_CONNECTIONS are served: a further one waits, or ends the oldest whose request did not come within PATIENCE_SECONDS.
Rendering takes at most one part in REST of the time, however many scrapes there are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias, TypeVar

import h11

from sbpair.operating_system import listen

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 0.25
REST: Final = 50
MAX_REQUEST_BYTES: Final = 16_384
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""Time between attempts to accept a connection without a free file descriptor."""

Result = TypeVar("Result")


class Page(NamedTuple):
    """The answer to a request for a path."""

    content: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK


Render: TypeAlias = Callable[[str], Page]
"""Returns the page for a request's Accept header."""


class HttpPort:
    """Answers requests with the pages by their paths, until it is closed. Without an address, it has no port.

    `title` names the pages in answers; `url` is the address of the first one, or "". `options` name port and host in
    errors. Raises UsageError, or MachineLacks for a port that is not free.
    """

    def __init__(
        self, address: tuple[str, int] | None, options: tuple[str, str], title: str, pages: Mapping[str, Render]
    ) -> None:
        self._listening = None if address is None else listen(*address, *options)
        self._title = title
        self._pages = pages
        self._reading: dict[asyncio.Task[None], float] = {}
        """Since when each task waits for its request, the oldest first."""

        self._turn = asyncio.Lock()
        self._next_turn = 0.0

    @property
    def url(self) -> str:
        if self._listening is None:
            return ""
        host, port, *_ = self._listening.getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{next(iter(self._pages))}"

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()

    async def serve_during(self, run: Awaitable[Result]) -> Result:
        """Run to the end, and answer requests until then."""
        if self._listening is None:
            return await run
        serving = asyncio.create_task(self._serve(self._listening), name=f"serve {self._title}")
        try:
            return await run
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _serve(self, listening: socket.socket) -> None:
        loop, free = asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONNECTIONS)
        async with asyncio.TaskGroup() as answers:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.info("no connection to the %s: %s", self._title, error)
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                with ExitStack() as until_served:
                    until_served.enter_context(connection)
                    await self._acquire(free)
                    task = answers.create_task(self._handle(connection))
                    self._reading[task] = loop.time()
                    task.add_done_callback(partial(self._end, connection, free))
                    until_served.pop_all()

    async def _acquire(self, free: asyncio.Semaphore) -> None:
        while free.locked() and self._reading:
            oldest, since = next(iter(self._reading.items()))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(since + PATIENCE_SECONDS):
                    await free.acquire()
                    return
            if oldest in self._reading:
                oldest.cancel()
                break
        await free.acquire()

    def _end(self, connection: socket.socket, free: asyncio.Semaphore, task: asyncio.Task[None]) -> None:
        connection.close()
        self._reading.pop(task, None)
        free.release()

    async def _handle(self, connection: socket.socket) -> None:
        with suppress(OSError):
            async with asyncio.timeout(MAX_SECONDS):
                try:
                    answer = await self._answer(connection)
                except h11.LocalProtocolError:
                    log.exception("no answer of the %s", self._title)
                    return
                await asyncio.get_running_loop().sock_sendall(connection, answer)

    async def _answer(self, connection: socket.socket) -> bytes:
        """Read a request, and return the answer; b"" for a client that has gone."""
        loop, http = asyncio.get_running_loop(), h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        request: object = None
        page: Page | None = None
        try:
            while (request := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await loop.sock_recv(connection, MAX_REQUEST_BYTES))
        except h11.RemoteProtocolError:
            page = Page(b"expected an HTTP request\n", status=400)
        finally:
            self._reading.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        if page is None:
            if not isinstance(request, h11.Request):
                return b""
            page = await self._page(request)
        headers = {"Content-Type": page.content_type, "Content-Length": str(len(page.content)), "Connection": "close"}
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        reason = HTTPStatus(page.status).phrase
        head = http.send(h11.Response(status_code=page.status, reason=reason, headers=[*headers.items()])) or b""
        is_head = isinstance(request, h11.Request) and request.method == b"HEAD"
        return head if is_head else head + page.content

    async def _page(self, request: h11.Request) -> Page:
        if request.method not in (b"GET", b"HEAD"):
            return Page(b"expected GET\n", status=405)
        render = self._pages.get(request.target.partition(b"?")[0].decode("latin-1"))
        if render is None:
            return Page(f"the {self._title} are at {' and '.join(self._pages)}\n".encode(), status=404)
        accept = b",".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        try:
            return await self._rendered(render, accept)
        except Exception:
            log.exception("the %s could not be rendered", self._title)
            return Page(f"the {self._title} could not be rendered\n".encode(), status=500)

    async def _rendered(self, render: Render, accept: str) -> Page:
        """Render a page when it is this request's turn."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next_turn - loop.time())
            started = loop.time()
            try:
                return render(accept)
            finally:
                self._next_turn = loop.time() + REST * (loop.time() - started)
