"""The Atom frontend: entities are created, read, listed, changed and deleted over HTTP, as the service does it.

Paths are `<entity>`, `<topic>/subscriptions[/<name>]` and `<topic>/subscriptions/<name>/rules[/<name>]`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from aiohttp import web

from sbpair.amqp_server.refusals import ArgumentInvalid, ServiceError, Unauthorized
from sbpair.amqp_server.shared_access import AccessRight, scope_of
from sbpair.emulator.bearer_tokens import missing_token
from sbpair.emulator.clock import token_ms
from sbpair.emulator.entities.description import QUEUE, SUBSCRIPTION, check_path
from sbpair.emulator.entities.namespace import DEAD_LETTER_SEGMENT
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.faults.fault_points import MANAGEMENT_CREDITS
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
from sbpair.emulator.service_errors import CONFLICT, MANAGEMENT_HELP, EntityExists, EntityNotFound, ManageRequired
from sbpair.rules import values
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.hybrid_connection import HybridConnection

OLDEST_API_VERSION: Final = "2012-03"
NEWEST_API_VERSION: Final = "2024-05"
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

_MISSING_TEXTS: Final = {
    "PUT": (40400, f"Not Found. The Operation doesn't exist. {MANAGEMENT_HELP}"),
    "DELETE": (0, "No service is hosted at the specified address."),
}
"""SubCodes and texts for a missing queue or topic that a request changes or deletes."""

_NO_POLICY: Final = "The incoming request is not recognized as a namespace policy put request."
"""The text for a subscription of a missing topic, or a rule of one, that a request creates or changes."""

_VERSION: Final = re.compile(r"20\d\d-[01]\d")
_FILTER: Final = re.compile(r"startswith\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)(?:\s+eq\s+true)?", re.IGNORECASE)

_FORWARD_HEADERS: Final = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}
"""Headers with the tokens for the targets of forwarding."""

T = TypeVar("T")


class AtomError(ServiceError):
    """An error in words that only Atom has, usually without a SubCode. `etag` is that of the topic."""

    def __init__(self, status: int, text: str, sub_code: int = 0, etag: str = "") -> None:
        super().__init__(text)
        self.status, self.sub_code, self.etag = status, sub_code, etag


class AtomRequest:
    """A decoded request. `base` and `host` are this server as the client addresses it, `uri` the one requested."""

    def __init__(self, request: web.BaseRequest) -> None:
        path, query = split_target(request)
        self.method = request.method
        self.path = path.strip("/")
        self.query = read_query(query)
        self.base = f"{request.scheme}://{request.host}"
        self.uri = f"{self.base}{request.raw_path}" if request.raw_path.startswith("/") else request.raw_path
        self.host = request.host
        self.if_match = request.headers.get("If-Match")
        self.creates = self.method == "PUT" and not self.if_match
        self.token = request.headers.get("Authorization")
        self.forward_tokens = {name: request.headers.get(header) for name, header in _FORWARD_HEADERS.items()}
        self.api_version = self.query.get("api-version", NEWEST_API_VERSION)
        self.may_be_of_relay = request.headers.get("X-PROCESS-AT", "").lower() == "servicebus"

    def href(self, path: str) -> str:
        """Return an entity's own URI, or a relative one, with the version of the request."""
        version = f"?api-version={quote(self.query['api-version'])}" if "api-version" in self.query else ""
        return f"{quote(path, safe='/$:')}{version}"

    def place(self, path: str, relative: str) -> xml.EntryPlace:
        """Return the place of an entity in the requested list, by its path and the path from that list."""
        return xml.EntryPlace(self.href(f"{self.base}/{path}"), self.href(relative), self.uri)


