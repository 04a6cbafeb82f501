"""The ends of a move as a user names them, and their checks before anything is received.

Each refusal says what to do. Without permission, the safer of two values is assumed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.errors import (
    AccessError,
    EntityMissing,
    SbpairError,
    ServiceRefused,
    Unavailable,
    UsageError,
)
from sbpair.model.entities import Queue, Subscription, Topic, subscription_of
from sbpair.model.message_state import ASIDE, MessageState, is_dead_letter_path, parent_path, path_of
from sbpair.model.pair import Endpoint, Ends
from sbpair.model.sequence_ranges import MAX_SEQUENCE
from sbpair.move.message.envelope import (
    ACTIVE,
    SCHEDULED,
    dead_letter_source,
    message_state,
)
from sbpair.move.message.route import kept_for
from sbpair.move.peek.peeker import PeekedMessage, Peeker, PeekPosition
from sbpair.timespan import TICKS_PER_DAY, TICKS_PER_MS, TIMESPAN_MAX_DAYS, ticks

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.retries import Retrying
    from sbpair.move.filter import MessageFilter
    from sbpair.move.message.route import Facts, MessageForm
    from sbpair.move.peek.peeker import OnMessage, Peeked
    from sbpair.syphon.run_request import RunRequest

log = logging.getLogger(__name__)

CHECK_SOURCE = "check its name and namespace; of a topic, name a subscription: TOPIC/subscriptions/NAME"


class EntityAddress(NamedTuple):
    """The messages of a queue, topic or subscription in a `state`. `side` is as the user named it, or would.

    `path` is where they are received: that of a dead-letter queue has its suffix, and its `state`.
    """

    side: str
    endpoint: Endpoint
    path: str
    state: MessageState = MessageState.ACTIVE

    def __str__(self) -> str:
        return f"{self.side}:{self.path}{f' ({self.state})' if self.state in ASIDE else ''}"

    @property
    def alone(self) -> Ends:
        """Its namespace as both ends."""
        return Ends(name=self.endpoint.name, source=self.endpoint, destination=self.endpoint)

    @property
    def is_dead_letters(self) -> bool:
        return is_dead_letter_path(self.path)

    @property
    def parent(self) -> str:
        """The path of the entity whose dead-letter queue this is; any other path unchanged."""
        return parent_path(self.path)

    def in_state(self, state: MessageState) -> EntityAddress:
        """Return the messages of the same entity in another state."""
        return self._replace(path=path_of(self.parent, state), state=state)

    def equals(self, other: EntityAddress) -> bool:
        """Return whether both are one entity: the service ignores the case of paths."""
        return self.same_namespace(other) and self.path.lower() == other.path.lower()

    def comes_from(self, other: EntityAddress) -> bool:
        """Return whether these are dead letters of a queue, or of a topic's subscription."""
        subscription = subscription_of(self.parent)
        return self.is_dead_letters and other.equals(
            self._replace(path=subscription.topic if subscription else self.parent)
        )

    def same_namespace(self, other: EntityAddress) -> bool:
        return self.endpoint.authority.lower() == other.endpoint.authority.lower()


def check_accepts(destination: EntityAddress) -> None:
    """Raise UsageError for a destination to which nothing can be sent."""
    if destination.is_dead_letters:
        hint = f"name {destination.parent}, or a queue that you create for them"
        raise UsageError(f"{destination.path} is a dead-letter queue: nothing can be sent to it", hint=hint)
    if subscription_of(destination.path):
        hint = "name a queue; or a topic, which gives its messages to every subscription"
        raise UsageError(f"{destination.path} is a subscription, which accepts no messages", hint=hint)


