"""Peeks messages of a queue, page by page from the first.

Nothing is locked, settled or received, so delivery counts stay.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.errors import ProtocolError, Throttled
from sbpair.model.retries import Retrying, attempt
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import BACKLOG, Facts, MessageForm
from sbpair.move.rate_limit import RateLimiter

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

PAGE = 250
"""Messages requested per peek; the service may return fewer."""

MAX_BUSY = 10
"""Limit of consecutive server-busy answers."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """Event: number of messages of a queue peeked so far."""

    queue: str
    messages: int


class PeekedMessage(NamedTuple):
    """One message. Bytes that are not a message have no sections, and facts with a flaw."""

    facts: Facts
    sections: Sections


@dataclass(slots=True)
class PeekPosition:
    """The position in a queue. In a partitioned queue, the highest bits of a number are the partition.

    `ended`: no messages follow. `truncated`: an unreadable message hides the ones after it.
    """

    queue: str
    start: int = 0
    highest: int = -1
    messages: int = 0
    ended: bool = False
    truncated: bool = False

    def next_page(self) -> bool:
        """Move to the next page. Return False if this page did not reveal where it begins."""
        moved = self.highest >= self.start
        self.start = self.highest + 1
        return moved


OnMessage = Callable[[PeekedMessage], Awaitable[None]]


@dataclass
class Peeker:
    """Peeks queues of one namespace, each over a connection of its own.

    `limit` is the maximum of messages per queue, `credits` those of all queues a second; None for no limit. Without
    `bodies`, the service may leave them out.
    """

    endpoint: Endpoint
    get_token: GetToken | None
    sleep: Callable[[float], Awaitable[object]]
    on_event: Callable[[Peeked | Retrying], object]
    limit: int | None = None
    form: MessageForm = BACKLOG
    credits: float | None = None
    bodies: bool = True
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._rate_limiter = RateLimiter(self.clock(), destination=self.credits)

    async def peek(self, position: PeekPosition, on_message: OnMessage) -> None:
        """Call `on_message` for each message, once, in queue order; a retry continues at `position`.

        Raises EntityMissing, AccessError, Unavailable.
        """
        what = f"peek {position.queue}"
        await attempt(what, lambda: self._pages(position, on_message), sleep=self.sleep, on_event=self.on_event)

    async def _pages(self, position: PeekPosition, on_message: OnMessage) -> None:
        async with connect(self.endpoint, get_token=self.get_token) as client:
            while wanted := self._wanted(position):
                page = await self._page(client, position, wanted)
                if not page:
                    position.ended = True
                    return
                for payload in page:
                    seen = read_peeked(position.queue, payload, self.form)
                    position.messages += 1
                    position.highest = max(position.highest, seen.facts.sequence_number or -1)
                    await on_message(seen)
                self.on_event(Peeked(position.queue, position.messages))
                if not position.next_page():
                    position.truncated = True
                    return
            position.ended = not await self._page(client, position, 1)

    def _wanted(self, position: PeekPosition) -> int:
        return PAGE if self.limit is None else min(PAGE, max(0, self.limit - position.messages))

    async def _page(self, client: AmqpClient, position: PeekPosition, wanted: int) -> list[bytes]:
        """Return the next messages, waiting while the service is busy."""
        for _ in range(MAX_BUSY):
            await self.sleep(self._rate_limiter.delay(self.clock(), 1))
            try:
                page = await client.peek(position.queue, position.start, wanted, bodies=self.bodies)
            except Throttled as error:
                busy = error
                self._rate_limiter.on_busy(self.clock())
            else:
                self._rate_limiter.count_sent(self.clock(), len(page))
                return page
        raise busy


def read_peeked(queue: str, payload: bytes, form: MessageForm) -> PeekedMessage:
    """Return a message; one that cannot be read has no number."""
    try:
        sections, facts = read_facts(queue, payload, form)
    except ProtocolError as error:
        return PeekedMessage(Facts(queue, 0, 0, None, None, size=len(payload), flaw=error.message), Sections())
    return PeekedMessage(facts, sections)