class AtomFrontend:
    """The Atom frontend of one namespace. Every error becomes the service's error body."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._queues, self._topics = queues_of(namespace), topics_of(namespace)
        self._lists = {"$resources/queues": self._queues, "$resources/topics": self._topics}

    async def answer(self, http_request: web.BaseRequest) -> web.Response:
        return self._answer(AtomRequest(http_request), await read_body(http_request))

    def error_response(self, request: web.BaseRequest, error: ServiceError) -> web.Response:
        etag = error.etag if isinstance(error, AtomError) else ""
        system = "NoSystemTracker" if etag else f"{self._namespace.name}:{AtomRequest(request).path}"
        sub_code = f"SubCode={error.sub_code}. " if error.sub_code else ""
        text = f"{CONFLICT} ." if isinstance(error, EntityExists) else error.message + " " * bool(etag)
        tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{system}"
        detail = f"{sub_code}{text} {tracker}, Timestamp:{instant(self._now_ms())}"
        return atom_response(xml.error_xml(error.status, detail), error.status, etag)

    def _answer(self, request: AtomRequest, body: bytes) -> web.Response:
        self._namespace.fault_points.check_request(request.method, request.path)
        hybrid_connection = self._namespace.hybrid_connections.find(request.path) if request.may_be_of_relay else None
        if hybrid_connection is not None:
            return self._answer_of_relay(request, hybrid_connection)
        below = _PATH.fullmatch(request.path)
        return self._authorize(request, below) or self._answer_authorized(request, below, body)

    def _answer_authorized(self, request: AtomRequest, below: re.Match[str] | None, body: bytes) -> web.Response:
        # Not 429, which is Resource Manager's.
        self._namespace.fault_points.spend(MANAGEMENT_CREDITS, scope_of(request.path))
        version = request.api_version[:40]
        if not (_VERSION.fullmatch(version) and version >= OLDEST_API_VERSION):
            raise ArgumentInvalid(f"The api-version '{version}' is not {OLDEST_API_VERSION} or a later one.")
        path = request.path.lower()
        if path.endswith(f"/{DEAD_LETTER_SEGMENT}"):
            raise AtomError(400, f"The specified HTTP verb ({request.method}) is not valid. {MANAGEMENT_HELP}")
        is_list = below is not None and (below["subscription"] is None or (below["rules"] and below["rule"] is None))
        read_only = path == "$namespaceinfo" or path in self._lists or is_list
        if request.method not in (("GET",) if read_only else ("GET", "PUT", "DELETE")):
            return wrong_method()
        if path == "$namespaceinfo":
            return self._namespace_info(request)
        if path in self._lists:
            return self._list(request, self._lists[path])
        if below is not None:
            return self._answer_below_topic(request, below, body)
        if request.method == "PUT":
            check_path(request.path)
            entities = self._topics if b"TopicDescription" in body else self._queues
        else:
            entities = self._topics if self._topics.find(request.path) else self._queues
        try:
            return self._answer_of_entity(request, entities, request.path, body)
        except EntityNotFound as error:
            if request.method == "GET":
                return self._missing()
            code, text = _MISSING_TEXTS[request.method]
            raise AtomError(404, text, code) from error

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
                return self._missing()
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
        info = xml.namespace_xml(self._namespace)
        return atom_response(xml.entry_xml(xml.EntryPlace(request.uri), name, (created, created), info, name))

    def _answer_of_relay(self, request: AtomRequest, entity: HybridConnection) -> web.Response:
        """Answer a request for the description of a hybrid connection. Raises RelayRefused."""
        self._namespace.hybrid_connections.authorize(request.token, AccessRight.MANAGE, request.path, entity)
        if request.method != "GET":
            return wrong_method()
        return self._entry_response(request, hybrid_connections_of(self._namespace), entity)

    # Entities

    def _list(self, request: AtomRequest, entities: EntityCollection) -> web.Response:
        def entry(entity: ManagedEntity) -> str:
            relative = f"subscriptions/{entity.name}" if isinstance(entity, SubscriptionEntity) else f"../{entity.path}"
            return self._entry(request, entities, entity, request.place(entity.path, relative))

        prefix = _path_prefix(request.query)
        found = [each for each in entities.all() if each.path.lower().startswith(prefix)]
        return atom_page(request, f"{entities.schema.entity}s", found, entry, self._now_ms())

    def _answer_of_entity(
        self, request: AtomRequest, entities: EntityCollection, name: str, body: bytes
    ) -> web.Response:
        """Answer a request for one entity. Raises EntityNotFound."""
        match request.method:
            case "GET":
                return self._entry_response(request, entities, entities.get(name))
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
        names, given, rules = xml.read_elements(description)
        entities.schema.check_order(names)
        self._authorize_forwards(request, given)
        first_rule = [_first_rule(description)] if entities.schema is SUBSCRIPTION and existing is None else []
        stored = entities.put(name, given, existing, tuple(rules), request.host, *first_rule)
        return self._entry_response(request, entities, stored)

    def _entry_response(self, request: AtomRequest, entities: EntityCollection, entity: ManagedEntity) -> web.Response:
        etag = "" if request.creates and not isinstance(entity, SubscriptionEntity) else etag_of(entity)
        entry = self._entry(request, entities, entity, xml.EntryPlace(request.uri))
        return atom_response(entry, 201 if request.creates else 200, etag)

    def _entry(
        self, request: AtomRequest, entities: EntityCollection, entity: ManagedEntity, place: xml.EntryPlace
    ) -> str:
        content = xml.entity_xml(entities.schema, entity, request.api_version, is_new=request.creates)
        times = None if request.method == "PUT" and request.if_match else entity.created_at_ms, entity.updated_at_ms
        if isinstance(entity, SubscriptionEntity):
            return xml.entry_xml(place, entity.name, times, content)
        return xml.entry_xml(place, entity.path, times, content, self._namespace.name)

    def _missing(self) -> web.Response:
        """Return the service's answer for a missing entity: its public feed, which lists nothing."""
        return atom_response(xml.public_feed_xml(uuid.uuid4(), self._now_ms()))

    # Below topics

    def _answer_below_topic(self, request: AtomRequest, path: re.Match[str], body: bytes) -> web.Response:
        topic = self._namespace.find_topic(path["topic"])
        if topic is None:
            if request.method != "GET":
                raise AtomError(404, _NO_POLICY if request.method == "PUT" else _MISSING_TEXTS["DELETE"][1])
            # As for a single entity, the service answers a missing topic with an empty feed.
            if path["subscription"] is None:
                return atom_page(request, "Subscriptions", (), str, self._now_ms())
            return self._missing()
        subscriptions = subscriptions_of(self._namespace, topic)
        if path["subscription"] is None:
            return self._list(request, subscriptions)
        try:
            if not path["rules"]:
                return self._answer_of_entity(request, subscriptions, path["subscription"], body)
            return self._answer_about_rules(request, topic.subscription(path["subscription"]), path["rule"], body)
        except (EntityNotFound, EntityExists) as error:
            names = [topic.full_name, path["subscription"]]
            missing = isinstance(error, EntityNotFound)
            if path["rule"] and (not missing or topic.find_subscription(path["subscription"])):
                names.append(path["rule"])
            named = "|".join(names)[:300]
            text = f"Entity '{named}' was not found." if missing else f"The messaging entity '{named}' already exists."
            raise AtomError(error.status, f"{text} {MANAGEMENT_HELP}", etag=etag_of(topic)) from error

    def _answer_about_rules(
        self, request: AtomRequest, subscription: SubscriptionEntity, name: str | None, body: bytes
    ) -> web.Response:
        """Answer a request for one rule, or for all. Raises EntityNotFound."""
        if name is None:

            def entry(rule: SubscriptionRule) -> str:
                return _rule_entry(request.place(f"{subscription.path}/Rules/{rule.name}", f"rules/{rule.name}"), rule)

            return atom_page(request, "Rules", subscription.rules, entry, self._now_ms())
        etag = etag_of(subscription)
        match request.method:
            case "GET":
                uri = f"sb{request.uri.removeprefix('https').removeprefix('http')}"
                return atom_response(_rule_entry(xml.EntryPlace(uri), subscription.rule(name)), etag=etag)
            case "DELETE":
                subscription.remove_rule(name)
                return web.Response(status=200)
        if request.if_match:
            subscription.rule(name)
        wanted = xml.read_rule(_check_kind(xml.description_in(body), xml.RULE), name)
        stored = subscription.change_rule(wanted) if request.if_match else subscription.add_rule(wanted)
        text = _rule_entry(xml.EntryPlace(request.uri), stored).replace("<Parameters/>", "")  # there when it is read
        return atom_response(text, 201 if request.creates else 200, etag)

    def _now_ms(self) -> int:
        return self._namespace.clock.now_ms()