def check_names(source: EntityAddress, destination: EntityAddress) -> None:
    """Raise UsageError for ends that no service would accept, or that would feed each other."""
    check_accepts(destination)
    if source.equals(destination) and source.state != MessageState.DEFERRED:
        hint = "name another destination; --dead-letters moves the dead letters of the source"
        raise UsageError(f"{source.path} is both the source and the destination", hint=hint)
    subscription = subscription_of(source.path)
    if subscription and not source.is_dead_letters and destination.equals(source._replace(path=subscription.topic)):
        raise _leads_back([destination.path, source.path])


class CheckedEnds(NamedTuple):
    """Facts of both ends. `sessions` is whether the source has sessions.

    `duplicate_window_ms` is how long the destination remembers message ids to detect duplicates: 0 if it does not, None
    without the Manage claim. `default_ttl_ms` is the source's default time to live: 0 for none, None without Manage.
    """

    sessions: bool
    duplicate_window_ms: int | None = 0
    default_ttl_ms: int | None = None


class CheckedReturn(NamedTuple):
    """Facts of a move back: of each destination, by origin, and which session would lose its order.

    With `origins`, these lead from each DeadLetterSource to where its messages go, as a MessageForm has them.
    """

    ends: CheckedEnds
    destinations: Mapping[EntityAddress, CheckedEnds]
    origins: Mapping[str, str] | None = None
    disorder: str = ""


async def check_return(
    source: EntityAddress,
    destination: EntityAddress | None,
    get_token: GetToken | None,
    where: MessageFilter | None,
    on_event: Callable[[Peeked | Retrying], object],
    *,
    all_subscriptions: bool = False,
    allow_discard: bool = False,
    watch: bool = False,
) -> CheckedReturn:
    """Check, as `check_ends`, dead letters that go back: to `destination`, or each as its DeadLetterSource says.

    Such an entity that does not exist is no error: the run names its messages. A `watch` gets later ones, too.
    """
    ends = await check_ends(source, destination, get_token, allow_discard=allow_discard)
    is_central = destination is None
    reader = DeadLetterReader(source.endpoint, source.endpoint, get_token, on_event, any_is_newer=is_central)

    def place(message: PeekedMessage) -> str | None:
        return dead_letter_source(message.sections) if is_central else source.parent

    found = await reader.origins([source.path], where, place, kept_for(source.parent))
    disorder = await reader.disorder(found)
    if watch and not disorder and await reader.needs_session(source.parent):
        disorder = f"dead letters that come later may have newer messages of their sessions in {source.parent}"
    if destination is not None:
        return CheckedReturn(ends, {destination: ends}, None, disorder)
    origins, destinations = dict[str, str](), dict[EntityAddress, CheckedEnds]()
    for path in found:
        subscription = subscription_of(path)
        origins[path] = path if subscription is None else subscription.topic if all_subscriptions else ""
        if origins[path]:
            address = source._replace(path=origins[path], state=MessageState.ACTIVE)
            check_names(source, address)
            with suppress(EntityMissing):
                destinations[address] = await check_ends(source, address, get_token, allow_discard=allow_discard)
    ends = next(iter(destinations.values()), ends)
    return CheckedReturn(ends, destinations, origins, disorder)


