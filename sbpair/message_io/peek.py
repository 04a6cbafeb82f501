"""Peeking for a command: messages of queues and subscriptions in order, and dead letters by cause.

Invariant: nothing is locked, settled or received, so no delivery count rises.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

from sbpair.amqp.message import Properties
from sbpair.amqp.types import Map
from sbpair.amqp_client.client import GetToken, connect
from sbpair.errors import SbpairError, ServiceRefused, UsageError
from sbpair.management.calls import gather_all
from sbpair.message_io.message_fields import readable
from sbpair.model.message_state import MessageState, dead_letters_of, split_state
from sbpair.model.sequence_ranges import MAX_SEQUENCE
from sbpair.move.message.dead_letters import cause_in
from sbpair.move.message.envelope import ACTIVE, DEFERRED, SCHEDULED, dead_letter_source, message_state
from sbpair.move.peek.peeker import OnMessage, Peeked, PeekedMessage, Peeker, PeekPosition

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Ends
    from sbpair.model.retries import Retrying
    from sbpair.move.filter import MessageFilter
    from sbpair.move.message.route import Facts
    from sbpair.replication.keys import KeyRule, Received
    from sbpair.syphon.move_ends import EntityAddress

    OnEvent = Callable[[Peeked | Retrying], object]

QUEUES_AT_ONCE = 8
COUNT_SECONDS = 10.0
SUBSCRIPTIONS = "/subscriptions/"
SUBSCRIPTION_HINT = (
    "read a subscription: sbpair peek TOPIC/subscriptions/NAME, sbpair receive TOPIC --subscription NAME"
)


class PeekSource(NamedTuple):
    """A queue, subscription or dead-letter queue of one of two `Ends`: the destination if `side` is primary."""

    side: str
    path: str


Keep = Callable[["PeekedMessage"], bool]


Show = Callable[[PeekSource, "PeekedMessage"], object]


@dataclass(slots=True)
class PeekResult:
    """Peeked messages with their sources, unless they were shown at once; `count` is how many.

    `complete`: no more follow. `hidden` queues have an unreadable message.
    """

    messages: list[tuple[PeekSource, PeekedMessage]] = field(default_factory=list)
    count: int = 0
    complete: bool = True
    hidden: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Dead letters of an entity with the same reason and destination; at least so many unless `exact`."""

    queue: str
    reason: Annotated[str | None, "Reason", {"examples": ["DestinationNotFound"]}]
    destination: Annotated[str | None, "Destination, or where it died before it was forwarded; null if unknown"]
    messages: Annotated[int, "Dead letters, at least so many if exact is false"]
    oldest_seconds: Annotated[float | None, "Age of the oldest; null if unknown"]
    exact: Annotated[bool, "Whether messages is exact"]


async def peek_messages(
    ends: Ends,
    sources: Sequence[PeekSource],
    *,
    limit: int,
    start: int = 0,
    end: int = MAX_SEQUENCE,
    keep: Keep | None = None,
    show: Show | None = None,
    on_event: OnEvent = lambda _event: None,
) -> PeekResult:
    """Return up to `limit` messages with numbers from `start` to `end`, of one source after the other.

    With `keep`, only messages that it accepts; it peeks until there are `limit` of them. `show` is called with each
    message as it comes, and none is kept.

    Raises EntityMissing, AccessError, Unavailable, and the errors of `show`.
    """
    result = PeekResult()
    async with open_peek(ends, on_event) as peek:
        for source in sources:
            position = PeekPosition(source.path, start)
            take = _taker(result, source, limit, keep, show, position, end)
            with suppress(_LimitReached):
                await peek(source, position, None if keep else limit - result.count, take)
            result.complete = result.complete and position.ended
            if position.truncated:
                result.hidden.append(source.path)
            elif not position.ended:
                break
    return result


async def count_messages(ends: Ends, source: PeekSource) -> int | None:
    """Return the number of messages that a source has, roughly; None if unknown, as without the Manage claim."""
    from sbpair.azure.atom import open_atom

    path, state = split_state(source.path)
    if SUBSCRIPTIONS in path.lower():
        return None
    try:
        async with open_atom(endpoint_of(ends, source), call_seconds=COUNT_SECONDS) as control:
            counts = await control.counts(path)
    except SbpairError:
        return None
    if state != MessageState.ACTIVE:
        return counts.of(state)
    return counts.total - counts.dead_letter - counts.transfer - counts.transfer_dead_letter


@dataclass(slots=True)
class ChosenCount:
    """Messages that a run takes, with those that others have locked. `until_ms` is when the last one of all came."""

    messages: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    until_ms: int = 0

    def add(self, facts: Facts) -> None:
        self.messages += 1
        self.bytes += facts.size
        self.oldest_ms = self.oldest_ms or facts.enqueued_at
        self.newest_ms = facts.enqueued_at


