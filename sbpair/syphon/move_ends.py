"""The ends of a move as a user names them, and their checks before anything is received.

Each refusal says what to do. Without permission, the safer of two values is assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.errors import AccessError, EntityMissing, SbpairError, ServiceRefused, Unavailable, UsageError
from sbpair.model.entities import Queue, Subscription, Topic, subscription_of
from sbpair.model.message_state import ASIDE, MessageState, is_dead_letter_path, parent_path, path_of
from sbpair.model.pair import Endpoint, Ends
from sbpair.timespan import TICKS_PER_DAY, TICKS_PER_MS, TIMESPAN_MAX_DAYS, ticks

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace

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

    def same_namespace(self, other: EntityAddress) -> bool:
        return self.endpoint.authority.lower() == other.endpoint.authority.lower()


def check_names(source: EntityAddress, destination: EntityAddress) -> None:
    """Raise UsageError for ends that no service would accept, or that would feed each other."""
    if destination.is_dead_letters:
        hint = f"move to {destination.parent}, or to a queue that you create for them"
        raise UsageError(f"{destination.path} is a dead-letter queue: nothing can be sent to it", hint=hint)
    if subscription_of(destination.path):
        hint = "name a queue; or a topic, which gives its messages to every subscription"
        raise UsageError(f"{destination.path} is a subscription, which accepts no messages", hint=hint)
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