async def check_ends(
    source: EntityAddress,
    destination: EntityAddress | None,
    get_token: GetToken | None,
    *,
    allow_discard: bool = False,
) -> CheckedEnds:
    """Check that the destination, if it is known, accepts messages, and that the source gives them.

    A topic is refused that would drop all messages, unless `allow_discard`: that is known with Manage only.

    Raises EntityMissing, UsageError, AccessError, Unavailable; ServiceRefused for an entity that is disabled.
    """
    from sbpair.azure.atom import open_atom
    from sbpair.azure.destinations import forwarding_way

    if destination is not None:
        async with connect(destination.endpoint, get_token=get_token) as client:
            named = destination.path.lower() == source.parent.lower() and source.same_namespace(destination)
            with _named(destination, CHECK_SOURCE if named else "create it, or name another destination"):
                (await client.sender(destination.path)).close()
    async with connect(source.endpoint, get_token=get_token) as client:
        with _named(source, CHECK_SOURCE):
            has_sessions = await _needs_session(client, source.path)
    if destination is None:
        return CheckedEnds(has_sessions)
    async with open_atom(source.endpoint) as control:
        default_ms = await _default_ttl_ms(control, source.parent)
    async with open_atom(destination.endpoint) as control:
        if source.same_namespace(destination) and not source.is_dead_letters:
            name = source.path.lower()
            if way := await forwarding_way(control, destination.path, lambda path: path.lower() == name):
                raise _leads_back(way)
        try:
            found = await control.queue_or_topic(destination.path)
            if isinstance(found, Topic) and not allow_discard:
                await _check_subscriptions(control, found)
        except (AccessError, Unavailable) as error:
            log.info("%s is not known: %s", destination.path, error.message)
            return CheckedEnds(has_sessions, None, default_ms)
    window = ticks(found.duplicate_detection_history_time_window) // TICKS_PER_MS
    return CheckedEnds(has_sessions, window if found.requires_duplicate_detection else 0, default_ms)


async def alias_disorder(
    request: RunRequest, get_token: GetToken | None, on_event: Callable[[Peeked | Retrying], object]
) -> str:
    """Return which session a redrive of a backlog's dead letters would put out of order; "" for none."""
    from sbpair.azure.atom import open_atom
    from sbpair.syphon.sources import find_sources

    async with open_atom(request.ends.source) as control:
        queues = (await find_sources(request, control)).queues
    reader = DeadLetterReader(request.ends.source, request.ends.destination, get_token, on_event, by_time=True)

    def place(message: PeekedMessage) -> str | None:
        return message.facts.path and request.renames(message.facts.path.strip("/"))

    return await reader.disorder(await reader.origins(queues, request.where, place, request.form))


Origins = Mapping[str, Mapping[str, int]]
"""The sessions of dead letters, in lower case, by the entity that they go back to, with the first of each.

That is the lowest sequence number, or the earliest time where those of two queues do not compare.
"""


@dataclass(frozen=True, slots=True)
class DeadLetterReader:
    """Peeks dead letters of `source`, and the sessions that they go back to at `target`. Locks nothing.

    Numbers of two queues do not compare: with `by_time`, messages that were enqueued later are newer, and with
    `any_is_newer` all that are there.
    """

    source: Endpoint
    target: Endpoint
    get_token: GetToken | None
    on_event: Callable[[Peeked | Retrying], object]
    by_time: bool = False
    any_is_newer: bool = False

    async def origins(
        self,
        paths: Iterable[str],
        where: MessageFilter | None,
        place: Callable[[PeekedMessage], str | None],
        form: MessageForm,
    ) -> Origins:
        """Return where the messages go back to that a filter chooses, which `place` returns."""
        found: dict[str, dict[str, int]] = {}
        chosen = None if where is None else replace(where, chosen=0, failures=0, first_failure="")

        async def take(message: PeekedMessage) -> None:
            facts, sections = message
            if message_state(sections) != ACTIVE:
                return
            if chosen is not None and not chosen.matches_peeked(facts, sections, int(time.time() * 1000)):
                return
            if (path := place(message)) is None:
                return
            sessions = found.setdefault(path.lower(), {})
            if facts.session_id:
                session, first = facts.session_id.lower(), 0 if self.any_is_newer else self._at(facts)
                sessions[session] = min(sessions.get(session, MAX_SEQUENCE), first)

        for path in paths:
            with suppress(EntityMissing):
                await self._peek(self.source, path, 0, take, form, bodies=where is not None)
        return found

    async def disorder(self, origins: Origins) -> str:
        """Return which session would lose its order, as newer messages are there, or is unknown; "" for none.

        Nothing is known of subscriptions of a topic.
        """
        for path, sessions in origins.items():
            try:
                if sessions and (found := await self._newer(path, sessions)):
                    return found
            except SbpairError as error:
                return f"whether {path} has newer messages of a session is not known: {error.message}"
        return ""

    async def needs_session(self, path: str) -> bool:
        """Return whether an entity that messages go back to has sessions; False for one that holds none."""
        async with connect(self.target, get_token=self.get_token) as client:
            with suppress(EntityMissing, ServiceRefused, UsageError):
                return await _needs_session(client, path)
        return False

    async def _newer(self, path: str, sessions: Mapping[str, int]) -> str:
        if not await self.needs_session(path):
            return ""

        async def take(message: PeekedMessage) -> None:
            session = (message.facts.session_id or "").lower()
            is_newer = self._at(message.facts) > sessions.get(session, MAX_SEQUENCE)
            if is_newer and message_state(message.sections) != SCHEDULED:
                raise _Newer(session)

        try:
            start = 0 if self.by_time else min(sessions.values())
            await self._peek(self.target, path, start, take, kept_for(path), bodies=False)
        except _Newer as found:
            return f"session {found.args[0]!r} of {path} has newer messages"
        return ""

    def _at(self, facts: Facts) -> int:
        return facts.enqueued_at if self.by_time else facts.sequence_number

    async def _peek(
        self, endpoint: Endpoint, path: str, start: int, take: OnMessage, form: MessageForm, *, bodies: bool
    ) -> None:
        peeker = Peeker(endpoint, self.get_token, asyncio.sleep, self.on_event, form=form, bodies=bodies)
        await peeker.peek(PeekPosition(path, start), take)


