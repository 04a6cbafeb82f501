"""A topic and its subscriptions: what is sent to the one is selected by the rules of the others.

Synchronous, knows no protocol. Both are queues by their engine: a topic holds what is scheduled and nothing else, a
subscription is sent to by its topic alone. A message is decoded once for all rules, if any rule asks, and its bytes are
shared by all that select it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.partitions import PartitionedMessages, Partitions
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.rules.rule import (
    CorrelationRuleFilter,
    RuleFailure,
    SqlRuleFilter,
    SubscriptionRule,
    all_plain,
    select,
)
from sbpair.emulator.entities.rules.view import MessageView
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.subqueue import CallSoon, SubQueue, call_now
from sbpair.emulator.entities.topic_description import (
    SubscriptionDescription,
    TopicDescription,
    check_subscription_name,
)
from sbpair.emulator.service_errors import EntityExists, EntityFull, EntityNotFound, NotAllowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.description import QueueDescription
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import Expel
    from sbpair.emulator.timers import Timers

MAX_RULES: Final = 2_000
MAX_SUBSCRIPTIONS: Final = 2_000
SEGMENT: Final = "Subscriptions"
NO_SESSION: Final = RuleFailure(
    "Session ID is null", "Session enabled entity doesn't allow a message whose session identifier is null."
)


class SubscriptionMessages(SubQueue):
    """The messages of a subscription, of which some are dead on arrival."""

    def __init__(self, clock: Clock, timers: Timers, *, lock_ms: int, expel: Expel, call_soon: CallSoon) -> None:
        super().__init__(clock, timers, lock_ms=lock_ms, expel=expel, call_soon=call_soon)
        self._bury = expel

    def bury(self, message: StoredMessage, failure: RuleFailure) -> None:
        """Straight to the dead letters, under a number of its own, without a moment in which it could be received."""
        self._sequence += 1
        message.sequence_number = self._sequence
        message.enqueued_at_ms = self.touched_ms = self._now()
        self._bury(message, failure.reason, failure.description)


class PartitionedSubscriptionMessages(PartitionedMessages, SubscriptionMessages):
    """Those of a subscription to a partitioned topic."""


class SessionSubscriptionMessages(SessionMessages, SubscriptionMessages):
    """Those of a subscription that requires sessions."""


class PartitionedSessionSubscriptionMessages(SessionMessages, PartitionedSubscriptionMessages):
    """And of one to a partitioned topic."""


class SubscriptionEntity(QueueEntity):
    """`name` is written as it was created. A change of its rules holds for messages sent from then on."""

    description: SubscriptionDescription
    messages: SubscriptionMessages

    def __init__(
        self,
        topic: TopicEntity,
        name: str,
        description: SubscriptionDescription,
        rule: SubscriptionRule,
        clock: Clock,
        timers: Timers,
        call_soon: CallSoon = call_now,
    ) -> None:
        self.topic = topic
        self.name = name
        self._rules: dict[str, SubscriptionRule] = {rule.name.lower(): rule}
        self._takes_all = all_plain([rule])
        super().__init__(f"{topic.path}/{SEGMENT}/{name}", description, clock, timers, call_soon)

    def _make_messages(self, clock: Clock, timers: Timers, lock_ms: int, call_soon: CallSoon) -> SubQueue:
        make = SubscriptionMessages if self.partitions is None else PartitionedSubscriptionMessages
        if self.description.requires_session:
            make = SessionSubscriptionMessages if self.partitions is None else PartitionedSessionSubscriptionMessages
        return make(clock, timers, lock_ms=lock_ms, expel=self._bury, call_soon=call_soon)

    def _make_partitions(self, description: QueueDescription) -> Partitions | None:
        del description
        return self.topic.partitions

    @property
    def max_message_bytes(self) -> int:
        return self.topic.max_message_bytes

    @property
    def last_used_ms(self) -> int:
        """What its topic publishes is no use of a subscription; what is received of it is."""
        drawn_ms = max(self.messages.drawn_ms, self.dead_letters.drawn_ms)
        return max(self.created_at_ms, self.updated_at_ms, drawn_ms)

    def check_send(self) -> None:
        raise NotAllowed(f"Nothing can be sent to the subscription '{self.path}': send to its topic.")

    # Rules

    @property
    def rules(self) -> list[SubscriptionRule]:
        """In the order in which they were made."""
        return list(self._rules.values())

    def find_rule(self, name: str) -> SubscriptionRule | None:
        return self._rules.get(name.lower())

    def rule(self, name: str) -> SubscriptionRule:
        """EntityNotFound where there is none."""
        found = self.find_rule(name)
        if found is None:
            raise EntityNotFound(f"The messaging entity '{self.path}/Rules/{name[:100]}' could not be found.")
        return found

    def add_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        """The rule, with the time of its making. EntityExists, or QuotaExceeded with too many."""
        if rule.name.lower() in self._rules:
            raise EntityExists(f"The messaging entity '{self.path}/Rules/{rule.name}' already exists.")
        if len(self._rules) >= MAX_RULES:
            raise EntityFull(f"'{self.path}' already has {MAX_RULES} rules.")
        return self._put_rule(replace(rule, created_at_ms=self._clock.now_ms()))

    def change_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        before = self.rule(rule.name)
        return self._put_rule(replace(rule, name=before.name, created_at_ms=before.created_at_ms))

    def remove_rule(self, name: str) -> None:
        del self._rules[self.rule(name).name.lower()]
        self._takes_all = all_plain(self.rules)

    def _put_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        self._rules[rule.name.lower()] = rule
        self._takes_all = all_plain(self.rules)
        return rule

    # In

    def take(self, views: Iterable[MessageView]) -> None:
        """Of the messages that were published, those that the rules select."""
        if self._takes_all:
            self._let_in([view.message.for_subscription() for view in views])
            return
        rules, selected = self.rules, []
        for view in views:
            selection = select(rules, view)
            selected += selection.copies
            if selection.failure and self.description.dead_lettering_on_filter_evaluation_exceptions:
                self._let_in(selected)
                selected = []
                self.messages.bury(view.message.for_subscription(), selection.failure)
        self._let_in(selected)

    def _let_in(self, messages: list[StoredMessage]) -> None:
        if self.description.requires_session:
            for message in messages:
                if message.session_id is None:
                    self.messages.bury(message, NO_SESSION)
            messages = [message for message in messages if message.session_id is not None]
        if messages:
            self.messages.enqueue(messages)


class TopicMessages(SubQueue):
    """What is sent to a topic: published at once, or held until its time has come and published then."""

    def __init__(
        self, publish: Callable[[list[StoredMessage]], None], clock: Clock, timers: Timers, *, lock_ms: int
    ) -> None:
        super().__init__(clock, timers, lock_ms=lock_ms)
        self._publish = publish

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        now = self._now()
        self.touched_ms = now
        ready: list[StoredMessage] = []
        later: list[StoredMessage] = []
        for message in messages:
            is_later = message.scheduled_at_ms is not None and message.scheduled_at_ms > now
            (later if is_later else ready).append(message)
        for message in ready:
            self._sequence += 1
            message.sequence_number = self._sequence
            message.enqueued_at_ms = now
        if later:
            super().enqueue(later)
        if ready:
            self._publish(ready)


class PartitionedTopicMessages(PartitionedMessages, TopicMessages):
    """That of a partitioned topic."""


class TopicEntity(QueueEntity):
    """`subscriptions` are found by name, in any case. A topic without one takes messages in and keeps none."""

    description: TopicDescription

    def __init__(
        self,
        path: str,
        description: TopicDescription,
        clock: Clock,
        timers: Timers,
        call_soon: CallSoon = call_now,
    ) -> None:
        self._subscriptions: dict[str, SubscriptionEntity] = {}
        super().__init__(path, description, clock, timers, call_soon)
        self._make = partial(SubscriptionEntity, clock=clock, timers=timers, call_soon=call_soon)

    def _make_messages(self, clock: Clock, timers: Timers, lock_ms: int, call_soon: CallSoon) -> SubQueue:
        del call_soon
        make = TopicMessages if self.partitions is None else PartitionedTopicMessages
        return make(self._publish, clock, timers, lock_ms=lock_ms)

    def check_receive(self) -> None:
        raise NotAllowed(f"Nothing can be received from the topic '{self.path}': receive from a subscription.")

    @property
    def credits_per_message(self) -> int:
        """Each filter's evaluation costs as much as the message."""
        return 1 + sum(len(each.rules) for each in self._subscriptions.values())

    @property
    def size_bytes(self) -> int:
        """What all subscriptions hold counts, each copy for itself."""
        return self.messages.size_bytes + sum(each.size_bytes for each in self._subscriptions.values())

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Never: what one message adds to the size is known once the rules have seen it."""
        del messages
        return False

    def _publish(self, messages: list[StoredMessage]) -> None:
        ttl_ms = self.description.ttl_ms
        for message in messages:
            if ttl_ms < NEVER and (message.ttl_ms is None or message.ttl_ms > ttl_ms):
                message.ttl_ms = ttl_ms
        views = [MessageView(message) for message in messages]
        for subscription in self._subscriptions.values():
            subscription.take(views)

    # Subscriptions

    @property
    def subscriptions(self) -> list[SubscriptionEntity]:
        """In order of their names."""
        return [each for _, each in sorted(self._subscriptions.items())]

    def find_subscription(self, name: str) -> SubscriptionEntity | None:
        return self._subscriptions.get(name.lower())

    def subscription(self, name: str) -> SubscriptionEntity:
        """EntityNotFound where there is none."""
        found = self.find_subscription(name)
        if found is None:
            raise EntityNotFound(f"The messaging entity '{self.path}/{SEGMENT}/{name[:100]}' could not be found.")
        return found

    def create_subscription(
        self, name: str, description: SubscriptionDescription | None = None, rule: SubscriptionRule | None = None
    ) -> SubscriptionEntity:
        """Raises ArgumentInvalid (the name), EntityExists, QuotaExceeded, TimedOut (a partition is down)."""
        check_subscription_name(name)
        self.check_all_partitions()
        if name.lower() in self._subscriptions:
            raise EntityExists(f"The messaging entity '{self.path}/{SEGMENT}/{name}' already exists.")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise EntityFull(f"The topic '{self.path}' already has {MAX_SUBSCRIPTIONS} subscriptions.")
        first = replace(rule or SubscriptionRule(), created_at_ms=self._clock.now_ms())
        made = self._make(self, name, description or SubscriptionDescription(), first)
        self._subscriptions[name.lower()] = made
        if self._home is not None:
            made.join(self._home)
        return made

    def delete_subscription(self, name: str) -> None:
        subscription = self.subscription(name)
        self.check_all_partitions()
        del self._subscriptions[subscription.name.lower()]
        subscription.close()

    def count_filters(self, kinds: type[SqlRuleFilter] | type[CorrelationRuleFilter]) -> int:
        """How many rules of all subscriptions have a filter of this kind."""
        rules: list[Sequence[SubscriptionRule]] = [each.rules for each in self._subscriptions.values()]
        return sum(isinstance(rule.filter, kinds) for some in rules for rule in some)

    def close(self) -> None:
        """The topic is deleted, and its subscriptions with it."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        super().close()
