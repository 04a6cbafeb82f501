"""Looking at the messages of a queue: page by page, from the first on.

Nothing is locked, settled or received, and so no delivery count is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.azure.retry import attempt
from sbpair.errors import ProtocolError, Throttled
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import Facts

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient, GetToken
    from sbpair.model.pair import Endpoint
    from sbpair.model.queues import Retrying
    from sbpair.move.rate_limit import RateLimiter

PAGE = 250
"""Messages asked for in one look; the service gives fewer as it sees fit."""

MAX_BUSY = 10
"""How often in a row the service may say that it is busy."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """Event: so many messages of a queue have been looked at so far."""

    queue: str
    messages: int


class PeekedMessage(NamedTuple):
    """One message. What is no message at all has no sections, and its facts say why."""

    facts: Facts
    sections: Sections


@dataclass(slots=True)
class PeekPosition:
    """How far a queue has been looked at. In a partitioned queue, the partition is the highest part of a number.

    `ended` is whether there was nothing more; `truncated` whether an unreadable message hid what may lie behind it.
    """

    queue: str
    start: int = 0
    highest: int = -1
    messages: int = 0
    ended: bool = False
    truncated: bool = False

    def next_page(self) -> bool:
        """False where this page did not say where the next one begins."""
        moved = self.highest >= self.start
        self.start = self.highest + 1
        return moved


OnMessage = Callable[[PeekedMessage], Awaitable[None]]


@dataclass(frozen=True)
class Peeker:
    """Looks into the queues of one namespace, no faster than `pace`, each over a connection of its own.

    `most` is how many messages of a queue are looked at; None for all of them.
    """

    endpoint: Endpoint
    get_token: GetToken | None
    rate_limiter: RateLimiter
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]
    on_event: Callable[[Peeked | Retrying], object]
    limit: int | None = None

    async def peek(self, position: PeekPosition, on_message: OnMessage) -> None:
        """Show `on_message` each message, once, in the order of the queue; broken off, it goes on from where it was.

        Raises EntityMissing, AccessError, Unavailable.
        """
        what = f"look at {position.queue}"
        await attempt(what, lambda: self._pages(position, on_message), sleep=self.sleep, on_event=self.on_event)

    async def _pages(self, position: PeekPosition, on_message: OnMessage) -> None:
        async with connect(self.endpoint, get_token=self.get_token) as client:
            while wanted := self._wanted(position):
                page = await self._page(client, position, wanted)
                if not page:
                    position.ended = True
                    return
                for payload in page:
                    await on_message(_read_message(position, payload))
                self.on_event(Peeked(position.queue, position.messages))
                if not position.next_page():
                    position.truncated = True
                    return
            position.ended = not await self._page(client, position, 1)

    def _wanted(self, position: PeekPosition) -> int:
        return PAGE if self.limit is None else min(PAGE, max(0, self.limit - position.messages))

    async def _page(self, client: AmqpClient, position: PeekPosition, wanted: int) -> list[bytes]:
        """The next messages, as soon as the service has time for it."""
        for _ in range(MAX_BUSY):
            await self.sleep(self.rate_limiter.delay(self.clock(), 1))
            try:
                page = await client.peek(position.queue, position.start, wanted)
            except Throttled as error:
                busy = error
                self.rate_limiter.on_busy(self.clock())
            else:
                self.rate_limiter.count_sent(self.clock(), len(page))
                return page
        raise busy


def _read_message(position: PeekPosition, payload: bytes) -> PeekedMessage:
    position.messages += 1
    try:
        sections, facts = read_facts(position.queue, payload)
    except ProtocolError as error:
        return PeekedMessage(Facts(position.queue, 0, 0, None, None, size=len(payload), flaw=error.message), Sections())
    position.highest = max(position.highest, facts.sequence_number)
    return PeekedMessage(facts, sections)