class _Newer(Exception):
    """A session has a newer message than a dead letter of it."""


async def _default_ttl_ms(control: AtomNamespace, path: str) -> int | None:
    try:
        if subscription := subscription_of(path):
            names = {each.name.lower(): each for each in await control.subscriptions(subscription.topic)}
            found: Queue | Subscription | Topic = names[subscription.name.lower()]
        else:
            found = await control.queue_or_topic(path)
    except (SbpairError, KeyError) as error:
        log.info("the default time to live of %s is not known: %s", path, error)
        return None
    life_ms = ticks(found.default_message_time_to_live) // TICKS_PER_MS
    return life_ms if life_ms < TIMESPAN_MAX_DAYS * TICKS_PER_DAY // TICKS_PER_MS else 0


@contextmanager
def _named(address: EntityAddress, hint: str) -> Iterator[None]:
    try:
        yield
    except EntityMissing as error:
        name = address.endpoint.name
        text = f"{address.path} does not exist in {name}"
        raise EntityMissing(text, entity=address.path, namespace=name, hint=hint) from error


async def _check_subscriptions(control: AtomNamespace, topic: Topic) -> None:
    """Raise UsageError if no subscription of a topic has a rule: the service accepts its messages and drops them."""
    for each in await control.subscriptions(topic.path):
        if await control.rules(topic.path, each.name):
            return
    raise UsageError(
        f"{topic.path} has no subscription that accepts messages: the service would drop all of them",
        hint="create a subscription first; --allow-discard moves them all the same",
    )


async def _needs_session(client: AmqpClient, path: str) -> bool:
    """Open a receiver that gets nothing. Return whether only a receiver of sessions can."""
    try:
        (await client.receiver(path)).close()
    except ServiceRefused as error:
        text = error.message.partition(": ")[2].lower()
        if "session" in text:
            return True
        if "topic" in text:
            hint = f"name one of its subscriptions: {path}/subscriptions/NAME"
            raise UsageError(f"{path} is a topic, which holds no messages", hint=hint) from None
        if "forwarding" in text:
            hint = "name the entity that it forwards to; --dead-letters moves its dead letters"
            raise UsageError(
                f"{path} forwards its messages, so that nothing can be received from it", hint=hint
            ) from None
        raise
    return False


def _leads_back(chain: list[str]) -> UsageError:
    way = " -> ".join(chain)
    return UsageError(
        f"messages would come back to the source: {way}", hint="name a destination that does not lead to the source"
    )