async def count_chosen(
    source: EntityAddress, where: MessageFilter | None, limit: int | None, on_event: OnEvent
) -> ChosenCount:
    """Count the messages of a source for which a filter is true, up to `limit`. Raises as `peek_messages` does."""
    found, clock = ChosenCount(), source.endpoint.clock
    aside = _ASIDE.get(source.state, ACTIVE)

    async def take(message: PeekedMessage) -> None:
        facts, sections = message
        if message_state(sections) != aside:
            return
        found.until_ms = max(found.until_ms, facts.enqueued_at)
        if where is None or where.matches_peeked(facts, sections, clock.now_ms()):
            found.add(facts)
            if found.messages == limit:
                raise _LimitReached

    async with open_peek(source.alone, on_event) as peek:
        with suppress(_LimitReached):
            await peek(PeekSource(source.side, source.path), PeekPosition(source.path), None, take)
    return found


_ASIDE = {MessageState.SCHEDULED: SCHEDULED, MessageState.DEFERRED: DEFERRED}


def first_copies(rule: KeyRule, on_duplicate: Callable[[], object], among: Keep | None = None) -> Keep:
    """Return a function that accepts only the first message of each key, and those without a key.

    Messages that `among` does not accept do not count.
    """
    seen: set[str] = set()

    def keep(message: PeekedMessage) -> bool:
        if among is not None and not among(message):
            return False
        properties = readable(message.sections.read_properties, Properties())
        named = SimpleNamespace(
            raw_amqp_message=SimpleNamespace(properties=properties),
            application_properties=readable(message.sections.read_application_properties, Map()),
        )
        key = rule.of(cast("Received", named))
        if key is None:
            return True
        if key in seen:
            on_duplicate()
            return False
        seen.add(key)
        return True

    return keep


def matching(where: MessageFilter) -> Keep:
    """Return a function that accepts only messages for which a filter is true now."""
    where.is_shown = True
    return lambda message: where.matches_peeked(*message, int(time.time() * 1000))


async def count_dead_letters(
    ends: Ends,
    sources: Sequence[PeekSource],
    *,
    limit: int,
    keep: Keep | None = None,
    on_event: OnEvent = lambda _event: None,
) -> list[DeadLetterCount]:
    """Count up to `limit` messages of each dead-letter queue by cause. With `keep`, only those that it accepts.

    Raises EntityMissing, AccessError, Unavailable.
    """
    slots = asyncio.Semaphore(QUEUES_AT_ONCE)
    found: dict[str, list[DeadLetterCount]] = {}

    async def group(peek: Peek, source: PeekSource) -> None:
        messages: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)

        async def take(message: PeekedMessage) -> None:
            if keep is None or keep(message):
                place = message.facts.path or dead_letter_source(message.sections)
                messages[cause_in(message.sections).reason, place].append(message.facts.enqueued_at)

        async with slots:
            position = PeekPosition(source.path)
            await peek(source, position, limit, take)
        queue = dead_letters_of(source.path)
        found[queue] = [
            DeadLetterCount(queue, *cause, len(times), _age(min(times)), position.ended)
            for cause, times in messages.items()
        ]

    async with open_peek(ends, on_event) as peek:
        await gather_all(group(peek, source) for source in sources)
    return [each for source in sources for each in found[dead_letters_of(source.path)]]


def _age(at_ms: int) -> float | None:
    return max(0.0, time.time() - at_ms / 1000) if at_ms > 0 else None


Peek = Callable[[PeekSource, PeekPosition, "int | None", "OnMessage"], Awaitable[None]]
"""Peeks a source from a position on, up to a limit of messages."""


@asynccontextmanager
async def open_peek(ends: Ends, on_event: OnEvent, *, bodies: bool = True) -> AsyncIterator[Peek]:
    """Open a function that peeks. Without `bodies`, the service may leave them out."""
    from sbpair.azure.credentials import open_tokens

    async with open_tokens() as get_token:

        async def peek(source: PeekSource, position: PeekPosition, limit: int | None, on_message: OnMessage) -> None:
            endpoint = endpoint_of(ends, source)
            peeker = Peeker(endpoint, get_token, asyncio.sleep, on_event, limit, bodies=bodies)
            await peeker.peek(position, on_message)
            if not (position.messages or position.start):
                await _check_no_topic(endpoint, get_token, source.path)

        yield peek


async def _check_no_topic(endpoint: Endpoint, get_token: GetToken | None, path: str) -> None:
    """Raise UsageError for a topic: a peek finds no messages there, but a link is refused."""
    try:
        async with connect(endpoint, get_token=get_token) as client:
            (await client.receiver(path)).close()
    except SbpairError as error:
        if isinstance(error, ServiceRefused) and "topic" in error.message.lower().replace(path.lower(), ""):
            raise UsageError(f"{path} is a topic, which holds no messages", hint=SUBSCRIPTION_HINT) from None


class _LimitReached(Exception):
    """As many messages are accepted as wanted, or no wanted ones follow."""


def _taker(
    result: PeekResult,
    source: PeekSource,
    limit: int,
    keep: Keep | None,
    show: Show | None,
    position: PeekPosition,
    end: int,
) -> OnMessage:
    async def take(message: PeekedMessage) -> None:
        if message.facts.sequence_number > end:
            position.ended = True
            raise _LimitReached
        if keep is None or keep(message):
            result.count += 1
            result.messages.append((source, message)) if show is None else show(source, message)
            if keep is not None and result.count == limit:
                raise _LimitReached

    return take


def endpoint_of(ends: Ends, source: PeekSource) -> Endpoint:
    return ends.destination if source.side == "primary" else ends.source
