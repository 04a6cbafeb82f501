"""The description of a move: which messages, from where to where, and how their bytes change; and its limits.

Asks a namespace only for its queues, its tier and its filters. Without permission, it assumes the safer of two values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from sbpair import backlog
from sbpair.errors import EntityMissing, NetworkRefused, NotAuthorized, SbpairError, Unavailable
from sbpair.model.pair import Endpoint, Ends, Pair
from sbpair.move.events import QueuesFound
from sbpair.move.message.dead_letters import dead_letter_path, is_dead_letter_path, parent_path
from sbpair.move.message.route import BACKLOG, BACKLOG_DEAD_LETTERS, MessageForm, TimeToLive
from sbpair.move.rate_limit import RateLimiter, credits_of

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.azure.destinations import DestinationCache

log = logging.getLogger(__name__)

DEFAULT_TIER = "Standard"
ASSUMED_FILTERS = 1  # filters per message, assumed without permission to count them


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
