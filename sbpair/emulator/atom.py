"""The management door: queues created, read, listed, changed and deleted over HTTP, in Atom, as the service does.

Reads the request, asks the namespace, writes the answer. Every refusal becomes the service's error body.
"""

from __future__ import annotations

import base64
import secrets
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from aiohttp import web

from sbpair.emulator import atom_xml as xml
from sbpair.emulator.body import read_body
from sbpair.emulator.description import QueueDescription, check_path, from_elements
from sbpair.emulator.errors import ArgumentInvalid, NotAuthenticated, Refusal
from sbpair.emulator.sas import Claim, scope_of

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace
    from sbpair.emulator.queue import Queue

API_VERSIONS: Final = ("2017-04", "2021-05", "2024-05")
PAGE: Final = 100
_LISTS: Final = {"$resources/queues": "Queues", "$resources/topics": "Topics"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, read: what is asked for, by which version, and how the asker calls this host."""

    method: str
    path: str
    query: dict[str, str]
    base: str
    host: str
    if_match: str | None
    token: str | None

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", API_VERSIONS[-1])

    def href(self, path: str, **query: object) -> str:
        return f"{self.base}/{quote(path, safe='/$')}?{urlencode({'api-version': self.api_version, **query})}"


def read_ask(request: web.BaseRequest) -> Ask:
    target = urlsplit(request.raw_path)
    query = {name.lower(): value for name, value in parse_qsl(target.query, keep_blank_values=True)}
    return Ask(
        request.method,
        unquote(target.path).strip("/"),
        query,
        f"{request.scheme}://{request.host}",
        request.host,
        request.headers.get("If-Match"),
        request.headers.get("Authorization"),
    )


class AtomDoor:
    """The management door of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def handle(self, request: web.BaseRequest) -> web.Response:
        ask = read_ask(request)
        try:
            return self._answer(ask, await read_body(request))
        except Refusal as refusal:
            return self._refuse(ask, refusal)

    def _refuse(self, ask: Ask, refusal: Refusal) -> web.Response:
        now = self._namespace.clock.now_ms()
        tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{self._namespace.name}:{ask.path}"
        detail = f"SubCode={refusal.sub_code}. {refusal.message} {tracker}, Timestamp:{xml.instant(now)}"
        return _xml(xml.error_xml(refusal.status, detail), refusal.status)

    def _answer(self, ask: Ask, body: bytes) -> web.Response:
        self._authorize(ask)
        if ask.api_version not in API_VERSIONS:
            raise ArgumentInvalid(f"The api-version '{ask.api_version[:40]}' is not one of {', '.join(API_VERSIONS)}.")
        if ask.path.lower() in _LISTS or ask.path.lower() == "$namespaceinfo":
            return self._answer_of_namespace(ask)
        match ask.method:
            case "GET":
                return self._get(ask)
            case "PUT":
                return self._put(ask, body)
            case "DELETE":
                self._namespace.delete_queue(ask.path)
                return web.Response(status=200)
        return _xml(xml.error_xml(405, "The specified HTTP verb is not valid here."), 405)

    def _authorize(self, ask: Ask) -> None:
        if not ask.token:
            raise NotAuthenticated("MissingToken: The authorization header was not found.")
        path = "" if ask.path.startswith("$") else ask.path
        grant = self._namespace.authenticate(ask.token, path)
        grant.require(Claim.MANAGE, scope_of(path), self._namespace.clock.now_ms())

    def _answer_of_namespace(self, ask: Ask) -> web.Response:
        if ask.method != "GET":
            return _xml(xml.error_xml(405, "The specified HTTP verb is not valid here."), 405)
        if ask.path.lower() in _LISTS:
            return self._list(ask)
        namespace = self._namespace
        times = (namespace.created_at_ms, namespace.created_at_ms)
        info = xml.namespace_xml(namespace)
        return _xml(xml.entry_xml(ask.href("$namespaceinfo"), namespace.name, namespace.name, times, info))

    def _get(self, ask: Ask) -> web.Response:
        queue = self._namespace.find_queue(ask.path)
        if queue is None:
            # The service answers a missing entity so; its clients look whether there is an entry.
            now = self._namespace.clock.now_ms()
            return _xml(xml.feed_xml(ask.href(ask.path), "Publicly Listed Services", now))
        return _xml(self._entry(ask, queue))

    def _entry(self, ask: Ask, queue: Queue) -> str:
        content = xml.queue_xml(queue, with_message_size=ask.api_version >= "2021-05")
        times = (queue.created_at_ms, queue.updated_at_ms)
        return xml.entry_xml(ask.href(queue.path), queue.path, self._namespace.name, times, content)

    def _list(self, ask: Ask) -> web.Response:
        skip, top = _count(ask, "$skip", 0), min(_count(ask, "$top", PAGE), PAGE)
        queues = self._namespace.queues() if ask.path.lower().endswith("queues") else []
        page = queues[skip : skip + top]
        more = ask.href(ask.path, **{"$skip": skip + top, "$top": top}) if len(queues) > skip + top and top else None
        entries = [self._entry(ask, queue) for queue in page]
        href = ask.href(ask.path, **{"$skip": skip, "$top": top})
        title = _LISTS[ask.path.lower()]
        return _xml(xml.feed_xml(href, title, self._namespace.clock.now_ms(), entries, more))

    def _put(self, ask: Ask, body: bytes) -> web.Response:
        check_path(ask.path)
        existing = self._namespace.queue(ask.path) if ask.if_match else None
        description = self._description(ask, body, existing)
        if existing is not None:
            existing.update(description)
            return _xml(self._entry(ask, existing))
        return _xml(self._entry(ask, self._namespace.create_queue(ask.path, description)), 201)

    def _description(self, ask: Ask, body: bytes, existing: Queue | None) -> QueueDescription:
        now = self._namespace.clock.now_ms()
        wanted = xml.read_queue(body, new_key, now)
        before = existing.description if existing else None
        created = {rule.key_name: rule.created_at_ms for rule in before.authorization_rules} if before else {}
        rules = tuple(replace(rule, created_at_ms=created.get(rule.key_name, now)) for rule in wanted.rules)
        values = wanted.values
        for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
            if values.get(name):
                values[name] = forward_address(values[name], ask.host)
        return from_elements(values, rules, before)


def forward_address(text: str, host: str) -> str:
    """A target is kept, and given back, as the whole address of an entity."""
    text = text.strip()
    return text if "://" in text else f"sb://{host}/{text.strip('/')}"


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _count(ask: Ask, name: str, default: int) -> int:
    text = ask.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ArgumentInvalid(f"The value '{text[:40]}' of {name} is not a whole number from 0.")
    return int(text)


def _xml(text: str, status: int = 200) -> web.Response:
    kind = "application/atom+xml" if status < 300 else "application/xml"
    return web.Response(text=text, status=status, content_type=kind, charset="utf-8")
