"""The Atom frontend of topics, subscriptions and rules.

`<topic>`, `<topic>/subscriptions[/<name>]` and `<topic>/subscriptions/<name>/rules[/<name>]`, names in any letter case.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree.ElementTree import Element

from aiohttp import web

from sbpair.emulator.entities.description import SubscriptionDescription, TopicDescription, check_path
from sbpair.emulator.entities.description_schema import SUBSCRIPTION, TOPIC, DescriptionSchema, from_elements
from sbpair.emulator.entities.rules.rule import CorrelationRuleFilter, SqlRuleFilter, SubscriptionRule
from sbpair.emulator.frontends.atom import atom_xml as xml
from sbpair.emulator.frontends.atom.atom_request import (
    AtomRequest,
    atom_page,
    atom_response,
    empty_feed,
    method_not_allowed,
    with_creation_times,
)
from sbpair.emulator.frontends.atom.atom_rules import RULE, read_rule, rule_xml
from sbpair.emulator.frontends.http.request_parts import new_key, with_addresses
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
    """A path below a topic, taken apart. The name is None where the path ends in a list."""

    topic: str
    subscription: str | None
    has_rules: bool
    rule: str | None


def read_topic_path(path: str) -> TopicPath | None:
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    return TopicPath(match["topic"], match["subscription"], bool(match["rules"]), match["rule"])


class TopicsFrontend:
    """The part of a namespace's Atom frontend for topics. It relies on AtomFrontend to authorize requests."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def handles(self, request: AtomRequest, body: bytes) -> bool:
        """Return whether a request is for a topic or something below one."""
        if read_topic_path(request.path) is not None:
            return True
        if request.method == "PUT":
            return b"TopicDescription" in body
        return self._namespace.find_topic(request.path) is not None

    def answer(self, request: AtomRequest, body: bytes) -> web.Response:
        path = read_topic_path(request.path)
        if path is None:
            return self._answer_of_topic(request, body)
        if path.has_rules:
            return self._answer_of_rules(request, path, body)
        return self._answer_of_subscriptions(request, path, body)

    # Topics

    def _answer_of_topic(self, request: AtomRequest, body: bytes) -> web.Response:
        match request.method:
            case "GET":
                return atom_response(self._topic_entry(request, self._namespace.topic(request.path)))
            case "PUT":
                return self._put_topic(request, body)
            case "DELETE":
                self._namespace.delete_topic(request.path)
                return web.Response(status=200)
        return method_not_allowed()

    def _put_topic(self, request: AtomRequest, body: bytes) -> web.Response:
        check_path(request.path)
        existing = self._namespace.topic(request.path) if request.if_match else None
        _, requested, now = self._read(TOPIC, body)
        before = existing.description if existing else None
        rules = with_creation_times(requested.rules, before.authorization_rules if before else (), now)
        wanted = from_elements(TOPIC, TopicDescription(), requested.values, before, rules, self._namespace.tier)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(wanted)
            return atom_response(self._topic_entry(request, existing))
        return atom_response(self._topic_entry(request, self._namespace.create_topic(request.path, wanted)), 201)

    def list_topics(self, request: AtomRequest) -> web.Response:
        topics, now = self._namespace.topics(), self._namespace.clock.now_ms()
        return atom_page(request, "Topics", topics, lambda topic: self._topic_entry(request, topic), now)

    def _topic_entry(self, request: AtomRequest, topic: TopicEntity) -> str:
        topic.check_all_partitions()
        reported = {
            **xml.reported_elements(topic),
            "SizeInBytes": xml.element("SizeInBytes", str(topic.size_bytes)),
            "IsAnonymousAccessible": xml.element("IsAnonymousAccessible", "false"),
            "AuthorizationRules": xml.access_rules_xml(topic),
            "SubscriptionCount": xml.element("SubscriptionCount", str(len(topic.subscriptions))),
            "SqlFilterCount": xml.element("SqlFilterCount", str(topic.count_filters(SqlRuleFilter))),
            "CorrelationFilterCount": xml.element(
                "CorrelationFilterCount", str(topic.count_filters(CorrelationRuleFilter))
            ),
        }
        return self._entry(request, TOPIC, topic, topic.path, topic.path, reported)

    # Subscriptions

    def _answer_of_subscriptions(self, request: AtomRequest, path: TopicPath, body: bytes) -> web.Response:
        if path.subscription is None:
            return self._list_subscriptions(request, path) if request.method == "GET" else method_not_allowed()
        match request.method:
            case "GET":
                found = self._find_subscription(path)
                return (
                    self._empty(request) if found is None else atom_response(self._subscription_entry(request, found))
                )
            case "PUT":
                return self._put_subscription(request, self._namespace.topic(path.topic), path.subscription, body)
            case "DELETE":
                self._namespace.topic(path.topic).delete_subscription(path.subscription)
                return web.Response(status=200)
        return method_not_allowed()

    def _put_subscription(self, request: AtomRequest, topic: TopicEntity, name: str, body: bytes) -> web.Response:
        existing = topic.subscription(name) if request.if_match else None
        description, requested, _ = self._read(SUBSCRIPTION, body)
        values, tier = with_addresses(requested.values, request.host), self._namespace.tier
        before = existing.description if existing else None
        wanted = from_elements(SUBSCRIPTION, SubscriptionDescription(), values, before, tier=tier)
        if existing is not None:
            existing.check_all_partitions()
            existing.update(wanted)
            return atom_response(self._subscription_entry(request, existing))
        made = topic.create_subscription(name, wanted, _first_rule(description))
        return atom_response(self._subscription_entry(request, made), 201)

    def _list_subscriptions(self, request: AtomRequest, path: TopicPath) -> web.Response:
        topic, now = self._namespace.find_topic(path.topic), self._namespace.clock.now_ms()
        # As for a single entity, the service answers a missing topic with an empty feed.
        subscriptions = [] if topic is None else topic.subscriptions
        entry = partial(self._subscription_entry, request)
        return atom_page(request, "Subscriptions", subscriptions, entry, now)

    def _subscription_entry(self, request: AtomRequest, subscription: SubscriptionEntity) -> str:
        subscription.check_all_partitions()
        count = str(subscription.counts().total)
        reported = {**xml.reported_elements(subscription), "MessageCount": xml.element("MessageCount", count)}
        return self._entry(request, SUBSCRIPTION, subscription, subscription.path, subscription.name, reported)

    def _find_subscription(self, path: TopicPath) -> SubscriptionEntity | None:
        topic = self._namespace.find_topic(path.topic)
        return None if topic is None or path.subscription is None else topic.find_subscription(path.subscription)

    # Rules

    def _answer_of_rules(self, request: AtomRequest, path: TopicPath, body: bytes) -> web.Response:
        if path.rule is None:
            return self._list_rules(request, path) if request.method == "GET" else method_not_allowed()
        match request.method:
            case "GET":
                return self._get_rule(request, path, path.rule)
            case "PUT":
                return self._put_rule(request, self._subscription(path), path.rule, body)
            case "DELETE":
                self._subscription(path).remove_rule(path.rule)
                return web.Response(status=200)
        return method_not_allowed()

    def _get_rule(self, request: AtomRequest, path: TopicPath, name: str) -> web.Response:
        subscription = self._find_subscription(path)
        rule = None if subscription is None else subscription.find_rule(name)
        if subscription is None or rule is None:
            return self._empty(request)
        return atom_response(self._rule_entry(request, subscription, rule))

    def _put_rule(self, request: AtomRequest, subscription: SubscriptionEntity, name: str, body: bytes) -> web.Response:
        if request.if_match:
            subscription.rule(name)
        wanted = read_rule(_check_kind(xml.description_in(body), RULE), name)
        rule = subscription.change_rule(wanted) if request.if_match else subscription.add_rule(wanted)
        return atom_response(self._rule_entry(request, subscription, rule), 200 if request.if_match else 201)

    def _list_rules(self, request: AtomRequest, path: TopicPath) -> web.Response:
        subscription, now = self._find_subscription(path), self._namespace.clock.now_ms()
        if subscription is None:
            return self._empty(request)
        entry = partial(self._rule_entry, request, subscription)
        return atom_page(request, "Rules", subscription.rules, entry, now)

    def _rule_entry(self, request: AtomRequest, subscription: SubscriptionEntity, rule: SubscriptionRule) -> str:
        href = request.href(f"{subscription.path}/Rules/{rule.name}")
        times = (rule.created_at_ms, rule.created_at_ms)
        return xml.entry_xml(href, rule.name, self._namespace.name, times, rule_xml(rule))

    def _subscription(self, path: TopicPath) -> SubscriptionEntity:
        return self._namespace.topic(path.topic).subscription(path.subscription or "")

    # All kinds

    def _read(self, schema: DescriptionSchema, body: bytes) -> tuple[Element, xml.EntityRequest, int]:
        now = self._namespace.clock.now_ms()
        description = _check_kind(xml.description_in(body), schema.element)
        names, requested = xml.read_elements(description, new_key, now)
        schema.check_order(names)
        return description, requested, now

    def _entry(
        self,
        request: AtomRequest,
        schema: DescriptionSchema,
        queue: QueueEntity,
        path: str,
        title: str,
        reported: dict[str, str],
    ) -> str:
        size = request.with_message_size
        content = xml.description_xml(
            schema.element, schema.elements, schema.settable, queue, reported, with_message_size=size
        )
        times = (queue.created_at_ms, queue.updated_at_ms)
        return xml.entry_xml(request.href(path), title, self._namespace.name, times, content)

    def _empty(self, request: AtomRequest) -> web.Response:
        return empty_feed(request, self._namespace.clock.now_ms())


def _check_kind(description: Element, kind: str) -> Element:
    if xml.kind_of(description) != kind:
        raise ArgumentInvalid(f"'{xml.kind_of(description)}' is given where {kind} is expected.")
    return description


def _first_rule(description: Element) -> SubscriptionRule:
    described = description.find(f"{{{xml.SERVICE_BUS}}}DefaultRuleDescription")
    return SubscriptionRule() if described is None else read_rule(described)
