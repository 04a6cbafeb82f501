"""Topics and their subscriptions: the rules of each subscription select among the messages sent to the topic.

Both are queues: a topic stores only scheduled messages, and only its topic sends to a subscription. A message is
decoded once for all rules, if any rule needs it, and its bytes are shared by all subscriptions that select it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, cast

from sbpair.amqp_server.refusals import EntityFull, NotAllowed
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.description import SubscriptionDescription, TopicDescription, check_subscription_name
from sbpair.emulator.entities.partitions import PartitionedMessages, Partitions
from sbpair.emulator.entities.queue import SUBSCRIPTIONS_SEGMENT, EntitySpace, QueueEntity, found
from sbpair.emulator.entities.rules import (
    RuleFailure,
    StoredView,
    SubscriptionRule,
    select_copies,
    selects_all,
)
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.service_errors import EntityExists
from sbpair.rules.filters import CorrelationRuleFilter

MAX_SQL_FILTERS: Final = 2_000
MAX_CORRELATION_FILTERS: Final = 100_000
MAX_SUBSCRIPTIONS: Final = 2_000
NO_SESSION: Final = RuleFailure(
    "Session ID is null", "Session enabled entity doesn't allow a message whose session identifier is null."
)


def is_correlation(rule: SubscriptionRule) -> bool:
    return isinstance(rule.filter, CorrelationRuleFilter)


class SubscriptionEntity(QueueEntity):
    """A subscription. `name` is written as it was created. A change of its rules affects later messages only."""

    description: SubscriptionDescription
    kind = "Topic"

    def __init__(
        self, topic: TopicEntity, name: str, description: SubscriptionDescription, rule: SubscriptionRule
    ) -> None:
        self.topic = topic
        self.name = name
        self._rules: dict[str, SubscriptionRule] = {rule.name.lower(): rule}
        self._selects_all = selects_all([rule])
        super().__init__(topic.namespace, f"{topic.path}/{SUBSCRIPTIONS_SEGMENT}/{name}", description)

    def _make_partitions(self) -> Partitions | None:
        return self.topic.partitions

    @property
    def full_name(self) -> str:
        return f"{self.topic.full_name}|{self.name}"

    @property
    def max_message_bytes(self) -> int:
        return self.topic.max_message_bytes

    @property
    def last_used_ms(self) -> int:
        """The time of the last receive or peek: messages from its topic are no use of a subscription."""
        return max(self.messages.read_at_ms, self.dead_letters.read_at_ms)

    @property
    def accessed_at_ms(self) -> int:
        """The time of the last access. Its creation counts, unlike that of a queue or topic."""
        return max(self.created_at_ms, super().accessed_at_ms)

    def check_send(self) -> None:
        raise NotAllowed(f"Nothing can be sent to the subscription '{self.path}': send to its topic.")

    @property
    def top_level(self) -> QueueEntity:
        return self.topic

    def _remove(self) -> None:
        self.topic.remove(self)

    # Rules

    @property
    def rules(self) -> list[SubscriptionRule]:
        """All rules, in order of their names."""
        return list(self._rules.values())

    def find_rule(self, name: str) -> SubscriptionRule | None:
        return self._rules.get(name.lower())

    def rule(self, name: str) -> SubscriptionRule:
        """Return the rule of this name. Raises EntityNotFound."""
        return found(self.find_rule(name), self.namespace.endpoint, f"{self.path}/Rules/{name[:100]}")

    def add_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        """Add a rule and return it with its creation time. Raises EntityExists, EntityFull (too many rules)."""
        if rule.name.lower() in self._rules:
            raise EntityExists(f"The messaging entity '{self.full_name}|{rule.name}' already exists.")
        self.topic.check_filters(rule)
        return self._put_rule(replace(rule, created_at_ms=self.namespace.clock.now_ms()))

    def change_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        before = self.rule(rule.name)
        if is_correlation(rule) != is_correlation(before):
            self.topic.check_filters(rule)
        return self._put_rule(replace(rule, name=before.name, created_at_ms=before.created_at_ms))

    def remove_rule(self, name: str) -> None:
        del self._rules[self.rule(name).name.lower()]
        self._rules_changed()

    def _put_rule(self, rule: SubscriptionRule) -> SubscriptionRule:
        self._rules = dict(sorted({**self._rules, rule.name.lower(): rule}.items()))
        self._rules_changed()
        return rule

    def set_rules(self, rules: Iterable[SubscriptionRule]) -> None:
        """Replace all rules."""
        self._rules = {rule.name.lower(): rule for rule in rules}
        self._rules_changed()

    def _rules_changed(self) -> None:
        self._selects_all = selects_all(self.rules)
        self.namespace.observer.changed(self)

    # Messages from the topic

    def deliver(self, views: Iterable[StoredView]) -> None:
        """Enqueue the messages that the rules select."""
        if self._selects_all:
            self._enqueue([view.message.for_subscription() for view in views])
            return
        rules, selected = self.rules, []
        for view in views:
            matches = select_copies(rules, view)
            selected += matches.copies
            if matches.failure and self.description.dead_lettering_on_filter_evaluation_exceptions:
                self._enqueue(selected)
                selected = []
                self.messages.dead_letter_on_arrival(view.message.for_subscription(), *matches.failure)
        self._enqueue(selected)

    def _enqueue(self, messages: list[StoredMessage]) -> None:
        if self.description.requires_session:
            for message in messages:
                if message.session_id is None:
                    self.messages.dead_letter_on_arrival(message, *NO_SESSION)
            messages = [message for message in messages if message.session_id is not None]
        if messages:
            self.messages.enqueue(messages)


class TopicMessages(SubQueue):
    """The messages sent to a topic: published at once, or at their scheduled time."""

    publish: Callable[[list[StoredMessage]], None]

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        now = self.accessed_at_ms = self.advance_if_due()
        ready: list[StoredMessage] = []
        scheduled: list[StoredMessage] = []
        for message in messages:
            is_scheduled = message.scheduled_at_ms is not None and message.scheduled_at_ms > now
            (scheduled if is_scheduled else ready).append(message)
        for number, message in enumerate(ready, self.last_numbers[self._partition] + 1):
            message.sequence_number = number
            message.enqueued_at_ms = now
        self.last_numbers[self._partition] += len(ready)
        self._store.numbered()
        if scheduled:
            super().enqueue(scheduled)
        if ready:
            self.publish(ready)


class PartitionedTopicMessages(PartitionedMessages, TopicMessages):
    """The messages sent to a partitioned topic."""


class TopicEntity(QueueEntity):
    """A topic. A topic without subscriptions accepts messages and stores none."""

    kind = "Topic"

    description: TopicDescription

    def __init__(self, namespace: EntitySpace, path: str, description: TopicDescription) -> None:
        self._subscriptions: dict[str, SubscriptionEntity] = {}
        super().__init__(namespace, path, description)

    def _make_messages(self) -> SubQueue:
        messages = cast("TopicMessages", self._make(TopicMessages, PartitionedTopicMessages))
        messages.publish = self._publish
        return messages

    def check_not_forwarding(self, reader: str) -> None:
        if reader == "receiver":
            raise NotAllowed(f"Nothing can be received from the topic '{self.path}': receive from a subscription.")

    @property
    def credits_per_message(self) -> int:
        """The cost of a message: a filter costs as much as the message."""
        return 1 + sum(len(each.rules) for each in self._subscriptions.values())

    @property
    def size_bytes(self) -> int:
        """The size of all copies in all subscriptions, and of scheduled and transferred messages."""
        return super().size_bytes + sum(each.size_bytes for each in self._subscriptions.values())

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Refuse: only the rules decide how much a message adds to the size."""
        del messages
        return False

    def _publish(self, messages: list[StoredMessage]) -> None:
        ttl_ms = self.description.ttl_ms
        for message in messages:
            if ttl_ms < NEVER and (message.ttl_ms is None or message.ttl_ms > ttl_ms):
                message.ttl_ms = ttl_ms
        views = [StoredView(message) for message in messages]
        for subscription in self._subscriptions.values():
            subscription.deliver(views)

    # Subscriptions

    @property
    def subscriptions(self) -> list[SubscriptionEntity]:
        """All subscriptions, in order of their names."""
        return [each for _, each in sorted(self._subscriptions.items())]

    def find_subscription(self, name: str) -> SubscriptionEntity | None:
        return self._subscriptions.get(name.lower())

    def subscription(self, name: str) -> SubscriptionEntity:
        """Return the subscription of this name, in any case. Raises EntityNotFound."""
        path = f"{self.path}/{SUBSCRIPTIONS_SEGMENT}/{name[:100]}"
        return found(self.find_subscription(name), self.namespace.endpoint, path)

    def create_subscription(
        self, name: str, description: SubscriptionDescription | None = None, rule: SubscriptionRule | None = None
    ) -> SubscriptionEntity:
        """Raise ArgumentInvalid (the name), EntityExists, EntityFull or OperationTimedOut (a partition is down)."""
        check_subscription_name(name)
        self.check_all_partitions()
        path = f"{self.path}/{SUBSCRIPTIONS_SEGMENT}/{name}"
        if self.namespace.is_taken(path):
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise EntityFull(f"The topic '{self.path}' already has {MAX_SUBSCRIPTIONS} subscriptions.")
        self.check_filters(rule or SubscriptionRule())
        first = replace(rule or SubscriptionRule(), created_at_ms=self.namespace.clock.now_ms())
        created = SubscriptionEntity(self, name, description or SubscriptionDescription(), first)
        self._subscriptions[name.lower()] = created
        self.namespace.observer.created(created)
        return created

    def remove(self, subscription: SubscriptionEntity) -> None:
        del self._subscriptions[subscription.name.lower()]

    def count_filters(self) -> tuple[int, int]:
        """Return how many rules of all subscriptions have a SQL filter, true filters too, and a correlation filter."""
        rules = [rule for each in self._subscriptions.values() for rule in each.rules]
        correlation = sum(map(is_correlation, rules))
        return len(rules) - correlation, correlation

    def check_filters(self, more: SubscriptionRule) -> None:
        """Raise EntityFull if the topic has no room for the filter of another rule."""
        limits = {"SQL": MAX_SQL_FILTERS, "correlation": MAX_CORRELATION_FILTERS}
        kind = "correlation" if is_correlation(more) else "SQL"
        if self.count_filters()[is_correlation(more)] >= limits[kind]:
            raise EntityFull(f"The topic '{self.path}' already has {limits[kind]} {kind} filters.")

    def close(self) -> None:
        """Close the topic and its subscriptions: it is deleted."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        super().close()
