"""The management door's part for topics, subscriptions and rules: paths taken apart, entities asked, answers written.

`<topic>`, `<topic>/subscriptions[/<name>]` and `<topic>/subscriptions/<name>/rules[/<name>]`, names in any case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree.ElementTree import Element

from aiohttp import web

from sbpair.emulator.entities.description import check_path, format_value
from sbpair.emulator.entities.rules.rule import CorrelationRuleFilter, SqlRuleFilter, SubscriptionRule
from sbpair.emulator.entities.topic_description import (
    SUBSCRIPTION,
    TOPIC,
    DescriptionSchema,
    SubscriptionDescription,
    TopicDescription,
    from_elements,
)
from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.frontends.atom.atom_request import (
    AtomRequest,
    forward_address,
    list_page,
    new_key,
    not_a_verb,
    nothing_there,
    respond,
    with_times,
)
from sbpair.emulator.frontends.atom.atom_rules import RULE, read_rule, rule_xml
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity

_PATH: Final = re.compile(
    r"(?P<topic>.+)/(?P<list>subscriptions)(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)


class TopicPath(NamedTuple):
    """What a path below a topic means; where the last one that is named is a list, its name is None."""

    topic: str
    subscription: str | None
    has_rules: bool
    rule: str | None


def place_of(path: str) -> TopicPath | None:
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    return TopicPath(match["topic"], match["subscription"], bool(match["rules"]), match["rule"])


class TopicsFrontend:
    """Asked by the management door of one namespace, after that has seen to the token."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def concerns(self, ask: AtomRequest, body: bytes) -> bool:
        """Whether a request is about a topic, or something below one."""
        if place_of(ask.path) is not None:
            return True
        if ask.method == "PUT":
            return b"TopicDescription" in body
        return self._namespace.find_topic(ask.path) is not None

    def answer(self, ask: AtomRequest, body: bytes) -> web.Response:
        place = place_of(ask.path)
        if place is None:
            return self._answer_of_topic(ask, body)
        if place.has_rules:
            return self._answer_of_rules(ask, place, body)
        return self._answer_of_subscriptions(ask, place, body)

    # Topics

    def _answer_of_topic(self, ask: AtomRequest, body: bytes) -> web.Response:
        match ask.method:
            case "GET":
                return respond(self._topic_entry(ask, self._namespace.topic(ask.path)))
            case "PUT":
                return self._put_topic(ask, body)
            case "DELETE":
                self._namespace.delete_topic(ask.path)
                return web.Response(status=200)
        return not_a_verb()

    def _put_topic(self, ask: AtomRequest, body: bytes) -> web.Response:
        check_path(ask.path)
        existing = self._namespace.topic(ask.path) if ask.if_match else None
        _, wanted, now = self._read(TOPIC, body)
        before = existing.description if existing else None
        rules = with_times(wanted.rules, before.authorization_rules if before else (), now)
        found = from_elements(TOPIC, TopicDescription(), wanted.values, before, rules, self._namespace.tier)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(found)
            return respond(self._topic_entry(ask, existing))
        return respond(self._topic_entry(ask, self._namespace.create_topic(ask.path, found)), 201)

    def list_topics(self, ask: AtomRequest) -> web.Response:
        topics, now = self._namespace.topics(), self._namespace.clock.now_ms()
        return list_page(ask, "Topics", topics, lambda topic: self._topic_entry(ask, topic), now)

    def _topic_entry(self, ask: AtomRequest, topic: TopicEntity) -> str:
        topic.check_all_partitions()
        reported = {
            **_reported(topic),
            "SizeInBytes": xml.element("SizeInBytes", str(topic.size_bytes)),
            "IsAnonymousAccessible": xml.element("IsAnonymousAccessible", "false"),
            "AuthorizationRules": xml.rules_xml(topic),
            "SubscriptionCount": xml.element("SubscriptionCount", str(len(topic.subscriptions))),
            "SqlFilterCount": xml.element("SqlFilterCount", str(topic.count_filters(SqlRuleFilter))),
            "CorrelationFilterCount": xml.element(
                "CorrelationFilterCount", str(topic.count_filters(CorrelationRuleFilter))
            ),
        }
        return self._entry(ask, TOPIC, topic, topic.path, topic.path, reported)

    # Subscriptions

    def _answer_of_subscriptions(self, ask: AtomRequest, place: TopicPath, body: bytes) -> web.Response:
        if place.subscription is None:
            return self._list_subscriptions(ask, place) if ask.method == "GET" else not_a_verb()
        match ask.method:
            case "GET":
                found = self._find_subscription(place)
                return self._nothing(ask) if found is None else respond(self._subscription_entry(ask, found))
            case "PUT":
                return self._put_subscription(ask, self._namespace.topic(place.topic), place.subscription, body)
            case "DELETE":
                self._namespace.topic(place.topic).delete_subscription(place.subscription)
                return web.Response(status=200)
        return not_a_verb()

    def _put_subscription(self, ask: AtomRequest, topic: TopicEntity, name: str, body: bytes) -> web.Response:
        existing = topic.subscription(name) if ask.if_match else None
        description, wanted, _ = self._read(SUBSCRIPTION, body)
        for forwarded in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
            if wanted.values.get(forwarded):
                wanted.values[forwarded] = forward_address(wanted.values[forwarded], ask.host)
        before = existing.description if existing else None
        found = from_elements(SUBSCRIPTION, SubscriptionDescription(), wanted.values, before, tier=self._namespace.tier)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(found)
            return respond(self._subscription_entry(ask, existing))
        made = topic.create_subscription(name, found, _first_rule(description))
        return respond(self._subscription_entry(ask, made), 201)

    def _list_subscriptions(self, ask: AtomRequest, place: TopicPath) -> web.Response:
        topic, now = self._namespace.find_topic(place.topic), self._namespace.clock.now_ms()
        # As with a single entity, what is not there is an empty answer and no error.
        subscriptions = [] if topic is None else topic.subscriptions
        return list_page(ask, "Subscriptions", subscriptions, lambda each: self._subscription_entry(ask, each), now)

    def _subscription_entry(self, ask: AtomRequest, subscription: SubscriptionEntity) -> str:
        subscription.check_all_partitions()
        count = str(subscription.counts().total)
        reported = {**_reported(subscription), "MessageCount": xml.element("MessageCount", count)}
        return self._entry(ask, SUBSCRIPTION, subscription, subscription.path, subscription.name, reported)

    def _find_subscription(self, place: TopicPath) -> SubscriptionEntity | None:
        topic = self._namespace.find_topic(place.topic)
        return None if topic is None or place.subscription is None else topic.find_subscription(place.subscription)

    # Rules

    def _answer_of_rules(self, ask: AtomRequest, place: TopicPath, body: bytes) -> web.Response:
        if place.rule is None:
            return self._list_rules(ask, place) if ask.method == "GET" else not_a_verb()
        match ask.method:
            case "GET":
                return self._get_rule(ask, place, place.rule)
            case "PUT":
                return self._put_rule(ask, self._subscription(place), place.rule, body)
            case "DELETE":
                self._subscription(place).remove_rule(place.rule)
                return web.Response(status=200)
        return not_a_verb()

    def _get_rule(self, ask: AtomRequest, place: TopicPath, name: str) -> web.Response:
        subscription = self._find_subscription(place)
        rule = None if subscription is None else subscription.find_rule(name)
        if subscription is None or rule is None:
            return self._nothing(ask)
        return respond(self._rule_entry(ask, subscription, rule))

    def _put_rule(self, ask: AtomRequest, subscription: SubscriptionEntity, name: str, body: bytes) -> web.Response:
        if ask.if_match:
            subscription.rule(name)
        wanted = read_rule(_of_kind(xml.description_in(body), RULE), name)
        rule = subscription.change_rule(wanted) if ask.if_match else subscription.add_rule(wanted)
        return respond(self._rule_entry(ask, subscription, rule), 200 if ask.if_match else 201)

    def _list_rules(self, ask: AtomRequest, place: TopicPath) -> web.Response:
        subscription, now = self._find_subscription(place), self._namespace.clock.now_ms()
        if subscription is None:
            return self._nothing(ask)
        return list_page(ask, "Rules", subscription.rules, lambda rule: self._rule_entry(ask, subscription, rule), now)

    def _rule_entry(self, ask: AtomRequest, subscription: SubscriptionEntity, rule: SubscriptionRule) -> str:
        href = ask.href(f"{subscription.path}/Rules/{rule.name}")
        times = (rule.created_at_ms, rule.created_at_ms)
        return xml.entry_xml(href, rule.name, self._namespace.name, times, rule_xml(rule))

    def _subscription(self, place: TopicPath) -> SubscriptionEntity:
        return self._namespace.topic(place.topic).subscription(place.subscription or "")

    # All of them

    def _read(self, shape: DescriptionSchema, body: bytes) -> tuple[Element, xml.EntityRequest, int]:
        now = self._namespace.clock.now_ms()
        description = _of_kind(xml.description_in(body), shape.element)
        names, wanted = xml.read_elements(description, new_key, now)
        shape.check_order(names)
        return description, wanted, now

    def _entry(
        self,
        ask: AtomRequest,
        shape: DescriptionSchema,
        queue: QueueEntity,
        path: str,
        title: str,
        reported: dict[str, str],
    ) -> str:
        parts = [f'<{shape.element} xmlns="{xml.SERVICE_BUS}" xmlns:i="{xml.INSTANCE}">']
        for name in shape.elements:
            if name == "MaxMessageSizeInKilobytes" and ask.api_version < "2021-05":
                continue
            if name in shape.settable:
                parts.append(xml.element(name, format_value(queue.description, name, shape.settable)))
            else:
                parts.append(reported.get(name, ""))
        times = (queue.created_at_ms, queue.updated_at_ms)
        content = "".join(parts) + f"</{shape.element}>"
        return xml.entry_xml(ask.href(path), title, self._namespace.name, times, content)

    def _nothing(self, ask: AtomRequest) -> web.Response:
        return nothing_there(ask, self._namespace.clock.now_ms())


def _reported(queue: QueueEntity) -> dict[str, str]:
    """The elements that only the service sets, of topics and subscriptions alike."""
    times = {"CreatedAt": queue.created_at_ms, "UpdatedAt": queue.updated_at_ms, "AccessedAt": queue.accessed_at_ms}
    return {
        **{name: xml.element(name, xml.instant(ms)) for name, ms in times.items()},
        "CountDetails": xml.counts_xml(queue),
        "EntityAvailabilityStatus": xml.element("EntityAvailabilityStatus", "Available"),
    }


def _of_kind(description: Element, kind: str) -> Element:
    if xml.kind_of(description) != kind:
        raise ArgumentInvalid(f"'{xml.kind_of(description)}' is given where {kind} is expected.")
    return description


def _first_rule(description: Element) -> SubscriptionRule:
    described = description.find(f"{{{xml.SERVICE_BUS}}}DefaultRuleDescription")
    return SubscriptionRule() if described is None else read_rule(described)
