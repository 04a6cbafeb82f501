"""The description of a move: which messages, from where to where, and how their bytes change; its limits; its ends.

Checks of the ends come before anything is received: each refusal says what to do. A namespace is asked only for its
entities, its tier and its filters. Without permission, the safer of two values is assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from sbpair import backlog
from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.errors import (
    AccessError,
    EntityMissing,
    NetworkRefused,
    NotAuthorized,
    SbpairError,
    ServiceRefused,
    Unavailable,
    UsageError,
)
from sbpair.model.entities import Topic, subscription_of
from sbpair.model.pair import Endpoint, Ends, Pair
from sbpair.move.events import QueuesFound
from sbpair.move.message.dead_letters import dead_letter_path, is_dead_letter_path, parent_path
from sbpair.move.message.route import BACKLOG, BACKLOG_DEAD_LETTERS, MessageForm, TimeToLive
from sbpair.move.rate_limit import RateLimiter, credits_of
from sbpair.timespan import TICKS_PER_MS, ticks

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.azure.destinations import DestinationCache

log = logging.getLogger(__name__)

DEFAULT_TIER = "Standard"
ASSUMED_FILTERS = 1  # filters per message, assumed without permission to count them
CHECK_SOURCE = "check its name and namespace; of a topic, name a subscription: TOPIC/subscriptions/NAME"
MAX_FORWARDS = 200
"""Entities that are read to find a forward that leads back to the source."""


class EntityAddress(NamedTuple):
    """A queue, topic, subscription or dead-letter queue. `side` is as the user named it, or would."""

    side: str
    endpoint: Endpoint
    path: str

    def __str__(self) -> str:
        return f"{self.side}:{self.path}"

    @property
    def alone(self) -> Ends:
        """Its namespace as both ends."""
        return Ends(self.endpoint.name, self.endpoint, self.endpoint)

    @property
    def is_dead_letters(self) -> bool:
        return is_dead_letter_path(self.path)

    @property
    def parent(self) -> str:
        """The path of the entity whose dead-letter queue this is; any other path unchanged."""
        return parent_path(self.path)

    def equals(self, other: EntityAddress) -> bool:
        """Return whether both are one entity: the service ignores the case of paths."""
        return self.same_namespace(other) and self.path.lower() == other.path.lower()

    def same_namespace(self, other: EntityAddress) -> bool:
        return self.endpoint.authority.lower() == other.endpoint.authority.lower()


@dataclass(frozen=True, slots=True)
class MoveSpec:
    """A move between two ends: of one `source`, or of the backlog queues or their dead letters if that is None.

    `command` is its name in the list of runs, `names` are the ends as a user names them. `sessions` is whether the
    source has sessions. A run ends after `max_messages` were sent. With `keeps_refused`, a message that the destination
    refuses stays in its source, and so does one that was enqueued within the last `duplicate_window_ms`: the
    destination may know its id.
    """

    ends: Ends
    command: str = "syphon"
    form: MessageForm = BACKLOG
    source: str | None = None
    sessions: bool = False
    max_messages: int | None = None
    keeps_refused: bool = False
    duplicate_window_ms: int = 0
    names: tuple[str, str] | None = None

    @property
    def takes_dead_letters(self) -> bool:
        """Whether it moves the dead letters of all backlog queues."""
        return self.source is None and self.form == BACKLOG_DEAD_LETTERS

    @property
    def words(self) -> tuple[str, str]:
        """The words for its source and its destination in messages."""
        return ("backlog", "primary") if self.source is None else ("source", "destination")

    @property
    def leased(self) -> tuple[Ends, str | None]:
        """The pair, or the source at the secondary end, that no other mover may move at the same time.

        For the active messages of a backlog queue that is the whole pair: beside a syphon, they would lose their order.
        The dead letters of all backlog queues of a pair are one source.
        """
        source, ends = self.source, self.ends
        if source is not None:
            primary = backlog.primary_of(source)
            if primary is None:
                return ends, source
            ends = replace(ends, primary=replace(ends.primary, name=primary))
        has_dead_letters = self.takes_dead_letters if source is None else is_dead_letter_path(source)
        return ends, dead_letter_path(f"{backlog.prefix(ends.primary.name)}*") if has_dead_letters else None

    async def find_sources(self, pair: Ends, control: AtomNamespace) -> QueuesFound:
        """Return the source, and whether its messages can be counted; if it is None, the queues of the pair's backlog.

        Raises EntityMissing.
        """
        if self.source is None:
            found = await find_backlog_queues(cast("Pair", pair), control)
            if not self.takes_dead_letters:
                return found
            return replace(found, queues=tuple(map(dead_letter_path, found.queues)), stranded=())
        try:
            await control.counts(parent_path(self.source))
        except NotAuthorized:
            log.info("no Manage claim on the namespace of %s", self.source)
            return QueuesFound((self.source,), (), managed=False)
        return QueuesFound((self.source,), (), managed=True)


async def find_backlog_queues(pair: Pair, control: AtomNamespace) -> QueuesFound:
    """Return every queue under the prefix, stranded ones included; without the Manage claim, 0 to the count - 1."""
    primary = pair.primary.name
    wanted = [backlog.queue_path(primary, index) for index in range(pair.backlog_queues)]
    try:
        states = await control.list_under(backlog.prefix(primary))
    except NotAuthorized:
        log.info("no Manage claim on %s: using queues 0 to %d", pair.secondary.name, pair.backlog_queues - 1)
        return QueuesFound(tuple(wanted), (), managed=False)
    queues = sorted((state.spec.path for state in states), key=lambda path: _sort_key(primary, path))
    known = {path.lower() for path in wanted}
    return QueuesFound(tuple(queues), tuple(path for path in queues if path.lower() not in known), managed=True)


def none_found(pair: Ends) -> EntityMissing:
    """Return the error of a pair without a backlog queue."""
    return EntityMissing(
        f"{pair.secondary.name} has no backlog queue of {pair.primary.name}",
        entity=backlog.prefix(pair.primary.name),
        hint="check the names of both namespaces, or create the queues with sbpair provision",
    )


def _sort_key(primary: str, path: str) -> tuple[bool, int, str]:
    index = backlog.index_of(primary, path)
    return (index is None, index or 0, path)


# The ends


def check_names(source: EntityAddress, destination: EntityAddress) -> None:
    """Raise UsageError for ends that no service would accept, or that would feed each other."""
    if destination.is_dead_letters:
        hint = f"move to {destination.parent}, or to a queue that you create for them"
        raise UsageError(f"{destination.path} is a dead-letter queue: nothing can be sent to it", hint=hint)
    if subscription_of(destination.path):
        hint = "name a queue; or a topic, which gives its messages to every subscription"
        raise UsageError(f"{destination.path} is a subscription, which accepts no messages", hint=hint)
    if source.equals(destination):
        hint = "name another destination; --dead-letters moves the dead letters of the source"
        raise UsageError(f"{source.path} is both the source and the destination", hint=hint)
    subscription = subscription_of(source.path)
    if subscription and not source.is_dead_letters and destination.equals(source._replace(path=subscription.topic)):
        raise _leads_back([destination.path, source.path])


class CheckedEnds(NamedTuple):
    """Facts of both ends. `sessions` is whether the source has sessions.

    `duplicate_window_ms` is how long the destination remembers message ids to detect duplicates: 0 if it does not, None
    without the Manage claim.
    """

    sessions: bool
    duplicate_window_ms: int | None = 0


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
    async with open_atom(destination.endpoint) as control:
        if source.same_namespace(destination) and not source.is_dead_letters:
            await _check_forwards(control, source.path, destination.path)
        try:
            found = await control.queue_or_topic(destination.path)
            if isinstance(found, Topic) and not allow_discard:
                await _check_subscriptions(control, found)
        except (AccessError, Unavailable) as error:
            log.info("%s is not known: %s", destination.path, error.message)
            return CheckedEnds(has_sessions, None)
    window = ticks(found.duplicate_detection_history_time_window)
    return CheckedEnds(has_sessions, window // TICKS_PER_MS if found.requires_duplicate_detection else 0)


@contextmanager
def _named(address: EntityAddress, hint: str) -> Iterator[None]:
    try:
        yield
    except EntityMissing as error:
        text = f"{address.path} does not exist in {address.endpoint.name}"
        raise EntityMissing(text, entity=error.entity, hint=hint) from error


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


async def _check_forwards(control: AtomNamespace, source: str, destination: str) -> None:
    """Follow forwards from the destination. Raise UsageError if one leads to the source."""
    waiting, seen = [[destination]], {destination.lower()}
    while waiting and len(seen) < MAX_FORWARDS:
        chain = waiting.pop(0)
        try:
            found = await _next_entities(control, chain[-1])
        except (AccessError, EntityMissing, Unavailable) as error:
            log.info("the forwards of %s are not known: %s", chain[-1], error.message)
            continue
        for path in found:
            if path.lower() == source.lower():
                raise _leads_back([*chain, path])
            if path.lower() not in seen:
                seen.add(path.lower())
                waiting.append([*chain, path])


async def _next_entities(control: AtomNamespace, path: str) -> list[str]:
    """Return where an entity gives its messages: a subscription's are named after their topic."""
    subscription = subscription_of(path)
    if subscription is not None:
        known = await control.read(subscription)
        return [known.forward_to] if known.forward_to else []
    found = await control.queue_or_topic(path)
    if isinstance(found, Topic):
        return [f"{path}/subscriptions/{each.name}" for each in await control.subscriptions(path)]
    return [found.forward_to] if found.forward_to else []


