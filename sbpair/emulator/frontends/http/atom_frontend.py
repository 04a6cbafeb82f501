"""The Atom frontend: entities are created, read, listed, changed and deleted over HTTP, as the service does it.

Paths are `<entity>`, `<topic>/subscriptions[/<name>]` and `<topic>/subscriptions/<name>/rules[/<name>]`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from aiohttp import web

from sbpair.amqp_server.refusals import ArgumentInvalid, ServiceError, Unauthorized
from sbpair.amqp_server.shared_access import AccessRight, scope_of
from sbpair.emulator.bearer_tokens import missing_token
from sbpair.emulator.clock import token_ms
from sbpair.emulator.entities.description import QUEUE, SUBSCRIPTION, check_path
from sbpair.emulator.entities.queue import entity_not_found
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.http import atom_xml as xml
from sbpair.emulator.frontends.http.management_parts import (
    EntityCollection,
    ManagedEntity,
    hybrid_connections_of,
    queues_of,
    read_body,
    read_page,
    read_query,
    split_target,
    subscriptions_of,
    topics_of,
)
from sbpair.emulator.service_errors import CONFLICT, EntityExists, EntityNotFound, ManageRequired
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.hybrid_connection import HybridConnection

API_VERSIONS: Final = ("2017-04", "2021-05", "2024-05")
RELAY_API_VERSION: Final = "2016-07"
_PATH: Final = re.compile(
    r"(?P<topic>.+)/(?P<list>subscriptions)(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)

_VERBS: Final = {"GET": "Get", "PUT": "CreateOrUpdate", "DELETE": "Delete"}
_MANAGE_TEXTS: Final = {
    "GET": "Manage,EntityRead claims required for this operation.",
    "PUT": "Authorization failed for specified action: Manage,EntityWrite.",
    "DELETE": "Authorization failed for specified action: Manage,EntityDelete.",
}

_FORWARD_HEADERS: Final = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}
"""Headers with the tokens for the targets of forwarding."""

T = TypeVar("T")


class AtomRequest:
    """A decoded request. `base` and `host` are this server as the client addresses it."""

    def __init__(self, request: web.BaseRequest) -> None:
        path, query = split_target(request)
        self.method = request.method
        self.path = path.strip("/")
        self.query = read_query(query)
        self.base = f"{request.scheme}://{request.host}"
        self.host = request.host
        self.if_match = request.headers.get("If-Match")
        self.token = request.headers.get("Authorization")
        self.forward_tokens = {name: request.headers.get(header) for name, header in _FORWARD_HEADERS.items()}
        self.api_version = self.query.get("api-version", API_VERSIONS[-1])
        self.is_of_relay = request.headers.get("X-PROCESS-AT", "").lower() == "servicebus"

    def href(self, path: str, **query: object) -> str:
        return f"{self.base}/{quote(path, safe='/$')}?{urlencode({'api-version': self.api_version, **query})}"


class AtomFrontend:
    """The Atom frontend of one namespace. Every error becomes the service's error body."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._queues, self._topics = queues_of(namespace), topics_of(namespace)
        self._lists = {"$resources/queues": self._queues, "$resources/topics": self._topics}

    async def answer(self, http_request: web.BaseRequest) -> web.Response:
        return self._answer(AtomRequest(http_request), await read_body(http_request))

    def error_response(self, request: web.BaseRequest, error: ServiceError) -> web.Response:
        path = AtomRequest(request).path
        tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{self._namespace.name}:{path}"
        sub_code = f"SubCode={error.sub_code}. " if error.sub_code else ""
        text = f"{CONFLICT} ." if isinstance(error, EntityExists) else error.message
        detail = f"{sub_code}{text} {tracker}, Timestamp:{instant(self._now_ms())}"
        return atom_response(xml.error_xml(error.status, detail), error.status)

    def _answer(self, request: AtomRequest, body: bytes) -> web.Response:
        self._namespace.fault_points.check_request(request.method, request.path)
        hybrid_connection = self._namespace.hybrid_connections.find(request.path) if request.is_of_relay else None
        if hybrid_connection is not None:
            return self._answer_of_relay(request, hybrid_connection)
        below = _PATH.fullmatch(request.path)
        return self._authorize(request, below) or self._answer_authorized(request, below, body)

    def _answer_authorized(self, request: AtomRequest, below: re.Match[str] | None, body: bytes) -> web.Response:
        self._namespace.fault_points.charge_management(scope_of(request.path))
        if request.is_of_relay and request.api_version == RELAY_API_VERSION:
            return self._missing(request)
        if request.api_version not in API_VERSIONS:
            version = request.api_version[:40]
            raise ArgumentInvalid(f"The api-version '{version}' is not one of {', '.join(API_VERSIONS)}.")
        path = request.path.lower()
        is_list = below is not None and (below["subscription"] is None or (below["rules"] and below["rule"] is None))
        read_only = path == "$namespaceinfo" or path in self._lists or is_list
        if request.method not in (("GET",) if read_only else ("GET", "PUT", "DELETE")):
            return wrong_method()
        if path == "$namespaceinfo":
            return self._namespace_info(request)
        if path in self._lists:
            return self._list(request, self._lists[path])
        if below is not None:
            try:
                return self._answer_below_topic(request, below, body)
            except EntityNotFound as error:
                # Whichever part of the path is missing, all of it is named.
                raise entity_not_found(self._namespace.endpoint, request.path) from error
        if request.method == "PUT":
            check_path(request.path)
            entities = self._topics if b"TopicDescription" in body else self._queues
        else:
            entities = self._topics if self._topics.find(request.path) else self._queues
        return self._answer_of_entity(request, entities, request.path, body)

    def _authorize(self, request: AtomRequest, below: re.Match[str] | None) -> web.Response | None:
        """Return the answer to a token without Manage where the service has one of its own. Raises Unauthenticated."""
        if not request.token:
            raise missing_token()
        # `$Resources/…` belongs to the namespace: no entity's keys sign for it.
        grant = self._namespace.authenticate(request.token, request.path)
        try:
            grant.require(AccessRight.MANAGE, scope_of(request.path), token_ms(self._namespace.clock))
        except Unauthorized as error:
            if below is not None:
                return self._unauthorized_below_topic(request, below)
            if request.method == "GET" and not request.path.startswith("$") and not self._namespace.find(request.path):
                return self._missing(request)
            raise ManageRequired(_MANAGE_TEXTS.get(request.method, error.message)) from error
        return None

    def _authorize_forwards(self, request: AtomRequest, values: Mapping[str, str]) -> None:
        """Raise Unauthenticated or ManageRequired unless each target of forwarding has a token with Manage."""
        for name, token in request.forward_tokens.items():
            target = values.get(name, "").strip()
            if not target:
                continue
            if not token:
                raise missing_token()
            try:
                grant = self._namespace.authenticate(token, target)
                grant.require(AccessRight.MANAGE, scope_of(target), token_ms(self._namespace.clock))
            except Unauthorized as error:
                raise ManageRequired(error.message) from error

    def _unauthorized_below_topic(self, request: AtomRequest, path: re.Match[str]) -> web.Response:
        """Return the refusal of a request below a topic: its text is the reason phrase, and it has no body."""
        kind, name = ("Rule", path["rule"]) if path["rules"] else ("Subscription", path["subscription"])
        verb = _VERBS.get(request.method, request.method.title())
        operation = f"{verb}{kind}" if name is not None else f"Enumerate{kind}s"
        reason = (
            f"SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on endpoint "
            f"'sb://{request.host}/{quote(request.path)}'. Tracking Id: {uuid.uuid4()}_G0"
        )
        return web.Response(status=401, reason=reason)

    def _namespace_info(self, request: AtomRequest) -> web.Response:
        name, created = self._namespace.name, self._namespace.created_at_ms
        info, href = xml.namespace_xml(self._namespace), request.href("$namespaceinfo")
        return atom_response(xml.entry_xml(href, name, name, (created, created), info))

    def _answer_of_relay(self, request: AtomRequest, entity: HybridConnection) -> web.Response:
        """Answer a request for the description of a hybrid connection. Raises RelayRefused."""
        self._namespace.hybrid_connections.authorize(request.token, AccessRight.MANAGE, request.path, entity)
        if request.method != "GET":
            return wrong_method()
        return atom_response(self._entry(request, hybrid_connections_of(self._namespace), entity))

    # Entities

    def _list(self, request: AtomRequest, entities: EntityCollection) -> web.Response:
        entry = partial(self._entry, request, entities)
        return atom_page(request, f"{entities.schema.entity}s", entities.all(), entry, self._now_ms())

    def _answer_of_entity(
        self, request: AtomRequest, entities: EntityCollection, name: str, body: bytes
    ) -> web.Response:
        match request.method:
            case "GET":
                found = entities.find(name)
                return self._missing(request) if found is None else atom_response(self._entry(request, entities, found))
            case "DELETE":
                entities.get(name).delete()
                return web.Response(status=200)
        return self._put(request, entities, name, body)

    def _put(self, request: AtomRequest, entities: EntityCollection, name: str, body: bytes) -> web.Response:
        existing = entities.get(name) if request.if_match else None
        described = xml.description_in(body)
        if existing is None and xml.kind_of(described) != entities.schema.element and entities.find(name) is not None:
            raise EntityExists(f"The messaging entity '{request.path}' already exists.")
        description = _check_kind(described, entities.schema.element)
        names, values, rules = xml.read_elements(description)
        entities.schema.check_order(names)
        self._authorize_forwards(request, values)
        first_rule = [_first_rule(description)] if entities.schema is SUBSCRIPTION and existing is None else []
        stored = entities.put(name, values, existing, tuple(rules), request.host, *first_rule)
        return atom_response(self._entry(request, entities, stored), 200 if existing else 201)

    def _entry(self, request: AtomRequest, entities: EntityCollection, entity: ManagedEntity) -> str:
        content = xml.entity_xml(entities.schema, entity, request.api_version)
        times = (entity.created_at_ms, entity.updated_at_ms)
        title = entity.name if isinstance(entity, SubscriptionEntity) else entity.path
        return xml.entry_xml(request.href(entity.path), title, self._namespace.name, times, content)

    def _missing(self, request: AtomRequest) -> web.Response:
        """Return the service's answer for a missing entity: a feed without entries."""
        return atom_response(xml.feed_xml(request.href(request.path), "Publicly Listed Services", self._now_ms()))

    # Below topics

    def _answer_below_topic(self, request: AtomRequest, path: re.Match[str], body: bytes) -> web.Response:
        reading = request.method == "GET"
        topic = (self._namespace.find_topic if reading else self._namespace.topic)(path["topic"])
        if topic is None:
            # As for a single entity, the service answers a missing topic with an empty feed.
            if path["subscription"] is None:
                return atom_page(request, "Subscriptions", (), str, self._now_ms())
            return self._missing(request)
        subscriptions = subscriptions_of(self._namespace, topic)
        if path["subscription"] is None:
            return self._list(request, subscriptions)
        if not path["rules"]:
            return self._answer_of_entity(request, subscriptions, path["subscription"], body)
        subscription = (topic.find_subscription if reading else topic.subscription)(path["subscription"])
        if subscription is None:
            return self._missing(request)
        entry = partial(self._rule_entry, request, subscription)
        name = path["rule"]
        if name is None:
            return atom_page(request, "Rules", subscription.rules, entry, self._now_ms())
        match request.method:
            case "GET":
                rule = subscription.find_rule(name)
                return self._missing(request) if rule is None else atom_response(entry(rule))
            case "DELETE":
                subscription.remove_rule(name)
                return web.Response(status=200)
        if request.if_match:
            subscription.rule(name)
        wanted = xml.read_rule(_check_kind(xml.description_in(body), xml.RULE), name)
        stored = subscription.change_rule(wanted) if request.if_match else subscription.add_rule(wanted)
        return atom_response(entry(stored), 200 if request.if_match else 201)

    def _rule_entry(self, request: AtomRequest, subscription: SubscriptionEntity, rule: SubscriptionRule) -> str:
        href = request.href(f"{subscription.path}/Rules/{rule.name}")
        times = (rule.created_at_ms, rule.created_at_ms)
        return xml.entry_xml(href, rule.name, self._namespace.name, times, xml.rule_xml(rule))

    def _now_ms(self) -> int:
        return self._namespace.clock.now_ms()