def etag_of(entity: ManagedEntity) -> str:
    """Return the ETag of an entity, that of the topic for a subscription: its last update in .NET's ticks."""
    changed = entity.topic if isinstance(entity, SubscriptionEntity) else entity
    return str(int(values.instant(changed.updated_at_ms)))


def _path_prefix(query: Mapping[str, str]) -> str:
    """Return the prefix that `$filter` asks for, in lower case. Raises ArgumentInvalid for any other filter."""
    given = query.get("$filter", "").strip()
    match = _FILTER.fullmatch(given)
    if given and match is None:
        raise ArgumentInvalid(f"The $filter '{given[:100]}' is not startswith(path, '…') eq true.")
    return match[1].replace("''", "'").lower() if match else ""


def _rule_entry(place: xml.EntryPlace, rule: SubscriptionRule) -> str:
    return xml.entry_xml(place, rule.name, (rule.created_at_ms, rule.created_at_ms), xml.rule_xml(rule))


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
    more = None
    if top and len(items) > skip + top:
        query = urlencode({**request.query, "$skip": skip + top, "$top": top}, safe="$")
        more = f"{request.uri.partition('?')[0]}?{query}"
    entries = [entry(item) for item in items[skip : skip + top]]
    return atom_response(xml.feed_xml(request.uri, title, now_ms, entries, more))


def atom_response(text: str, status: int = 200, etag: str = "") -> web.Response:
    kind = "feed" if text.startswith("<feed") else "entry"
    headers = {"Content-Type": f"application/atom+xml;type={kind};charset=utf-8"}
    if status >= 300:
        headers = {"Content-Type": "application/xml; charset=utf-8"}
    return web.Response(text=text, status=status, headers=headers | ({"ETag": etag} if etag else {}))


def wrong_method() -> web.Response:
    return atom_response(xml.error_xml(405, "The specified HTTP verb is not valid here."), 405)
