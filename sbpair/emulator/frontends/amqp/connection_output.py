"""The output of one AMQP connection: batched writes, and back-pressure while the peer does not read.

Output beyond OUTPUT_HIGH stops deliveries. Output beyond MAX_OUTPUT stops reading from the peer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.amqp.connection import Connection
    from sbpair.emulator.frontends.amqp.link_endpoint import LinkEndpoint
    from sbpair.emulator.frontends.amqp.request_links import RequestLink

OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304


class ConnectionOutput:
    """The writer of one connection. `blocked`: the peer does not read. Faults may replace `transport`.

    `store_changes` is called before each write. It returns False if what the output acknowledges cannot be stored: then
    the connection breaks, and nothing is written.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport, store_changes: Callable[[], bool]) -> None:
        self.blocked = False
        self.transport = transport
        self._connection = connection
        self._store_changes = store_changes
        self._loop = asyncio.get_running_loop()
        self._unwritten = 0
        self._flush_due = False
        self._to_answer: dict[RequestLink, None] = {}
        self._to_pull: dict[LinkEndpoint, None] = {}
        transport.set_write_buffer_limits(OUTPUT_HIGH)

    def count(self, size: int) -> None:
        """Count `size` bytes of pending output; write all of it if it is much."""
        self._unwritten += size
        if self._unwritten >= OUTPUT_HIGH:
            self.flush()

    def flush(self) -> None:
        self._flush_due = False
        self._unwritten = 0
        out = self._connection.take()
        if out and not self._store_changes():
            self.transport.abort()
        if self.transport.is_closing():
            # Nothing more can be sent.
            self.blocked = True
            return
        if not out:
            return
        self._connection.wrote(self._loop.time())
        self.transport.write(out)
        if self.blocked and self.transport.get_write_buffer_size() > MAX_OUTPUT:
            self.transport.pause_reading()

    def flush_soon(self) -> None:
        """Write the pending output at the end of this turn of the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def pull_soon(self, outgoing: LinkEndpoint) -> None:
        """Call `outgoing.pull` again after other connections had their turn."""
        if not self._to_pull:
            self._loop.call_soon(self._pull_all)
        self._to_pull[outgoing] = None

    def forget(self, outgoing: LinkEndpoint) -> None:
        """Cancel `pull_soon`: the link is closed."""
        self._to_pull.pop(outgoing, None)

    def _pull_all(self) -> None:
        outgoing, self._to_pull = self._to_pull, {}
        for link in outgoing:
            link.pull()
        if outgoing:
            self.flush()

    def pause_reading_for(self, requests: RequestLink) -> None:
        """Stop reading until the peer reads again, then call `requests.answer_pending`."""
        self._to_answer[requests] = None
        self.transport.pause_reading()

    def unblock(self) -> None:
        """Answer the requests that waited for the peer to read."""
        self.blocked = False
        waiting, self._to_answer = self._to_answer, {}
        for requests in waiting:
            requests.answer_pending()

    def resume_reading(self) -> None:
        """Read again, unless requests still wait to be answered."""
        if not self._to_answer:
            self.transport.resume_reading()
