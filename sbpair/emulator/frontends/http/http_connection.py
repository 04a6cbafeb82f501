"""aiohttp's server, with limits of time for each request, and a log without content.

Invariant: a request whose head takes longer than HEAD_SECONDS, or whose body pauses for BODY_SECONDS, is answered by
408, and its connection ends. So does one without a request for IDLE_SECONDS, or that takes no output for BODY_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from sbpair.amqp_server.admission import HEAD_SECONDS, TOO_SLOW
from sbpair.amqp_server.refusals import log_bug

logger = logging.getLogger(__name__)

BODY_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 120.0


class BodyInvalid(ConnectionResetError):
    """The rest of a body is not HTTP: for the request in progress, its sender is gone."""


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log without content: invalid HTTP is reported as information, anything else as a bug."""

    def log(self, level: int, msg: object, *args: object, exc_info: Any = None, **others: Any) -> None:
        if isinstance(exc_info, HttpProcessingError | BodyInvalid):
            self.info("Refused a request that is not HTTP: %s.", type(exc_info).__name__)
        elif isinstance(exc_info, Exception) and level >= logging.ERROR:
            log_bug(self.logger, "request", exc_info)
        else:
            super().log(level, msg, *args, exc_info=exc_info, **others)


class HttpConnection(web.RequestHandler):
    """aiohttp's connection, with the limits of time. `on_head` is called for each head.

    A pipelined head that begins with the end of another request has its time from its next bytes.
    """

    __slots__ = ("_arriving", "_body", "_limit", "_on_head", "_output_limit", "_since")

    def __init__(self, server: HttpServer, on_head: Callable[[], None], **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._on_head = on_head
        self._body: Any = None
        self._arriving = ""
        """The part of a request that is not complete: "head", "body" or none."""

        self._since = 0.0
        self._limit: asyncio.TimerHandle | None = None
        self._output_limit: asyncio.TimerHandle | None = None

    # Requests

    def data_received(self, data: bytes) -> None:
        heads, was_body = self._request_count, self._arriving == "body"
        super().data_received(data)
        if is_head := self._request_count != heads:
            if was_body and not self._body.is_eof():
                # The parser refuses the rest of this body, and leaves its reader waiting.
                self._body.set_exception(BodyInvalid("the body of the request is not valid HTTP"))
                self._body.feed_eof()
            self._on_head()
            self._body = self._messages[-1][1]
        if is_head or was_body:
            self._expect("" if self._body.is_eof() else "body")
        elif data and not self._upgraded:
            self._expect("head")

    def _expect(self, part: str) -> None:
        self._since = self._loop.time()
        if part != self._arriving:
            self._arriving = part
            self._set_limit(BODY_SECONDS if part == "body" else HEAD_SECONDS)

    def _set_limit(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._loop.call_later(seconds, self._on_limit) if self._arriving else None

    def _on_limit(self) -> None:
        request = self._current_request
        if self._arriving == "head":
            # While another request is answered, its output may have begun.
            if self._waiter is None or self._waiter.done():
                self._set_limit(HEAD_SECONDS)
            else:
                self._refuse()
        elif self._reading_paused or self._buffer_paused or request is None or request.content is not self._body:
            # The peer is not the one that is slow.
            self._set_limit(BODY_SECONDS)
        elif (left := self._since + BODY_SECONDS - self._loop.time()) > 0:
            self._set_limit(left)
        elif request.writer.output_size and self.transport is not None:
            self.transport.abort()
        else:
            self._refuse()

    def _refuse(self) -> None:
        logger.info("A request did not arrive in time: its %s.", self._arriving)
        if self.transport is not None:
            self.transport.write(TOO_SLOW)
        # For a request in progress, the connection is lost.
        self.force_close()

    def _resume_transport_reading(self) -> None:
        self._since = self._loop.time()
        super()._resume_transport_reading()

    # Output

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_output(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_output_limit()

    async def start(self) -> None:
        transport = self.transport
        try:
            await super().start()
        finally:
            if self._manager is not None and transport is not None and transport.is_closing():
                self._limit_output(transport)

    def _limit_output(self, transport: asyncio.Transport | None) -> None:
        if self._output_limit is None and transport is not None and transport.get_write_buffer_size():
            self._output_limit = self._loop.call_later(BODY_SECONDS, transport.abort)

    def _end_output_limit(self) -> None:
        if self._output_limit is not None:
            self._output_limit.cancel()
            self._output_limit = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._arriving = ""
        self._set_limit(0)
        self._end_output_limit()
        super().connection_lost(exc)


def in_origin_form(request: web.BaseRequest) -> web.BaseRequest:
    """Return a request whose target is a path, from one in the absolute form (RFC 9112, 3.2.2)."""
    _, is_absolute, rest = request.raw_path.partition("://")
    if request.raw_path.startswith("/") or not is_absolute:
        return request
    return request.clone(rel_url=URL(f"/{rest.partition('/')[2]}", encoded=True))


class HttpServer(web.Server):
    """aiohttp's server, without its wait of ten seconds for the rest of a body whose sender has gone."""

    def __init__(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        # The relay passes bodies on as they are.
        super().__init__(
            lambda request: handle(in_origin_form(request)),
            access_log=None,
            logger=QuietLog(logger),
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
        )

    def __call__(self, on_head: Callable[[], None] = lambda: None) -> HttpConnection:
        return HttpConnection(self, on_head, **self._kwargs)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        # A request in progress ends by itself: its handler may still have something to undo.
        if handler._task_handler is not None and handler._current_request is None:
            handler._task_handler.cancel()