def _check_kind(description: Element, kind: str) -> Element:
    given = xml.kind_of(description)
    if given != kind:
        expected = f"is given where {kind} is expected"
        # Such a path can be that of a topic, too.
        of_queue = "is not an entity that can be created here"
        raise ArgumentInvalid(f"'{given}' {of_queue if kind == QUEUE.element else expected}.")
    return description


def _first_rule(description: Element) -> SubscriptionRule:
    described = description.find(f"{{{xml.SERVICE_BUS}}}DefaultRuleDescription")
    return SubscriptionRule() if described is None else xml.read_rule(described)


def atom_page(
    request: AtomRequest, title: str, items: Sequence[T], entry: Callable[[T], str], now_ms: int
) -> web.Response:
    """Return the feed of the page that `$skip` and `$top` select, with a link to the next page."""
    skip, top = read_page(request.query, ArgumentInvalid)
    more = request.href(request.path, **{"$skip": skip + top, "$top": top}) if len(items) > skip + top and top else None
    href = request.href(request.path, **{"$skip": skip, "$top": top})
    entries = [entry(item) for item in items[skip : skip + top]]
    return atom_response(xml.feed_xml(href, title, now_ms, entries, more))


def atom_response(text: str, status: int = 200) -> web.Response:
    kind = "application/atom+xml" if status < 300 else "application/xml"
    return web.Response(text=text, status=status, content_type=kind, charset="utf-8")


def wrong_method() -> web.Response:
    return atom_response(xml.error_xml(405, "The specified HTTP verb is not valid here."), 405)