def _leads_back(chain: list[str]) -> UsageError:
    way = " -> ".join(chain)
    return UsageError(
        f"messages would come back to the source: {way}", hint="name a destination that does not lead to the source"
    )


# Limits


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """Limits that the user sets: `rate` in messages a second, `credits` in credits a second, infinity for no limit.

    Without `credits`, a run spends half of a Standard namespace's credits, and is not limited in a Premium one.
    """

    rate: float | None = None
    credits: float | None = None
    ttl: TimeToLive = TimeToLive.ORIGINAL


@dataclass(frozen=True, slots=True)
class PairTiers:
    """None without permission to ask: Standard is assumed."""

    primary: str | None = None
    secondary: str | None = None


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """Limits that a run keeps: messages a second, and credits a second of each namespace. None is no limit."""

    rate: float | None = None
    primary_credits: float | None = None
    secondary_credits: float | None = None

    def shared(self) -> EffectiveLimits:
        """Return the limits of a run whose ends are one namespace, with one supply of credits."""
        half = self.primary_credits and self.primary_credits / 2
        return replace(self, primary_credits=half, secondary_credits=half)

    def rate_limiter(self, now: float) -> RateLimiter | None:
        """Create the limiter that all workers of a run share; None without any limit."""
        if self == EffectiveLimits():
            return None
        return RateLimiter(now, rate=self.rate, primary=self.primary_credits, secondary=self.secondary_credits)


def effective_limits(limits: MoveLimits, tiers: PairTiers) -> EffectiveLimits:
    return EffectiveLimits(
        limits.rate, credits_of(limits.credits, tiers.primary), credits_of(limits.credits, tiers.secondary)
    )


async def tier_of(control: DestinationCache) -> str | None:
    """Return a namespace's tier; None without permission or an answer."""
    try:
        return await control.tier()
    except (NetworkRefused, NotAuthorized, Unavailable) as error:
        log.info("the tier is not known: %s", error.message)
        return None


@dataclass
class SendCosts:
    """Credits of the primary per message, by destination: one, and one for each filter of its subscriptions."""

    control: DestinationCache
    may_ask: bool = True

    async def of(self, destination: str) -> int:
        """Return the credits of one message. Never raises: it assumes one filter instead."""
        try:
            if self.may_ask:
                return 1 + ((await self.control.get(destination)).filters or 0)
        except NotAuthorized:
            self.may_ask = False
        except SbpairError as error:
            log.info("the filters of %s are not known: %s", destination, error.message)
        return 1 + ASSUMED_FILTERS
